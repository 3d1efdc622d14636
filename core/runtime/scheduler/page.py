"""The scheduler's page of the board: the engine core's numbers under the names that readers know.

Owns: the copy from statistics and counters into the page. Never knows: when it is published, or who
reads it.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from core.engine_core import EngineCore
from core.metering import Buckets, Histogram, Metering
from core.policy.base import Prediction
from core.scheduler.replica import ReplicaState
from core.scheduler.statistics import EngineStatistics
from ipc.pages import (
    LATENCY_BUCKETS_S,
    MAX_PAGE_TENANTS,
    RECLAIM_BUCKETS_S,
    STEP_BUCKETS_S,
)

Page = npt.NDArray[np.void]

BUCKETS = Buckets(LATENCY_BUCKETS_S, STEP_BUCKETS_S, RECLAIM_BUCKETS_S)
COUNTERS = (
    "steps", "prompt_tokens", "cached_tokens", "generated_tokens", "prefix_queries_tokens",
    "prefix_hits_tokens", "preemptions", "preemptions_by", "swapped_out_tokens",
    "swapped_in_tokens", "recomputed_after_swap_tokens", "recomputed_tokens",
    "cancel_reclaim_steps_max", "last_reclaim_ns",
)  # fmt: skip
GAUGES = (
    "num_waiting", "waiting_tokens", "num_preempted", "num_swapped", "num_running", "draining",
    "price_epoch", "system_service",
)  # fmt: skip
HISTOGRAMS = (
    "queue_time", "prefill_time", "decode_time", "e2e_time", "step_time", "schedule_time",
    "cancel_reclaim",
)  # fmt: skip
TENANT_FIELDS = (
    "num_waiting", "waiting_tokens", "num_running", "num_preempted", "num_swapped", "requests",
    "prompt_tokens", "cached_tokens", "generated_tokens", "preemptions", "recomputed_tokens",
)  # fmt: skip
CLASS_FIELDS = (
    "num_waiting", "num_running", "held_blocks", "paused", "weight", "reserved_blocks",
    "reserved_seqs", "reserved_step_tokens", "service", "virtual_lead",
)  # fmt: skip
STANDING_FIELDS = (
    "paused", "weight", "share_due", "share_used", "service", "virtual_lead", "budget_tokens",
    "budget_tat_ns", "kv_quota_blocks", "held_blocks",
)  # fmt: skip


def new_metering() -> Metering:
    """Return counters with the page's buckets and its number of tenants."""
    return Metering(BUCKETS, MAX_PAGE_TENANTS)


def fill_page(page: Page, core: EngineCore, now_ns: int) -> None:
    """Copy everything but the channels' own counters."""
    statistics, metering = core.statistics(), core.metering
    for name in COUNTERS:
        page[name] = getattr(metering, name)
    for name in GAUGES:
        page[name] = getattr(statistics, name)
    oldest_ns = statistics.oldest_arrival_ns
    page["oldest_wait_ns"] = now_ns - oldest_ns if oldest_ns else 0
    page["ready"] = any(replica.state is ReplicaState.UP for replica in statistics.replicas)
    page["finished"][: len(metering.finished)] = metering.finished
    page["rejections"][: len(metering.rejections)] = metering.rejections
    for name in HISTOGRAMS:
        _fill_histogram(page[name], getattr(metering, name))
    _fill_replicas(page, statistics)
    _fill_tenants(page, metering)
    _fill_standings(page, core, now_ns)
    _fill_leftovers(page, core.leftovers())


def _fill_leftovers(page: Page, leftovers: Mapping[str, int]) -> None:
    page["num_leftovers"] = len(leftovers)
    rows = page["leftovers"][: len(leftovers)]
    rows["reason"] = [reason.encode() for reason in leftovers]
    rows["tokens"] = list(leftovers.values())


def _fill_histogram(target: Page, histogram: Histogram) -> None:
    target["counts"] = histogram.counts
    target["sum_s"] = histogram.sum_s


def _fill_replicas(page: Page, statistics: EngineStatistics) -> None:
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
        _fill_prediction(row, replica.prediction)


def _fill_prediction(row: np.void, prediction: Prediction | None) -> None:
    if prediction is None:
        row["cost_factors"] = row["cost_sigmas"] = 0.0
        return
    row["cost_factors"] = prediction.factors
    row["cost_sigmas"] = prediction.sigmas
    row["infeasible_steps"] = prediction.infeasible_steps


def _fill_tenants(page: Page, metering: Metering) -> None:
    names, tenants = metering.tenant_names, metering.tenants
    count = len(names)
    rows = page["tenants"][:count]
    page["num_tenants"] = count
    rows["name"] = [name.encode() for name in names]
    for name in TENANT_FIELDS:
        rows[name] = getattr(tenants, name)[:count]
    rows["rejections"][:, : tenants.rejections.shape[1]] = tenants.rejections[:count]


def _fill_standings(page: Page, core: EngineCore, now_ns: int) -> None:
    classes, tenants = core.standings(now_ns)
    for row, standing in zip(page["classes"], classes, strict=True):
        for name in CLASS_FIELDS:
            row[name] = getattr(standing, name)
    for row, histogram in zip(page["classes"], core.metering.queue_time_by_class, strict=True):
        _fill_histogram(row["queue_time"], histogram)
    rows = page["tenants"][: len(tenants.weight)]
    for name in STANDING_FIELDS:
        rows[name] = getattr(tenants, name)
    oldest_ns = tenants.oldest_arrival_ns
    rows["oldest_wait_ns"] = np.where(oldest_ns, now_ns - oldest_ns, 0)
