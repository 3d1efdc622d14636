"""The scheduler's page of the board: the engine core's numbers under the names that readers know.

Owns: the copy from statistics and counters into the page, and from a predecessor's page back into
counters, so that none ever falls: what it counted after it had published last is lost, up to 50 ms.
Never knows: when the page is published, or who reads it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.engine_core import EngineCore
from core.histogram import Histogram
from core.metering import Buckets, Metering
from core.policy.base import Prediction
from core.scheduler.replica import ReplicaState
from core.scheduler.statistics import EngineStatistics
from ipc.channel import FrameStatistics
from ipc.pages import (
    ITL_BUCKETS_S,
    LATENCY_BUCKETS_S,
    MAX_PAGE_RINGS,
    MAX_PAGE_TENANTS,
    RECLAIM_BUCKETS_S,
    RECLAIM_BUCKETS_STEPS,
    SCHEDULER_PAGE,
    STEP_BUCKETS_S,
    STEP_TOKEN_BUCKETS,
    TOKEN_BUCKETS,
)

Page = npt.NDArray[np.void]

NO_PREDECESSOR: Page = np.zeros((), SCHEDULER_PAGE)
BUCKETS = Buckets(
    LATENCY_BUCKETS_S,
    STEP_BUCKETS_S,
    RECLAIM_BUCKETS_S,
    gap_s=ITL_BUCKETS_S,
    tokens=TOKEN_BUCKETS,
    step_tokens=STEP_TOKEN_BUCKETS,
    reclaim_steps=RECLAIM_BUCKETS_STEPS,
)
COUNTERS = (
    "steps", "prompt_tokens", "cached_tokens", "generated_tokens", "prefix_queries_tokens",
    "prefix_hits_tokens", "preemptions", "preemptions_by", "swapped_out_tokens",
    "swapped_in_tokens", "recomputed_after_swap_tokens", "recomputed_tokens",
    "cancel_reclaim_steps_max", "last_reclaim_ns", "ignored_results", "duplicate_requests",
    "overrun_tokens",
)  # fmt: skip
GAUGES = (
    "num_waiting", "waiting_tokens", "num_preempted", "num_swapped", "num_running", "draining",
    "price_epoch", "system_service",
)  # fmt: skip
ARRAYS = ("finished", "rejections")
HISTOGRAMS = (
    "prefill_time", "decode_time", "inference_time", "e2e_time", "time_per_token",
    "request_prompt_tokens", "request_generation_tokens", "request_max_tokens", "step_tokens",
    "step_time", "schedule_time", "cancel_reclaim", "cancel_reclaim_steps",
)  # fmt: skip
TENANT_GAUGES = (
    "num_waiting", "waiting_tokens", "num_running", "num_preempted", "num_swapped",
)  # fmt: skip
TENANT_COUNTERS = (
    "requests", "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions",
    "recomputed_tokens", "deadline_misses",
)  # fmt: skip
CLASS_FIELDS = (
    "num_waiting", "num_running", "held_blocks", "paused", "weight", "reserved_blocks",
    "reserved_seqs", "reserved_step_tokens", "service", "virtual_lead",
)  # fmt: skip
CLASS_COUNTERS = ("prompt_tokens", "cached_tokens", "generated_tokens", "deadline_misses")
PREDICTION_COUNTERS = ("infeasible_steps", "predicted_ns", "measured_ns")
STANDING_FIELDS = (
    "paused", "removed", "weight", "share_due", "share_used", "service", "virtual_lead",
    "budget_tokens", "budget_tat_ns", "kv_quota_blocks", "held_blocks",
)  # fmt: skip


def new_metering(max_tenants: int = MAX_PAGE_TENANTS) -> Metering:
    """Return counters with the page's buckets, and no more tenants than it has rows."""
    return Metering(BUCKETS, max_tenants)


def resumed_metering(page: Page, max_tenants: int = MAX_PAGE_TENANTS) -> Metering:
    """Return counters that go on from a predecessor's page; one that is all zeros has none."""
    metering = new_metering(max_tenants)
    for name in COUNTERS:
        value = page[name]
        setattr(metering, name, value.copy() if value.ndim else int(value))
    for name in ARRAYS:
        counts = getattr(metering, name)
        counts[:] = page[name][: len(counts)]
    for name in HISTOGRAMS:
        _histogram(metering, name).resume(page[name])
    _resume_classes(page["classes"], metering)
    _resume_tenants(page["tenants"][: int(page["num_tenants"])], metering)
    return metering


def _resume_classes(rows: Page, metering: Metering) -> None:
    for name in CLASS_COUNTERS:
        getattr(metering.classes, name)[:] = rows[name]
    metering.queue_time_by_class.resume(rows["queue_time"])


def _resume_tenants(rows: Page, metering: Metering) -> None:
    """Give the tenants the places they had."""
    names = (name.decode() for name in rows["name"].tolist())
    metering.tenant_rows.resume(names, rows["tenure"].tolist())
    tenants = metering.tenants
    for name in TENANT_COUNTERS:
        getattr(tenants, name)[: len(rows)] = rows[name]
    tenants.rejections[: len(rows)] = rows["rejections"][:, : tenants.rejections.shape[1]]
    metering.queue_time_by_tenant.resume(rows["queue_time"])


