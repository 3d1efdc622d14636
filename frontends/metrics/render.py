"""Renders the board as Prometheus text: `render(boards, facts)`.

Owns: which page field becomes which series. Never knows: where pages lie, who scrapes, or how the
engine decides. Nothing here talks to a process, so a scrape works just the same while the scheduler
is stopped. Counters begin at 0 with each new instance of the process that counts (a counter reset
to Prometheus), but those of http processes go on where the predecessor stopped, because the `vllm:`
histograms are the sum over them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from core.config import HeadraceConfig
from core.errors import RejectionReason
from core.metering import PreemptionCause, PreemptionKind
from core.request import FINISH_REASONS, FinishReason, RequestStatus
from core.tenancy import CLASS_NAMES
from frontends.boards import Boards, Page, text_of
from frontends.metrics import families, tenant_families
from frontends.metrics.exposition import Exposition, Labels
from frontends.metrics.shown import Shown, ShownHistogram
from ipc.pages import NO_BUDGET, STEP_REGIMES

REASON_CODES = tuple((reason.value, reason.code) for reason in RejectionReason if reason.value)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the configuration says and the pages do not."""

    model_name: str
    block_size: int
    cache_dtype: str
    prefix_cache: bool
    kv_memory_fraction: float

    @property
    def labels(self) -> Labels:
        """vLLM's two labels."""
        return (("model_name", self.model_name), ("engine", "0"))


def facts_of(config: HeadraceConfig, model_name: str) -> EngineFacts:
    """Return the facts of a configuration; `model_name` is what clients call the model."""
    engine = config.engine
    return EngineFacts(
        model_name=model_name,
        block_size=engine.block_size,
        cache_dtype=engine.dtype,
        prefix_cache=engine.prefix_cache,
        kv_memory_fraction=engine.kv_memory_fraction,
    )


def render(boards: Boards, facts: EngineFacts) -> bytes:
    """Return the whole scrape, UTF-8 Prometheus text; pages that are missing count as zero."""
    out = Exposition()
    scheduler = boards.record("scheduler")
    add_vllm(out, boards, scheduler, facts)
    add_scheduler(out, boards, scheduler)
    add_replicas(out, boards, scheduler)
    add_classes(out, scheduler)
    add_tenants(out, scheduler)
    add_workers(out, boards)
    add_processes(out, boards)
    return out.text()


def add_vllm(out: Exposition, boards: Boards, scheduler: np.void, facts: EngineFacts) -> None:
    """Append the families that vLLM has too."""
    labels = facts.labels
    add_fields(out, families.VLLM_SCHEDULER, [(labels, scheduler)])
    waiting = scheduler["num_waiting"] + scheduler["num_preempted"] + scheduler["num_swapped"]
    out.add(families.NUM_WAITING, [(labels, int(waiting))])
    out.add(families.KV_USAGE, [(labels, kv_usage(scheduler))])
    out.add(families.REQUEST_SUCCESS, success_samples(labels, scheduler))
    out.add(families.CACHE_CONFIG, [(cache_labels(scheduler, facts), 1)])
    add_histograms(out, families.VLLM_SCHEDULER_HISTOGRAMS, [(labels, scheduler)])
    pages = [page.record for _, page in boards.of_kind("http")] or [boards.record("http")]
    for shown in families.VLLM_HTTP_HISTOGRAMS:
        counts = sum(np.asarray(page[shown.field]["counts"]) for page in pages)
        total = float(sum(page[shown.field]["sum_s"] for page in pages))
        out.add_histogram(shown.family, shown.bounds_s, [(labels, list_of(counts), total)])


def add_scheduler(out: Exposition, boards: Boards, scheduler: np.void) -> None:
    """Append the scheduler's own families, and the refusals of all processes."""
    add_fields(out, families.SCHEDULER, [((), scheduler)])
    add_histograms(out, families.SCHEDULER_HISTOGRAMS, [((), scheduler)])
    finished = [
        ((("status", status.name.lower()),), int(scheduler["finished"][status]))
        for status in RequestStatus
        if status.is_finished
    ]
    out.add(families.REQUESTS_FINISHED, finished)
    preemptions = [
        (
            (("kind", kind.name.lower()), ("cause", cause.name.lower())),
            int(scheduler["preemptions_by"][kind, cause]),
        )
        for kind in PreemptionKind
        for cause in PreemptionCause
    ]
    out.add(families.PREEMPTIONS, preemptions)
    out.add(
        families.LEFTOVERS,
        [((("reason", reason),), tokens) for reason, tokens in leftovers_of(scheduler).items()],
    )
    sources = [p for kind in ("scheduler", "tokenizer", "http") for p in boards.of_kind(kind)]
    rejections = [
        ((("process", child), ("reason", code)), int(page.record["rejections"][value]))
        for child, page in sources
        for value, code in REASON_CODES
    ]
    out.add(families.REJECTIONS, rejections)


