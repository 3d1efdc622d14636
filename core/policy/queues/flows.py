"""Waiting requests by flow, and what each flow has running.

Owns: a queue for each flow (one tenant in one class), the due time of every flow's head as one
array, the counts of running requests, and who asks for more than can be had. Never knows: which
flow is next. A flood of one flow hides no other.

A client may order the requests of its flow by `priority`: one that comes is due behind those that
wait with smaller ones and before those with larger ones. Between flows only due times count: who
goes before another of its flow has the place of that one, and windows bound what that gains.
"""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.policy.queues.adapter_queues import AdapterQueues
from core.policy.queues.place_queue import Place
from core.request import Request
from core.tenancy.classes import NUM_CLASSES

AnyType = TypeVar("AnyType", bound=np.generic)
CROWDING_NS = 5 * NS_PER_S  # after the last request that was refused because it would be late
NOBODY_NS = np.iinfo(np.int64).max
NO_PROMISE_NS = 1 << 61  # added to the arrival of a request without a deadline


def due_ns(request: Request) -> int:
    """Return until when to start, or when the first token is due if that is not known; without a
    promise after all promises, by arrival.
    """
    return request.start_by_ns or request.ttft_deadline_ns or NO_PROMISE_NS + request.arrival_ns


def place(request: Request) -> Place:
    """Return where `request` stands within its flow."""
    return (due_ns(request), request.arrival_ns, request.order)


