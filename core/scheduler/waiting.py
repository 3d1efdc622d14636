"""The waiting requests of the whole engine: how many, how long, in whose name.

Owns: the counts that bound the queue, the oldest wait, and telling the policy who waits. Never
knows: the order among them (the policy's), deadlines, rows. Requests that never started count
against the bounds; preempted ones had their admission and only wait for memory.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from core.drain_rate import DrainRate
from core.metering import Metering
from core.policy.base import Policy
from core.request import Request, RequestStatus
from core.tenancy.classes import NUM_CLASSES


class WaitingQueue:
    """Everyone who has no row: WAITING, PREEMPTED or SWAPPED."""

    def __init__(self, policy: Policy, metering: Metering) -> None:
        """Start empty."""
        self.num_waiting = 0
        self.waiting_tokens = 0
        self.num_preempted = 0
        self.num_swapped = 0
        self._policy = policy
        self._tenants = metering.tenants
        self._num_waiting_of_tenant = self._tenants.num_waiting.data  # faster than the arrays
        self._waiting_tokens_of_tenant = self._tenants.waiting_tokens.data
        self.num_waiting_by_flow = np.zeros(len(metering.tenants.requests) * NUM_CLASSES, np.int64)
        self._members: dict[Request, None] = {}
        self._never_started: dict[Request, None] = {}  # in the order of arrival here
        self._never_started_by_flow: defaultdict[int, dict[Request, None]] = defaultdict(dict)
        self._drain_rate = DrainRate()

    def __len__(self) -> int:
        """Return the number of requests without a row."""
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        """Tell whether `request` waits."""
        return request in self._members

    def add(self, request: Request) -> None:
        """Let `request` wait, by its status as new or as one that was preempted."""
        self._members[request] = None
        self._policy.add(request)
        if request.status is not RequestStatus.WAITING:
            self._count_preempted(request, 1)
            return
        self._never_started[request] = None
        self._never_started_by_flow[request.flow][request] = None
        self._count(request, 1)

    def lose_copies(self, request: Request) -> None:
        """A swapped `request` has lost what it had in host memory: it must be recomputed."""
        self._count_preempted(request, -1)
        request.move_to(RequestStatus.PREEMPTED)
        self._count_preempted(request, 1)

    def remove(self, request: Request, now_ns: int) -> None:
        """Take `request` out, before its status changes."""
        del self._members[request]
        self._policy.remove(request)
        if request.status is not RequestStatus.WAITING:
            self._count_preempted(request, -1)
            return
        del self._never_started[request]
        del self._never_started_by_flow[request.flow][request]
        self._count(request, -1)
        self._drain_rate.observe(request.max_length, now_ns)

    def members(self) -> list[Request]:
        """Return all requests without a row, in no particular order."""
        return list(self._members)

    def oldest_arrival_ns(self) -> int:
        """Return when the request that has waited longest for its start arrived; 0 = none waits."""
        return next((request.arrival_ns for request in self._never_started), 0)

    def oldest_arrivals_ns(self) -> Iterator[tuple[int, int]]:
        """Yield each flow that waits, and when its request that has waited longest arrived."""
        for flow, waiting in self._never_started_by_flow.items():
            if waiting:
                yield flow, next(iter(waiting)).arrival_ns

    def num_waiting_of(self, tenant_index: int) -> int:
        """Return how many requests of a tenant wait for their start."""
        return self._num_waiting_of_tenant[tenant_index]

    def waiting_tokens_of(self, tenant_index: int) -> int:
        """Return prompt + max_tokens of these, tokens."""
        return self._waiting_tokens_of_tenant[tenant_index]

    def retry_after_ms(self, request: Request, now_ns: int) -> int:
        """Return when the queue will probably have room for `request`, ms."""
        return self._drain_rate.retry_after_ms(request.max_length, self.waiting_tokens, now_ns)

    def check_integrity(self) -> None:
        """Assert that the counts are those of the members."""
        statuses = [request.status for request in self._members]
        assert statuses.count(RequestStatus.PREEMPTED) == self.num_preempted
        assert statuses.count(RequestStatus.WAITING) == self.num_waiting
        assert int(self.num_waiting_by_flow.sum()) == self.num_waiting
        assert statuses.count(RequestStatus.SWAPPED) == self.num_swapped
        assert self.num_waiting + self.num_preempted + self.num_swapped == len(statuses)
        assert sum(request.max_length for request in self._never_started) == self.waiting_tokens
        assert int(self._tenants.num_waiting.sum()) == self.num_waiting
        assert int(self._tenants.num_preempted.sum()) == self.num_preempted
        assert int(self._tenants.num_swapped.sum()) == self.num_swapped
        self._policy.check_integrity()

    def _count_preempted(self, request: Request, sign: int) -> None:
        if request.status is RequestStatus.SWAPPED:
            self.num_swapped += sign
            self._tenants.num_swapped[request.tenant_index] += sign
        else:
            self.num_preempted += sign
            self._tenants.num_preempted[request.tenant_index] += sign

    def _count(self, request: Request, sign: int) -> None:
        num_tokens = sign * request.max_length
        self.num_waiting += sign
        self.num_waiting_by_flow[request.flow] += sign
        self.waiting_tokens += num_tokens
        self._num_waiting_of_tenant[request.tenant_index] += sign
        self._waiting_tokens_of_tenant[request.tenant_index] += num_tokens