def fill_page(page: Page, core: EngineCore, now_ns: int, before: Page = NO_PREDECESSOR) -> None:
    """Copy everything but the channels' own counters.

    What the policy counts begins at 0 with it, so that is added to what it was on the page of the
    predecessor, `before`.
    """
    statistics, metering = core.statistics(), core.metering
    for name in COUNTERS:
        page[name] = getattr(metering, name)
    for name in GAUGES:
        page[name] = getattr(statistics, name)
    oldest_ns = statistics.oldest_arrival_ns
    page["oldest_wait_ns"] = now_ns - oldest_ns if oldest_ns else 0
    page["ready"] = any(replica.state is ReplicaState.UP for replica in statistics.replicas)
    for name in ARRAYS:
        counts = getattr(metering, name)
        page[name][: len(counts)] = counts
    for name in HISTOGRAMS:
        _histogram(metering, name).fill(page[name])
    metering.queue_time_by_class.fill_total(page["queue_time"])
    page["system_service"] += before["system_service"]
    _fill_replicas(page, statistics, before)
    _fill_expectations(page["replicas"][: len(statistics.replicas)], statistics, metering)
    _fill_tenants(page, metering)
    _fill_standings(page, core, now_ns, before)
    _fill_leftovers(page, core.leftovers(), before)


def fill_rings(page: Page, rings: Iterable[tuple[str, FrameStatistics]]) -> None:
    """Show how full the rings are, by name; there is room for MAX_PAGE_RINGS."""
    rows = [(name.encode(), ring.num_used, ring.num_slots) for name, ring in rings]
    rows = rows[:MAX_PAGE_RINGS]
    page["num_rings"] = len(rows)
    page["rings"][: len(rows)] = np.array(rows, page["rings"].dtype)


def _histogram(metering: Metering, name: str) -> Histogram:
    found: Histogram = getattr(metering, name)
    return found


def _fill_leftovers(page: Page, leftovers: Mapping[str, int], before: Page) -> None:
    tokens = Counter({reason.encode(): count for reason, count in leftovers.items()})
    tokens.update(dict(before["leftovers"][: int(before["num_leftovers"])].tolist()))
    page["num_leftovers"] = len(tokens)
    rows = page["leftovers"][: len(tokens)]
    rows["reason"] = list(tokens)
    rows["tokens"] = list(tokens.values())


def _fill_replicas(page: Page, statistics: EngineStatistics, before: Page) -> None:
    page["num_replicas"] = len(statistics.replicas)
    for index, replica in enumerate(statistics.replicas):
        row, pool = page["replicas"][index], replica.pool
        row["epoch"] = replica.epoch
        row["step"] = replica.step
        row["last_step_ns"] = replica.last_result_ns
        row["plan_sent_ns"] = replica.plan_sent_ns
        row["num_running"] = replica.num_running
        row["draining"] = replica.draining
        row["num_blocks"] = pool.num_blocks
        row["num_held_blocks"] = pool.num_held
        row["num_evictable_blocks"] = pool.num_evictable
        row["num_fenced_blocks"] = pool.num_fenced
        row["num_host_blocks"] = replica.host.num_blocks
        row["num_held_host_blocks"] = replica.host.num_held
        _fill_prediction(row, replica.prediction, before["replicas"][index])


def _fill_expectations(rows: Page, statistics: EngineStatistics, metering: Metering) -> None:
    """Show how long steps should take: as the policy predicts, else as they took so far."""
    steps = metering.step_time
    mean_ns = int(steps.sum * NS_PER_S / max(1, steps.count))
    for row, replica in zip(rows, statistics.replicas, strict=True):
        prediction = replica.prediction
        row["expected_step_ns"] = (prediction.expected_ns if prediction else 0) or mean_ns


def _fill_prediction(row: np.void, prediction: Prediction | None, before: np.void) -> None:
    """Show how well steps are predicted; the counters of a replica that is away stay."""
    if prediction is None:
        row["cost_factors"] = row["cost_sigmas"] = 0.0
    else:
        row["cost_factors"] = prediction.factors
        row["cost_sigmas"] = prediction.sigmas
    for name in PREDICTION_COUNTERS:
        if prediction is not None:
            row[name] = before[name] + getattr(prediction, name)
        elif not row[name]:
            row[name] = before[name]


def _fill_tenants(page: Page, metering: Metering) -> None:
    names, tenants = metering.tenant_names, metering.tenants
    count = len(names)
    rows = page["tenants"][:count]
    page["num_tenants"] = count
    page["tenant_names_left"] = metering.tenant_rows.num_left
    rows["name"] = [name.encode() for name in names]
    rows["tenure"] = metering.tenant_rows.tenures
    for name in TENANT_GAUGES + TENANT_COUNTERS:
        rows[name] = getattr(tenants, name)[:count]
    rows["rejections"][:, : tenants.rejections.shape[1]] = tenants.rejections[:count]
    metering.queue_time_by_tenant.fill(rows["queue_time"])


def _fill_standings(page: Page, core: EngineCore, now_ns: int, before: Page) -> None:
    classes, tenants = core.standings(now_ns)
    for row, standing in zip(page["classes"], classes, strict=True):
        for name in CLASS_FIELDS:
            row[name] = getattr(standing, name)
        arrival_ns = standing.oldest_arrival_ns
        row["oldest_wait_ns"] = now_ns - arrival_ns if arrival_ns else 0
    page["classes"]["service"] += before["classes"]["service"]
    for name in CLASS_COUNTERS:
        page["classes"][name] = getattr(core.metering.classes, name)
    core.metering.queue_time_by_class.fill(page["classes"]["queue_time"])
    rows = page["tenants"][: len(tenants.weight)]
    for name in STANDING_FIELDS:
        rows[name] = getattr(tenants, name)
    past = before["tenants"][: len(rows)]
    rows["service"] += np.where(past["tenure"] == rows["tenure"], past["service"], 0)
    oldest_ns = tenants.oldest_arrival_ns
    rows["oldest_wait_ns"] = np.where(oldest_ns, now_ns - oldest_ns, 0)