class Flows:
    """All flows by index, tenant index × 4 + class; they appear with their first request."""

    def __init__(self) -> None:
        """Start without flows."""
        self.due_ns = np.zeros(0, np.int64)  # of the head; NOBODY_NS if nobody waits
        self.num_waiting = np.zeros(0, np.int64)
        self._num_waiting_of_class = [0] * NUM_CLASSES
        self.num_running = np.zeros(0, np.int64)
        self.num_protected = np.zeros(0, np.int64)  # of those that wait
        self.sworn: set[Request] = set()  # those that run and were protected when they started
        self._refused_ns = np.zeros(0, np.int64)  # the last time, 0 = never
        self._last_refused_ns = 0  # of all flows
        self.tenant_names: list[str] = []  # by tenant index; "" = it has not appeared
        self.num_tenants_seen = 0  # another number, other names
        self.adapter_window = 0  # units by which an adapter may be ahead within a flow
        self._queues: list[AdapterQueues] = []
        self._num_prioritized = np.zeros(0, np.int64)  # of those that wait, with a priority but 0
        self._heads: list[Request | None] = []  # as they were when their queues last changed

    def __len__(self) -> int:
        """Return the number of flows."""
        return len(self._queues)

    def know(self, request: Request) -> bool:
        """Make sure that the flow of `request` is here; True = its tenant is new."""
        index, names = request.tenant_index, self.tenant_names
        if index < len(names) and names[index]:
            return False
        missing = max(0, index + 1 - len(names))
        names += [""] * missing
        names[index] = request.tenant
        self.num_tenants_seen += 1
        count = missing * NUM_CLASSES
        self._queues += [AdapterQueues(place) for _ in range(count)]
        self._heads += [None] * count
        self.due_ns = np.concatenate([self.due_ns, np.full(count, NOBODY_NS)])
        self.num_waiting = np.concatenate([self.num_waiting, np.zeros(count, np.int64)])
        self.num_running = np.concatenate([self.num_running, np.zeros(count, np.int64)])
        self.num_protected = np.concatenate([self.num_protected, np.zeros(count, np.int64)])
        self._refused_ns = np.concatenate([self._refused_ns, np.zeros(count, np.int64)])
        self._num_prioritized = np.concatenate([self._num_prioritized, np.zeros(count, np.int64)])
        return True

    def forget_tenant(self, index: int) -> None:
        """Let it be as if a tenant of which nothing waits or runs had never appeared."""
        if index >= len(self.tenant_names):
            return
        self.tenant_names[index] = ""
        flows = slice(index * NUM_CLASSES, (index + 1) * NUM_CLASSES)
        assert not self.num_waiting[flows].any(), index
        assert not self.num_running[flows].any(), index
        self._queues[flows] = [AdapterQueues(place) for _ in range(NUM_CLASSES)]
        self._refused_ns[flows] = 0

    def ordered_due_ns(self, request: Request, wanted_ns: int) -> int:
        """Return when a new `request` of a known flow is to be due: `wanted_ns`, or the nearest
        time that keeps the order of priorities, ns; where none does, behind those with smaller
        ones. Who was promised something stays before who was not. Linear in the number that waits
        there, if any of them has a priority.
        """
        if not request.priority and not self._num_prioritized[request.flow]:
            return wanted_ns
        least_ns, most_ns = 1, NOBODY_NS
        for each in self._queues[request.flow]:
            each_ns = due_ns(each)
            if (each_ns < NO_PROMISE_NS) != (wanted_ns < NO_PROMISE_NS):
                continue
            if each.priority < request.priority:
                least_ns = max(least_ns, each_ns + 1)
            elif each.priority > request.priority:
                most_ns = min(most_ns, each_ns - 1)
        return max(min(wanted_ns, most_ns), least_ns)

    def add(self, request: Request) -> None:
        """Let `request` wait; its flow is known."""
        flow = request.flow
        self._queues[flow].add(request)
        self._num_prioritized[flow] += request.priority != 0
        self.num_waiting[flow] += 1
        self._num_waiting_of_class[request.traffic_class] += 1
        self._look_at(flow)

    def remove(self, request: Request) -> None:
        """Take a waiting `request` out."""
        flow = request.flow
        self._queues[flow].remove(request)
        self._num_prioritized[flow] -= request.priority != 0
        self.num_waiting[flow] -= 1
        self._num_waiting_of_class[request.traffic_class] -= 1
        self._look_at(flow)

    def refused(self, request: Request, now_ns: int) -> None:
        """Take in that `request` was refused because it would have been late."""
        self._refused_ns[request.flow] = now_ns
        self._last_refused_ns = max(self._last_refused_ns, now_ns)

    def crowding(self, now_ns: int) -> npt.NDArray[np.bool_] | None:
        """Return which flows had requests refused lately, bool[flows], None if there is none: that
        their next ones are due is their own doing, unless one of them was given the word that it
        will be in time.
        """
        begin_ns = max(0, now_ns - CROWDING_NS)
        if self._last_refused_ns <= begin_ns:
            return None
        recent = self._refused_ns > begin_ns
        crowding: npt.NDArray[np.bool_] = recent & (self.num_protected == 0)
        return crowding if np.count_nonzero(crowding) else None

    def charge(self, request: Request, units: int) -> None:
        """Charge `units` to the adapter of `request` within its flow."""
        if units and self._queues[request.flow].charge(request.adapter, units):
            self._look_at(request.flow)

    def head(self, flow: int) -> Request | None:
        """Return the first waiting request of a flow."""
        queue = self._queues[flow]
        return queue.peek(self.adapter_window) if queue.is_shared else self._heads[flow]

    def first(self, flow: int, count: int) -> list[Request]:
        """Return the first `count` waiting requests of a flow, in order."""
        return self._queues[flow].first(count)

    def rank(self, request: Request) -> int:
        """Return how many of its flow wait before `request`; linear in their number."""
        return self._queues[request.flow].rank(request)

    def has_waiting(self) -> bool:
        """Tell whether any request waits."""
        return any(self._num_waiting_of_class)

    def waiting_of_class(self, traffic_class: int) -> int:
        """Return how many requests of a class wait."""
        return self._num_waiting_of_class[traffic_class]

    def by_class(self, array: npt.NDArray[AnyType]) -> npt.NDArray[AnyType]:
        """Return an array over flows as [tenants, classes]."""
        return array.reshape(-1, NUM_CLASSES)

    def check_integrity(self) -> None:
        """Assert that heads and counts are those of the queues."""
        for flow, queue in enumerate(self._queues):
            queue.check_integrity()
            assert len(queue) == self.num_waiting[flow], flow
            assert sum(each.priority != 0 for each in queue) == self._num_prioritized[flow], flow
            head = self.head(flow)
            assert head is queue.peek(self.adapter_window), flow
            assert self.due_ns[flow] == (NOBODY_NS if head is None else due_ns(head)), flow
        by_class = self.by_class(self.num_waiting).sum(axis=0)
        assert by_class.tolist() == self._num_waiting_of_class

    def _look_at(self, flow: int) -> None:
        head = self._heads[flow] = self._queues[flow].peek(self.adapter_window)
        self.due_ns[flow] = NOBODY_NS if head is None else due_ns(head)
