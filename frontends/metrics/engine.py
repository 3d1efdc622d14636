"""The metrics of the engine as a whole, as its scheduler counts them.

Owns: these families and which page fields they show. Never knows: tenants, classes, replicas.
"""

from collections.abc import Iterator

import numpy as np

from core.metering import PreemptionCause, PreemptionKind
from core.request import RequestStatus
from frontends.boards import Boards, text_of
from frontends.metrics.exposition import Exposition, Labels
from frontends.metrics.shown import (
    S_PER_NS,
    Shown,
    ShownHistogram,
    add_fields,
    add_histograms,
    counter,
    gauge,
    histogram,
)
from frontends.refusals import REASON_CODES
from ipc.pages import (
    LATENCY_BUCKETS_S,
    RECLAIM_BUCKETS_S,
    RECLAIM_BUCKETS_STEPS,
    STEP_BUCKETS_S,
)

BY_FIELD = (
    Shown(gauge("headrace_ready", "1 if new requests are admitted."), "ready"),
    Shown(gauge("headrace_draining", "1 while the whole engine drains."), "draining"),
    Shown(gauge("headrace_waiting_tokens", "Prompt + max_tokens of the queue."), "waiting_tokens"),
    Shown(
        gauge("headrace_oldest_wait_seconds", "Wait of the oldest queued request."),
        "oldest_wait_ns",
        S_PER_NS,
    ),
    Shown(gauge("headrace_requests_preempted", "Preempted, not yet resumed."), "num_preempted"),
    Shown(gauge("headrace_requests_swapped", "Swapped out, not yet resumed."), "num_swapped"),
    Shown(counter("headrace_steps_total", "Steps of all replicas."), "steps"),
    Shown(counter("headrace_cached_tokens_total", "Prompt tokens reused."), "cached_tokens"),
    Shown(
        counter(
            "headrace_recomputed_tokens_total",
            "Tokens computed again after a preemption or a restart.",
        ),
        "recomputed_tokens",
    ),
    Shown(
        counter("headrace_swapped_out_tokens_total", "Tokens whose KV was copied to the host."),
        "swapped_out_tokens",
    ),
    Shown(
        counter("headrace_swapped_in_tokens_total", "Tokens whose KV was copied back."),
        "swapped_in_tokens",
    ),
    Shown(
        counter(
            "headrace_recomputed_after_swap_tokens_total",
            "Tokens of swapped requests computed again: their shared prefix was gone.",
        ),
        "recomputed_after_swap_tokens",
    ),
    Shown(
        counter("headrace_overrun_tokens_total", "Tokens generated behind a stop string."),
        "overrun_tokens",
    ),
    Shown(
        counter(
            "headrace_ignored_results_total",
            "Steps whose result was lost, or belonged to no plan in flight.",
        ),
        "ignored_results",
    ),
    Shown(
        counter("headrace_duplicate_requests_total", "Submitted though they were there."),
        "duplicate_requests",
    ),
    Shown(gauge("headrace_price_epoch", "Epoch of the prices in force; 0 = none."), "price_epoch"),
    Shown(
        counter("headrace_system_service_total", "Charged to nobody, in the unit of the policy."),
        "system_service",
    ),
    Shown(
        gauge("headrace_cancel_reclaim_steps_max", "Most steps a cancellation took to free KV."),
        "cancel_reclaim_steps_max",
    ),
    Shown(
        gauge("headrace_held_output_bytes", "Outputs for which no ring had room yet."),
        "held_output_bytes",
    ),
)
HISTOGRAMS = (
    ShownHistogram(
        histogram("headrace_scheduler_e2e_seconds", "From arrival to the end, as scheduled."),
        "e2e_time",
        LATENCY_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_step_time_seconds", "Computing a step, as its executor says."),
        "step_time",
        STEP_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_schedule_time_seconds", "Deciding one step: plan and result."),
        "schedule_time",
        STEP_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_cancel_reclaim_seconds", "From a cancellation to its blocks free."),
        "cancel_reclaim",
        RECLAIM_BUCKETS_S,
    ),
    ShownHistogram(
        histogram("headrace_cancel_reclaim_steps", "Steps from a cancellation to its blocks free."),
        "cancel_reclaim_steps",
        RECLAIM_BUCKETS_STEPS,
    ),
)
PREEMPTIONS = counter(
    "headrace_preemptions_total", "Preemptions, by what was given back and for what.",
    "kind", "cause",
)  # fmt: skip
REQUESTS_FINISHED = counter(
    "headrace_requests_finished_total", "Requests that ended, by final status.", "status"
)
LEFTOVERS = counter(
    "headrace_leftover_tokens_total",
    "Tokens that steps left unused while somebody waited, by reason.",
    "reason",
)
REJECTIONS = counter(
    "headrace_rejections_total", "Refusals by reason and by the process that saw them.",
    "process", "reason",
)  # fmt: skip
FAIRNESS_GAP = gauge(
    "headrace_fairness_gap",
    "Most weighted service that one is ahead of the least served who has work.",
    "scope",
)
RING_USED = gauge("headrace_ring_slots_used", "Frames that a reader still holds.", "ring")
RING_SLOTS = gauge("headrace_ring_slots", "Slots of the ring.", "ring")

