"""What the scheduler counts: totals, tenants and histograms, as plain integers and numpy arrays.

Owns: every counter and gauge of the engine core, under the names that the scheduler's board page
uses. Never knows: pages, clocks, how a number is shown. Counters only grow. A tenant's index is its
row (`core.tenancy.rows`); one that passes to another tenant begins at 0.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from core.errors import RejectionReason
from core.histogram import Histogram
from core.request import RequestStatus
from core.tenancy.classes import NUM_CLASSES
from core.tenancy.rows import OTHER, TenantRows


class PreemptionKind(IntEnum):
    """How a running request gave memory back."""

    RECOMPUTE = 0  # all of it; it is computed again
    SWAP = 1  # all of it; what it shared with nobody waits in host memory
    PARTIAL = 2  # tail blocks; it keeps its row


class PreemptionCause(IntEnum):
    """What a running request had to give memory back for."""

    GROWTH = 0  # a running request needed a block more
    ADMISSION = 1  # the policy wanted room in the step
    LOST_RESULT = 2  # nobody knows what its last step was
    STANDSTILL = 3  # all that ran waited for each other's memory
    OPERATOR = 4  # a control command


@dataclass(frozen=True, slots=True)
class Buckets:
    """Upper bounds of histogram buckets, ascending; the last one, +Inf, is implied."""

    latency_s: tuple[float, ...]
    step_s: tuple[float, ...]
    reclaim_s: tuple[float, ...]
    gap_s: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()
    step_tokens: tuple[float, ...] = ()
    reclaim_steps: tuple[float, ...] = ()


class TenantCounters:
    """Arrays over tenant indexes."""

    def __init__(self, max_tenants: int) -> None:
        """Start with all at 0."""
        self.num_waiting = np.zeros(max_tenants, np.int64)
        self.waiting_tokens = np.zeros(max_tenants, np.int64)
        self.num_running = np.zeros(max_tenants, np.int64)
        self.num_preempted = np.zeros(max_tenants, np.int64)
        self.num_swapped = np.zeros(max_tenants, np.int64)
        self.requests = np.zeros(max_tenants, np.uint64)
        self.prompt_tokens = np.zeros(max_tenants, np.uint64)
        self.cached_tokens = np.zeros(max_tenants, np.uint64)
        self.generated_tokens = np.zeros(max_tenants, np.uint64)
        self.preemptions = np.zeros(max_tenants, np.uint64)
        self.recomputed_tokens = np.zeros(max_tenants, np.uint64)
        self.deadline_misses = np.zeros(max_tenants, np.uint64)
        self.rejections = np.zeros((max_tenants, len(RejectionReason)), np.uint64)

    def clear(self, index: int) -> None:
        """Forget what was counted for one tenant."""
        for column in vars(self).values():
            column[index] = 0

    def are_used(self) -> npt.NDArray[np.bool_]:
        """Return for which tenants anything was counted, bool[tenants]."""
        columns = [column.reshape(len(column), -1) for column in vars(self).values()]
        used: npt.NDArray[np.bool_] = np.any(np.hstack(columns), axis=1)
        return used


class ClassCounters:
    """Arrays over classes of traffic."""

    def __init__(self) -> None:
        """Start with all at 0."""
        self.prompt_tokens = np.zeros(NUM_CLASSES, np.uint64)
        self.cached_tokens = np.zeros(NUM_CLASSES, np.uint64)
        self.generated_tokens = np.zeros(NUM_CLASSES, np.uint64)
        self.deadline_misses = np.zeros(NUM_CLASSES, np.uint64)


class Metering:
    """All counters of one engine core.

    `generated_tokens` counts what was delivered to tokenizers; what lay behind a stop string and is
    not in the request's usage is counted in `overrun_tokens` as well.
    """

    def __init__(self, buckets: Buckets, max_tenants: int) -> None:
        """Start with all at 0; at most `max_tenants` − 1 tenants are told apart."""
        self.steps = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self.overrun_tokens = 0
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.preemptions = 0
        self.preemptions_by = np.zeros((len(PreemptionKind), len(PreemptionCause)), np.uint64)
        self.swapped_out_tokens = 0
        self.swapped_in_tokens = 0
        self.recomputed_after_swap_tokens = 0
        self.recomputed_tokens = 0
        self.finished = np.zeros(len(RequestStatus), np.uint64)
        self.rejections = np.zeros(len(RejectionReason), np.uint64)
        self.ignored_results = 0
        self.duplicate_requests = 0
        self.queue_time_by_class = Histogram(buckets.latency_s, NUM_CLASSES)
        self.queue_time_by_tenant = Histogram(buckets.latency_s, max_tenants)
        self.prefill_time = Histogram(buckets.latency_s)
        self.decode_time = Histogram(buckets.latency_s)
        self.inference_time = Histogram(buckets.latency_s)
        self.e2e_time = Histogram(buckets.latency_s)
        self.time_per_token = Histogram(buckets.gap_s)
        self.request_prompt_tokens = Histogram(buckets.tokens)
        self.request_generation_tokens = Histogram(buckets.tokens)
        self.request_max_tokens = Histogram(buckets.tokens)
        self.step_tokens = Histogram(buckets.step_tokens)
        self.step_time = Histogram(buckets.step_s)
        self.schedule_time = Histogram(buckets.step_s)  # observed by the loop, which has a clock
        self.cancel_reclaim = Histogram(buckets.reclaim_s)
        self.cancel_reclaim_steps = Histogram(buckets.reclaim_steps)
        self.cancel_reclaim_steps_max = 0
        self.last_reclaim_ns = 0
        self.tenants = TenantCounters(max_tenants)
        self.classes = ClassCounters()
        self._started = [  # columns by class, then by tenant; many times faster than arrays
            [counters.prompt_tokens.data, counters.cached_tokens.data]
            for counters in (self.classes, self.tenants)
        ]
        self._finished = self.finished.data
        self.tenant_rows = TenantRows(max_tenants)
        self.tenant_rows.on_reuse.append(self._forget_tenant)
        self.tenant_names = self.tenant_rows.names

    def know_tenants(self, tenants: Iterable[str]) -> None:
        """Give each of `tenants` its place: they are shown before they have asked for anything."""
        self.tenant_rows.know(tenants)

    def tenant_index(self, tenant: str) -> int:
        """Return the index in the arrays of `tenant`, which has asked for something."""
        return self.tenant_rows.row(tenant)

    def offer_rows(
        self, listed: Container[str], busy: Container[int], kept_ns: int, now_ns: int
    ) -> None:
        """Find whose rows others may have: those of tenants that are not `listed`, and those of
        which nothing was counted, but for the `busy` ones; see `TenantRows.offer`.
        """
        names = self.tenant_names
        idle = [index for index in range(OTHER + 1, len(names)) if index not in busy]
        gone = [index for index in idle if names[index] not in listed]
        are_used = self.tenants.are_used()
        unused = [index for index in idle if not are_used[index]]
        self.tenant_rows.offer(gone, unused, kept_ns, now_ns)

    def observe_queue_ns(self, tenant_index: int, traffic_class: int, duration_ns: int) -> None:
        """Count the wait of a request that has started, for its tenant and in its class."""
        self.queue_time_by_class.observe_ns(duration_ns, traffic_class)
        self.queue_time_by_tenant.observe_ns(duration_ns, tenant_index)

    def count_deadline_miss(self, tenant_index: int, traffic_class: int) -> None:
        """Count a promised first token that came late, or never."""
        self.classes.deadline_misses[traffic_class] += np.uint64(1)
        self.tenants.deadline_misses[tenant_index] += np.uint64(1)

    def count_generated(
        self, tenant_indexes: npt.NDArray[np.int32], traffic_classes: npt.NDArray[np.int32]
    ) -> None:
        """Count one generated token for each entry of both, int32[n]."""
        self.generated_tokens += len(tenant_indexes)
        counts = np.bincount(tenant_indexes).view(np.uint64)
        self.tenants.generated_tokens[: len(counts)] += counts
        self.classes.generated_tokens += np.bincount(traffic_classes, minlength=NUM_CLASSES).view(
            np.uint64
        )

    def count_started(
        self, tenant_index: int, traffic_class: int, prompt_tokens: int, cached_tokens: int
    ) -> None:
        """Count the prompt of a request that got into a step for the first time."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        for (prompts, cached), index in zip(
            self._started, (traffic_class, tenant_index), strict=True
        ):
            prompts[index] += prompt_tokens
            cached[index] += cached_tokens

    def count_prefix_query(self, num_tokens: int, num_hits: int) -> None:
        """Count a look into the prefix cache."""
        self.prefix_queries_tokens += num_tokens
        self.prefix_hits_tokens += num_hits

    def count_preemption(
        self, tenant_index: int, kind: PreemptionKind, cause: PreemptionCause
    ) -> None:
        """Count a running request that had to give memory back."""
        self.preemptions += 1
        self.preemptions_by[kind, cause] += np.uint64(1)
        self.tenants.preemptions[tenant_index] += np.uint64(1)

    def count_recomputed(self, tenant_index: int, num_tokens: int) -> None:
        """Count tokens that are computed a second time."""
        self.recomputed_tokens += num_tokens
        self.tenants.recomputed_tokens[tenant_index] += np.uint64(num_tokens)

    def count_finished(self, status: RequestStatus) -> None:
        """Count a terminal record."""
        self._finished[status] += 1

    def count_rejection(self, tenant_index: int, reason: RejectionReason) -> None:
        """Count a request that ended with `reason`."""
        self.rejections[reason] += np.uint64(1)
        self.tenants.rejections[tenant_index, reason] += np.uint64(1)

    def count_reclaim(self, closed_ns: int, now_ns: int, num_steps: int) -> None:
        """Count the time from a cancellation until memory and row were free again."""
        self.cancel_reclaim.observe_ns(now_ns - closed_ns)
        self.cancel_reclaim_steps.observe(num_steps)
        self.last_reclaim_ns = now_ns
        self.cancel_reclaim_steps_max = max(self.cancel_reclaim_steps_max, num_steps)

    def _forget_tenant(self, index: int) -> None:
        """Begin at 0 for the tenant that gets this index; the totals keep what was counted."""
        self.tenants.clear(index)
        self.queue_time_by_tenant.clear(index)
