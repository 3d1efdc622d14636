"""What the scheduler counts: totals, tenants and histograms, as plain integers and numpy arrays.

Owns: every counter and gauge of the engine core, under the names that the scheduler's board page
uses. Never knows: pages, clocks, how a number is shown. Counters only grow. A tenant gets an index
at its first request and keeps it; when all are taken, further tenants share the index OTHER.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.request import RequestStatus
from core.tenancy import NUM_CLASSES

OTHER = 0
OTHER_NAME = "_other"


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


@dataclass(frozen=True, slots=True)
class Buckets:
    """Upper bounds of histogram buckets, seconds, ascending; the last one, +Inf, is implied."""

    latency_s: tuple[float, ...]
    step_s: tuple[float, ...]
    reclaim_s: tuple[float, ...]


class Histogram:
    """How often a duration fell into each bucket (`counts`, uint64[n + 1]), and the sum."""

    __slots__ = ("_bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """Start empty."""
        self._bounds_s = bounds_s
        self.counts = np.zeros(len(bounds_s) + 1, np.uint64)
        self.sum_s = 0.0

    def observe_ns(self, duration_ns: int) -> None:
        """Count one duration; a negative one (clocks of two processes) counts as 0."""
        duration_s = max(0, duration_ns) / NS_PER_S
        self.counts[bisect_left(self._bounds_s, duration_s)] += np.uint64(1)
        self.sum_s += duration_s


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
        self.rejections = np.zeros((max_tenants, len(RejectionReason)), np.uint64)


class Metering:
    """All counters of one engine core.

    `generated_tokens` counts what was delivered to tokenizers; what lay behind a stop string and is
    not in the request's usage is counted in `overrun_tokens` as well.
    """

    def __init__(self, buckets: Buckets, max_tenants: int) -> None:
        """Start with all at 0; at most `max_tenants` − 1 tenants are told apart."""
        assert max_tenants > 1, max_tenants
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
        self.queue_time = Histogram(buckets.latency_s)
        self.queue_time_by_class = [Histogram(buckets.latency_s) for _ in range(NUM_CLASSES)]
        self.prefill_time = Histogram(buckets.latency_s)
        self.decode_time = Histogram(buckets.latency_s)
        self.e2e_time = Histogram(buckets.latency_s)
        self.step_time = Histogram(buckets.step_s)
        self.schedule_time = Histogram(buckets.step_s)  # observed by the loop, which has a clock
        self.cancel_reclaim = Histogram(buckets.reclaim_s)
        self.cancel_reclaim_steps_max = 0
        self.last_reclaim_ns = 0
        self.tenants = TenantCounters(max_tenants)
        self.tenant_names = [OTHER_NAME]
        self._max_tenants = max_tenants
        self._tenant_indexes: dict[str, int] = {}

    def know_tenants(self, tenants: Iterable[str]) -> None:
        """Give each of `tenants` its place: they are shown before they have asked for anything."""
        for tenant in tenants:
            self.tenant_index(tenant)

    def tenant_index(self, tenant: str) -> int:
        """Return the index of `tenant` in the arrays."""
        index = self._tenant_indexes.get(tenant)
        if index is not None:
            return index
        if len(self.tenant_names) == self._max_tenants:
            return OTHER
        index = len(self.tenant_names)
        self._tenant_indexes[tenant] = index
        self.tenant_names.append(tenant)
        return index

    def observe_queue_ns(self, traffic_class: int, duration_ns: int) -> None:
        """Count the wait of a request that has started, in all and in its class."""
        self.queue_time.observe_ns(duration_ns)
        self.queue_time_by_class[traffic_class].observe_ns(duration_ns)

    def count_generated(self, tenant_indexes: npt.NDArray[np.int32]) -> None:
        """Count one generated token for each entry of `tenant_indexes`, int32[n]."""
        self.generated_tokens += len(tenant_indexes)
        counts = np.bincount(tenant_indexes, minlength=len(self.tenant_names))
        self.tenants.generated_tokens[: len(counts)] += counts.astype(np.uint64)

    def count_started(self, tenant_index: int, prompt_tokens: int, cached_tokens: int) -> None:
        """Count the prompt of a request that got into a step for the first time."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.tenants.prompt_tokens[tenant_index] += np.uint64(prompt_tokens)
        self.tenants.cached_tokens[tenant_index] += np.uint64(cached_tokens)

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
        self.finished[status] += np.uint64(1)

    def count_rejection(self, tenant_index: int, reason: RejectionReason) -> None:
        """Count a request that ended with `reason`."""
        self.rejections[reason] += np.uint64(1)
        self.tenants.rejections[tenant_index, reason] += np.uint64(1)

    def count_reclaim(self, closed_ns: int, now_ns: int, num_steps: int) -> None:
        """Count the time from a cancellation until memory and row were free again."""
        self.cancel_reclaim.observe_ns(now_ns - closed_ns)
        self.last_reclaim_ns = now_ns
        self.cancel_reclaim_steps_max = max(self.cancel_reclaim_steps_max, num_steps)
