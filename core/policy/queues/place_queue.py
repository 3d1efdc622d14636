"""Waiting requests in the order of their places: a heap with lazy deletion.

Owns: which requests wait here and the order between them. Never knows: what a place means. Adding
and removing cost O(log n) at most; a removed request stays in the heap as a stale entry until it
surfaces or stale entries outnumber the live ones.
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import islice

from core.request import Request

Place = tuple[int, ...]
PlaceOf = Callable[[Request], Place]

MIN_STALE_ENTRIES = 256


class PlaceQueue:
    """A priority queue of requests; the smallest place comes first. A place never changes."""

    def __init__(self, place: PlaceOf) -> None:
        """Start empty; `place(request)` must be unique and constant while the request lives."""
        self._place = place
        self._heap: list[tuple[Place, Request]] = []
        self._in_heap: set[Request] = set()  # requests with an entry, live or stale
        self._waiting: set[Request] = set()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    @property
    def num_entries(self) -> int:
        """Entries in the heap, stale ones included."""
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        """Yield the waiting requests, in no order."""
        return iter(self._waiting)

    def __contains__(self, request: Request) -> bool:
        """Tell whether `request` waits here."""
        return request in self._waiting

    def add(self, request: Request) -> None:
        """Let `request` wait at its place; a stale entry comes back to life."""
        assert request not in self._waiting, request.request_id
        self._waiting.add(request)
        if request not in self._in_heap:
            self._in_heap.add(request)
            heapq.heappush(self._heap, (self._place(request), request))

    def remove(self, request: Request) -> None:
        """Take a waiting `request` out."""
        self._waiting.remove(request)
        if len(self._heap) > 2 * len(self._waiting) + MIN_STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            self._in_heap = set(self._waiting)
            heapq.heapify(self._heap)

    def first(self, count: int) -> list[Request]:
        """Return the first `count` waiting requests, in order."""
        return list(islice(self._walk(), count))

    def peek(self) -> Request | None:
        """Return the first waiting request."""
        self._drop_stale_top()
        return self._heap[0][1] if self._heap else None

    def rank(self, request: Request) -> int:
        """Return how many wait before `request`; linear in their number."""
        mine = self._place(request)
        return sum(self._place(other) < mine for other in self._waiting)

    def check_integrity(self) -> None:
        """Assert that every waiting request has exactly one entry."""
        entries = {request for _, request in self._heap}
        assert len(entries) == len(self._heap), "a request has two entries"
        assert self._waiting <= self._in_heap == entries

    def _walk(self) -> Iterator[Request]:
        """Yield waiting requests in order without taking any out, by exploring the heap's tree."""
        self._drop_stale_top()
        frontier = [(self._heap[0], 0)] if self._heap else []
        while frontier:
            (_, request), index = heapq.heappop(frontier)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(self._heap):
                    heapq.heappush(frontier, (self._heap[child], child))
            if request in self._waiting:
                yield request

    def _drop_stale_top(self) -> None:
        while self._heap and self._heap[0][1] not in self._waiting:
            _, request = heapq.heappop(self._heap)
            self._in_heap.remove(request)