def add_replicas(out: Exposition, boards: Boards, scheduler: np.void) -> None:
    """Append the families by replica."""
    replicas = [
        ((("replica", str(index)),), row) for index, row in enumerate(replicas_of(scheduler))
    ]
    add_fields(out, families.REPLICA, replicas)
    blocks = [
        ((*labels, ("state", state)), count)
        for labels, row in replicas
        for state, count in block_counts(row).items()
    ]
    out.add(families.REPLICA_BLOCKS, blocks)
    host_blocks = [
        ((*labels, ("state", state)), count)
        for labels, row in replicas
        for state, count in host_block_counts(row).items()
    ]
    out.add(families.REPLICA_HOST_BLOCKS, host_blocks)
    for family, field in (
        (families.REPLICA_COST_FACTOR, "cost_factors"),
        (families.REPLICA_COST_SIGMA, "cost_sigmas"),
    ):
        by_regime = [
            ((*labels, ("regime", regime)), float(value))
            for labels, row in replicas
            for regime, value in zip(STEP_REGIMES, row[field], strict=True)
        ]
        out.add(family, by_regime)
    for family, field in (
        (families.REPLICA_STEP_AGE, "last_step_ns"),
        (families.REPLICA_PLAN_AGE, "plan_sent_ns"),
    ):
        ages = [
            (labels, boards.age_s(int(row[field])) if row[field] else 0.0)
            for labels, row in replicas
        ]
        out.add(family, ages)


def add_classes(out: Exposition, scheduler: np.void) -> None:
    """Append the families by class of traffic."""
    rows = [
        ((("class", name),), row)
        for name, row in zip(CLASS_NAMES, scheduler["classes"], strict=True)
    ]
    add_fields(out, tenant_families.CLASS, rows)
    add_histograms(out, (tenant_families.CLASS_QUEUE_TIME,), rows)


def add_tenants(out: Exposition, scheduler: np.void) -> None:
    """Append the families by tenant: the configured ones and `_other`."""
    rows = scheduler["tenants"][: int(scheduler["num_tenants"])]
    tenants = [(("tenant", text_of(name)),) for name in rows["name"].tolist()]
    for shown in tenant_families.TENANT:
        column = rows[shown.field].tolist()
        values = column if shown.scale == 1 else [value * shown.scale for value in column]
        out.add(shown.family, zip(tenants, values, strict=True))
    budgets = zip(tenants, rows["budget_tokens"].tolist(), strict=True)
    out.add(tenant_families.TENANT_BUDGET, [(t, left) for t, left in budgets if left != NO_BUDGET])
    counts = rows["rejections"]
    seen = [
        (t, code, int(counts[t, v]))
        for v, code in REASON_CODES
        for t in np.flatnonzero(counts[:, v])
    ]
    out.add(
        tenant_families.TENANT_REJECTIONS,
        [((*tenants[t], ("reason", code)), count) for t, code, count in seen],
    )


def add_workers(out: Exposition, boards: Boards) -> None:
    """Append the families by process of executors, tokenizers, http and admin."""
    for kind, table in (
        ("executor", families.EXECUTOR),
        ("tokenizer", families.TOKENIZER),
        ("http", families.HTTP),
        ("admin", families.ADMIN),
    ):
        add_fields(out, table, labelled(boards.of_kind(kind)))
    executors = labelled(boards.of_kind("executor"))
    add_histograms(out, (families.EXECUTOR_STEP_TIME,), executors)
    texts = ("kernel_path", "device_name", "model")
    out.add(
        families.EXECUTOR_INFO,
        [((*labels, *((t, text_of(row[t])) for t in texts)), 1) for labels, row in executors],
    )
    responses = [
        ((*labels, ("status_class", f"{digit}xx")), int(row["responses"][digit]))
        for labels, row in labelled(boards.of_kind("http"))
        for digit in range(1, 6)
    ]
    out.add(families.HTTP_RESPONSES, responses)


def add_processes(out: Exposition, boards: Boards) -> None:
    """Append what is known of every process: age of heartbeat and page, epoch, restarts, wire
    errors."""
    supervisor = boards.record("supervisor")
    started_ns = int(supervisor["started_ns"])
    out.add(families.UPTIME, [((), boards.age_s(started_ns) if started_ns else 0.0)])
    out.add(families.STOPPING, [((), int(supervisor["stopping"]))])
    children = supervisor["children"][: int(supervisor["num_children"])]
    names = [process_label(text_of(name)) for name in children["name"].tolist()]
    for family, field in (
        (families.PROCESS_EPOCH, "epoch"),
        (families.PROCESS_RESTARTS, "restarts"),
    ):
        out.add(family, zip(names, children[field].tolist(), strict=True))
    beats = [
        (process_label(child), boards.age_s(beat.stamp_ns))
        for child, beat in sorted(boards.heartbeats.items())
    ]
    out.add(families.HEARTBEAT_AGE, beats)
    pages = sorted(boards.pages.items())
    out.add(families.PAGE_AGE, [(process_label(c), boards.age_s(p.written_ns)) for c, p in pages])
    out.add(families.RING_ERRORS, field_samples(pages, "ring_errors"))
    out.add(families.DROPPED_FRAMES, field_samples(pages, "dropped_frames"))


