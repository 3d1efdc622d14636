"""The waiting requests of one flow: a queue for each adapter, and equal shares among these.

Owns: who is first in a flow. Never knows: other flows. Within the window of the least served
adapter the smallest place is first; a tenant that uses no adapters, or one, has one queue in the
order of places.
"""

from collections.abc import Iterator
from itertools import chain

from core.policy.queues.fair_queue import FairQueue
from core.policy.queues.place_queue import PlaceOf, PlaceQueue
from core.request import Request

MAX_ADAPTERS = 64  # told apart in a flow; further ones share the last queue


class AdapterQueues:
    """The queues of one flow."""

    def __init__(self, place: PlaceOf) -> None:
        """Start empty; `place(request)` must be unique and constant while the request lives."""
        self._place = place
        self.is_shared = False  # by several adapters: charges decide who is first
        self._queues = [PlaceQueue(place)]
        self._indexes: dict[str, int] = {}  # of adapters
        self._shares = FairQueue()
        self._shares.resize([1.0])

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return sum(len(queue) for queue in self._queues)

    def __iter__(self) -> Iterator[Request]:
        """Yield the waiting requests, in no order."""
        return chain.from_iterable(self._queues)

    def add(self, request: Request) -> None:
        """Let `request` wait."""
        index = self._index(request.adapter)
        if not len(self._queues[index]):
            self._shares.wake(index)
        self._queues[index].add(request)

    def remove(self, request: Request) -> None:
        """Take a waiting `request` out."""
        self._queues[self._index(request.adapter)].remove(request)

    def charge(self, adapter: str, units: int) -> bool:
        """Charge `units` to an adapter; True = another request may be first now."""
        if len(self._queues) == 1:
            return False
        self._shares.charge(self._index(adapter), units)
        return True

    def peek(self, window: int) -> Request | None:
        """Return the first waiting request; an adapter may be `window` units ahead of another."""
        if len(self._queues) == 1:
            return self._queues[0].peek()
        waiting = [index for index, queue in enumerate(self._queues) if len(queue)]
        self._shares.advance(waiting)
        within = [index for index in waiting if self._shares.is_within(index, window)]
        heads = [self._queues[index].peek() for index in within]
        return min((head for head in heads if head is not None), key=self._place, default=None)

    def first(self, count: int) -> list[Request]:
        """Return the first `count` waiting requests by their places."""
        if len(self._queues) == 1:
            return self._queues[0].first(count)
        firsts = [request for queue in self._queues for request in queue.first(count)]
        return sorted(firsts, key=self._place)[:count]

    def rank(self, request: Request) -> int:
        """Return how many wait at smaller places than `request`; linear in their number."""
        return sum(queue.rank(request) for queue in self._queues)

    def check_integrity(self) -> None:
        """Assert that every queue is whole."""
        for queue in self._queues:
            queue.check_integrity()

    def _index(self, adapter: str) -> int:
        index = self._indexes.get(adapter)
        if index is None:
            index = self._indexes[adapter] = min(len(self._indexes), MAX_ADAPTERS - 1)
            if index == len(self._queues):
                self._queues.append(PlaceQueue(self._place))
                self.is_shared = True
                self._shares.resize([1.0] * len(self._queues))
        return index
