"""The reference page of all metrics: `python -m frontends.metrics.reference > docs/metrics.md`.

Owns: the words between the tables. Never knows: values. Names, types, labels and meanings come from
the declarations, so the page can be made anew; a test compares it with the file.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from frontends.metrics import engine, processes, replicas, tenants, vllm
from frontends.metrics.exposition import Family

INTRODUCTION = """\
# Metrics

`GET /metrics` on the HTTP port (with an API key, once keys are configured) and on the admin port
(with the admin key) gives the same text in Prometheus' format. It is made from the board pages in
shared memory alone, so a scrape also works while the scheduler or an executor is stopped;
`headrace_heartbeat_age_seconds` and `headrace_page_age_seconds` then say how old the rest is.
`configs/prometheus/` has a scrape configuration and alert rules, `configs/grafana/` a board;
[runbook.md](runbook.md) says what to do.

* No label ever holds a request id or text of a client. Tenants are those that were authenticated;
  while 255 others have used something, the rest is `_other`. The series of a removed tenant end
  when another one needs its row, once its usage is on disk ([tenants.md](tenants.md)).
* Counters never fall while the engine runs: a process that is started again goes on where its
  predecessor's page stopped. A process that was stopped has shown everything before; one that was
  killed loses what it counted in its last 50 ms (http: 200 ms). Only those of admin workers start
  at 0.
* A request counts once, however often a restarted scheduler gets it again.
* Seconds and bytes, never milliseconds; tokens, steps and blocks are counts.

This page is generated: `python -m frontends.metrics.reference > docs/metrics.md`.
"""


@dataclass(frozen=True, slots=True)
class Section:
    """One table, with what is said before and after it."""

    title: str
    families: tuple[Family, ...]
    before: str = ""
    after: str = ""
    level: int = 2


SECTIONS = (
    Section(
        "vLLM's names",
        vllm.FAMILIES,
        before="""\
Names, labels (`model_name`, `engine`) and buckets are vLLM's, so boards and tools made for it
work unchanged. `engine` is always `0`: one scheduler drives all replicas.""",
        after="""\
`vllm:cache_config_info` calls the blocks of all replicas `num_gpu_blocks` and
`engine.kv_memory_fraction` `gpu_memory_utilization`, as such boards expect. Times to first token,
between tokens and end to end are measured by the http processes, from the arrival of the whole
request to the moment an event is handed to the socket; queue, prefill, decode and inference time
are the scheduler's. A request with `n` or several prompts is several requests to the scheduler,
one to the http process.""",
    ),
    Section(
        "The engine",
        engine.FAMILIES,
        after="""\
`headrace_system_service_total` is work that was done before (preemptions, crashes, lost results)
and work for requests that the engine then failed or shed. Prices change from one epoch to the
next, each change is an event `prices`.

`headrace_rejections_total` counts a refusal once in each process that saw it: `http` counts what
was told to clients, `scheduler` and `tokenizer` what they decided. Each `reason` has a paragraph
in [runbook.md](runbook.md).

`kind` of `headrace_preemptions_total` is `recompute` (all blocks, computed again), `swap` (all
blocks, copied to host memory) or `partial` (tail blocks; the request keeps its row); `cause` is
`growth` (a running request needed a block), `admission` (the policy wanted room), `lost_result`,
`standstill` (all that ran waited for each other's memory) or `operator` (a control command).

`scope` of `headrace_fairness_gap` is `class` or `tenant`; the fairness window bounds how far it
may grow while others wait. `ring` is `plans.R`, `results.R` (by replica) or `outputs.T` (by
tokenizer).""",
    ),
    Section(
        "Replicas",
        replicas.FAMILIES,
        before="""\
`regime` is `decode` (steps without prompts) or `mixed`. `state` of `headrace_kv_blocks` is `held`
(by requests), `evictable` (cached, reusable at once), `fenced` (in a plan that is still computed)
or `free`.""",
    ),
    Section(
        "Tenants",
        tenants.TENANT_FAMILIES,
        before="Summed over all tenants these are the engine's totals.",
        after="""\
`headrace_tenant_share_due` counts the tenants that have work at this moment, by weight, in the
classes where they have it; what was used is a share of what all tenants were charged. The unit of
service is the policy's: device time as predicted, or tokens with `policy.charge` `tokens`;
policies that charge nobody show 0. `virtual_lead` is service divided by weight, beyond that of
the least served neighbour (of a tenant in the class where it is furthest ahead).

A deadline miss is a request whose class promises a time to first token, and whose first token
came later, or which expired before it.""",
    ),
    Section("Classes", tenants.CLASS_FAMILIES),
    Section(
        "Processes",
        processes.FAMILIES,
        before="`process` is the id of the process, e.g. `executor.0.0`.",
    ),
    Section("Executors", processes.EXECUTOR_FAMILIES, level=3),
    Section("Tokenizers", processes.TOKENIZER_FAMILIES, level=3),
    Section("HTTP processes", processes.HTTP_FAMILIES, level=3),
    Section("Admin workers", processes.ADMIN_FAMILIES, level=3),
)
FAMILIES = tuple(family for section in SECTIONS for family in section.families)


def page() -> str:
    """Return the whole page in Markdown."""
    return "\n".join([INTRODUCTION, *(line for section in SECTIONS for line in lines(section))])


def lines(section: Section) -> Iterator[str]:
    """Yield the lines of a section, the last one empty."""
    yield f"{'#' * section.level} {section.title}\n"
    if section.before:
        yield f"{section.before}\n"
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    for family in section.families:
        labels = ", ".join(f"`{label}`" for label in family.labels if label not in vllm.VLLM)
        yield f"| `{family.name}` | {family.kind} | {labels} | {family.help.removesuffix('.')} |"
    yield ""
    if section.after:
        yield f"{section.after}\n"


if __name__ == "__main__":
    sys.stdout.write(page())
