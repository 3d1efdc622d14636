"""Renders the board as Prometheus text: `render(boards, facts)`.

Owns: the order of the families. Never knows: where pages lie, who scrapes, or how the engine
decides. Nothing here talks to a process, so a scrape works just the same while the scheduler is
stopped. No label ever holds a request id or text of a client.
"""

from frontends.boards import Boards
from frontends.metrics import engine, processes, replicas, tenants, vllm
from frontends.metrics.exposition import Exposition


def render(boards: Boards, facts: vllm.EngineFacts) -> bytes:
    """Return the whole scrape, UTF-8 Prometheus text; pages that are missing count as zero."""
    out = Exposition()
    vllm.add(out, boards, facts)
    engine.add(out, boards)
    replicas.add(out, boards)
    tenants.add_classes(out, boards)
    tenants.add_tenants(out, boards)
    processes.add_workers(out, boards)
    processes.add(out, boards)
    return out.text()