FAMILIES = (
    *(each.family for each in (*BY_FIELD, *HISTOGRAMS)),
    PREEMPTIONS,
    REQUESTS_FINISHED,
    LEFTOVERS,
    REJECTIONS,
    FAIRNESS_GAP,
    RING_USED,
    RING_SLOTS,
)


def add(out: Exposition, boards: Boards) -> None:
    """Append all families."""
    scheduler = boards.record("scheduler")
    add_fields(out, BY_FIELD, [((), scheduler)])
    add_histograms(out, HISTOGRAMS, [((), scheduler)])
    out.add(PREEMPTIONS, preemption_samples(scheduler))
    finished = [
        ((("status", status.name.lower()),), int(scheduler["finished"][status]))
        for status in RequestStatus
        if status.is_finished
    ]
    out.add(REQUESTS_FINISHED, finished)
    leftovers = leftovers_of(scheduler).items()
    out.add(LEFTOVERS, [((("reason", reason),), tokens) for reason, tokens in leftovers])
    out.add(REJECTIONS, rejection_samples(boards))
    gaps = (("class", scheduler["classes"]), ("tenant", scheduler["tenants"]))
    out.add(
        FAIRNESS_GAP,
        [((("scope", scope),), float(rows["virtual_lead"].max())) for scope, rows in gaps],
    )
    rings = scheduler["rings"][: int(scheduler["num_rings"])]
    for family, field in ((RING_USED, "num_used"), (RING_SLOTS, "num_slots")):
        out.add(family, [((("ring", text_of(ring["name"])),), int(ring[field])) for ring in rings])


def preemption_samples(scheduler: np.void) -> Iterator[tuple[Labels, int]]:
    """Yield the preemptions by kind and cause."""
    for kind in PreemptionKind:
        for cause in PreemptionCause:
            labels = (("kind", kind.name.lower()), ("cause", cause.name.lower()))
            yield labels, int(scheduler["preemptions_by"][kind, cause])


def rejection_samples(boards: Boards) -> Iterator[tuple[Labels, int]]:
    """Yield the refusals that each process saw."""
    for kind in ("scheduler", "tokenizer", "http"):
        for child, page in boards.of_kind(kind):
            counts = page.record["rejections"].tolist()
            for value, code in REASON_CODES:
                yield (("process", child), ("reason", code)), counts[value]


def leftovers_of(scheduler: np.void) -> dict[str, int]:
    """Return the tokens that steps have left unused while somebody waited, by reason."""
    rows = scheduler["leftovers"][: int(scheduler["num_leftovers"])]
    return {text_of(row["reason"]): int(row["tokens"]) for row in rows}
