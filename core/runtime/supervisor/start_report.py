"""What `headrace serve` says once the engine is ready: how memory was divided, and how to try it.

Owns: the text. Never knows: when it is time to print it. The numbers are the executors' own, from
their pages.
"""

from collections.abc import Sequence

import numpy as np

from core.config.headrace import HeadraceConfig
from core.runtime.supervisor.stage import Stage
from ipc.board import BoardReader
from ipc.directory import DirectoryReader
from ipc.pages import EXECUTOR_PAGE

MIB = 2**20
HEADINGS = ("replica", "weights", "KV pool", "blocks", "tokens", "threads", "kernels", "device")


def start_table(config: HeadraceConfig, stage: Stage) -> str:
    """Return a line a replica: weights, KV pool in bytes and tokens, threads, kernels.

    Bytes and threads are those of all its ranks; what has not loaded has no numbers.
    """
    rows: list[tuple[str, ...]] = [HEADINGS]
    for replica in range(config.engine.replicas):
        children = (f"executor.{replica}.{rank}" for rank in range(config.engine.tensor_parallel))
        segments = (stage.segments[stage.directory.board(child)] for child in children)
        pages = [BoardReader(segment, EXECUTOR_PAGE).read().page for segment in segments]
        rows.append(replica_row(replica, pages, config))
    widths = [max(len(row[k]) for row in rows if k < len(row)) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in rows
    )


def replica_row(
    replica: int, pages: Sequence[np.ndarray[tuple[()], np.dtype[np.void]]], config: HeadraceConfig
) -> tuple[str, ...]:
    """Return the cells of one replica; `pages` are the EXECUTOR_PAGE of each of its ranks."""
    page = pages[0]
    num_blocks = int(page["num_kv_blocks"])
    if not num_blocks:
        return str(replica), "has not loaded"
    weights_bytes, kv_bytes, threads = (
        sum(int(each[name]) for each in pages) for name in ("weights_bytes", "kv_bytes", "threads")
    )
    return (
        str(replica),
        f"{weights_bytes // MIB} MiB",
        f"{kv_bytes // MIB} MiB",
        str(num_blocks),
        str(num_blocks * config.engine.block_size),
        str(threads),
        page["kernel_path"].item().decode(),
        page["device_name"].item().decode("utf-8", "replace"),
    )


def ready_lines(config: HeadraceConfig, stage: Stage) -> str:
    """Return the address, and a command that streams text from it."""
    url = http_url(stage.ports.http_host, stage.ports.http_port)
    tenants = DirectoryReader(stage.segments[stage.directory.directory]).read().tenants
    has_keys = any(tenant.key_sha256 for tenant in tenants)
    key = " -H 'Authorization: Bearer YOUR-KEY'" if has_keys else ""
    body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}], "stream": true}'
    return (
        f"ready: {url} (engine {config.name}, model {config.engine.model})\n"
        f"try:   curl -N {url}/v1/chat/completions{key} -H 'Content-Type: application/json'"
        f" -d '{body}'"
    )


def http_url(host: str, port: int) -> str:
    """Return the base URL of a host and port."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