def add_fields(
    out: Exposition,
    table: Sequence[Shown],
    rows: Sequence[tuple[Labels, np.void]],
) -> None:
    """Append one family for each entry of `table`, with a series for each row."""
    for shown in table:
        values = [(labels, row[shown.field].item()) for labels, row in rows]
        if shown.scale != 1:
            values = [(labels, value * shown.scale) for labels, value in values]
        out.add(shown.family, values)


def add_histograms(
    out: Exposition,
    table: Sequence[ShownHistogram],
    rows: Sequence[tuple[Labels, np.void]],
) -> None:
    """Append one histogram for each entry of `table`, with a series for each row."""
    for shown in table:
        samples = [
            (labels, list_of(row[shown.field]["counts"]), float(row[shown.field]["sum_s"]))
            for labels, row in rows
        ]
        out.add_histogram(shown.family, shown.bounds_s, samples)


def labelled(pages: Sequence[tuple[str, Page]]) -> list[tuple[Labels, np.void]]:
    """Return the pages' records, each with its `process` label."""
    return [(process_label(child), page.record) for child, page in pages]


def process_label(child: str) -> Labels:
    """Return the label of a child id."""
    return (("process", child),)


def field_samples(pages: Sequence[tuple[str, Page]], field: str) -> Iterator[tuple[Labels, int]]:
    """Yield a sample for each page that has `field`."""
    for child, page in pages:
        if field in (page.record.dtype.names or ()):
            yield process_label(child), int(page.record[field])


def success_samples(labels: Labels, scheduler: np.void) -> Iterator[tuple[Labels, int]]:
    """Yield the finished requests by vLLM's reasons."""
    for reason in FinishReason:
        if reason is not FinishReason.NONE:
            ends = [status for status, ended in FINISH_REASONS.items() if ended is reason]
            count = sum(int(scheduler["finished"][status]) for status in ends)
            yield (*labels, ("finished_reason", reason.name.lower())), count


def cache_labels(scheduler: np.void, facts: EngineFacts) -> Labels:
    """Return the labels of `vllm:cache_config_info`; blocks of an accelerator's pool are called gpu
    blocks there."""
    blocks = sum(int(row["num_blocks"]) for row in replicas_of(scheduler))
    host_blocks = sum(int(row["num_host_blocks"]) for row in replicas_of(scheduler))
    return (
        *facts.labels,
        ("block_size", str(facts.block_size)),
        ("cache_dtype", facts.cache_dtype),
        ("enable_prefix_caching", str(facts.prefix_cache)),
        ("gpu_memory_utilization", str(facts.kv_memory_fraction)),
        ("num_gpu_blocks", str(blocks)),
        ("num_cpu_blocks", str(host_blocks)),
    )


def replicas_of(scheduler: np.void) -> list[np.void]:
    """Return the rows of the replicas there are."""
    return list(scheduler["replicas"][: int(scheduler["num_replicas"])])


def leftovers_of(scheduler: np.void) -> dict[str, int]:
    """Return the tokens that steps have left unused while somebody waited, by reason."""
    rows = scheduler["leftovers"][: int(scheduler["num_leftovers"])]
    return {text_of(row["reason"]): int(row["tokens"]) for row in rows}


def block_counts(replica: np.void) -> dict[str, int]:
    """Return the KV blocks of a replica by state; free ones are what is left."""
    counts = {
        state: int(replica[f"num_{state}_blocks"]) for state in ("held", "evictable", "fenced")
    }
    return counts | {"free": max(0, int(replica["num_blocks"]) - sum(counts.values()))}


def host_block_counts(replica: np.void) -> dict[str, int]:
    """Return the blocks of a replica's host memory by state."""
    held = int(replica["num_held_host_blocks"])
    return {"held": held, "free": int(replica["num_host_blocks"]) - held}


def kv_usage(scheduler: np.void) -> float:
    """Return the share of all blocks that requests hold or that are fenced, 0 to 1."""
    rows = replicas_of(scheduler)
    used = sum(int(row["num_held_blocks"]) + int(row["num_fenced_blocks"]) for row in rows)
    return used / max(1, sum(int(row["num_blocks"]) for row in rows))


def list_of(counts: object) -> list[int]:
    """Return bucket counts as Python integers."""
    return [int(count) for count in np.asarray(counts)]
