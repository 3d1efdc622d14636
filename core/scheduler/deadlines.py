"""When requests must have started or ended: one heap for all of them.

Owns: the pending deadlines. Never knows: what happens when one passes. A deadline that no longer
matters (its request has started, or ended) stays as a stale entry until it surfaces, or until the
heap has doubled and is swept.
"""

import heapq
from enum import IntEnum

from core.request import Request, RequestStatus

MIN_SWEEP_SIZE = 1024


class DeadlineKind(IntEnum):
    """What must have happened by then."""

    START = 0
    END = 1


class DeadlineHeap:
    """Deadlines in order of time, ns."""

    def __init__(self) -> None:
        """Start with none."""
        self._heap: list[tuple[int, int, DeadlineKind, Request]] = []
        self._sweep_size = MIN_SWEEP_SIZE
        self._count = 0

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._heap)

    def add(self, when_ns: int, kind: DeadlineKind, request: Request) -> None:
        """Remember one deadline."""
        self._count += 1
        heapq.heappush(self._heap, (when_ns, self._count, kind, request))
        if len(self._heap) > self._sweep_size:
            self._heap = [entry for entry in self._heap if _matters(entry[2], entry[3])]
            heapq.heapify(self._heap)
            self._sweep_size = max(MIN_SWEEP_SIZE, 2 * len(self._heap))

    def pop_due(self, now_ns: int) -> list[tuple[DeadlineKind, Request]]:
        """Take out what is due and still matters, earliest first."""
        due = []
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, kind, request = heapq.heappop(self._heap)
            if _matters(kind, request):
                due.append((kind, request))
        return due

    def next_ns(self) -> int | None:
        """Return the earliest deadline that still matters."""
        while self._heap and not _matters(self._heap[0][2], self._heap[0][3]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


def _matters(kind: DeadlineKind, request: Request) -> bool:
    if kind is DeadlineKind.START:
        return request.status is RequestStatus.WAITING
    return not request.status.is_finished
