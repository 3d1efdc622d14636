"""Until when waiting requests must have started, and how much work is due until when.

Owns: a heap on the latest start of each request, and work by when it is due. Never
knows: why a deadline matters, what happens when it passes. Both change only when a request comes or
goes, in O(log n), and nothing is looked at a step but the top of the heap.

    LatestStarts   whose time is up?                          a heap with lazy deletion
    FenwickTree    Σ amounts up to an index                   (Fenwick 1994), sparse
    Demand         work due until then                        in buckets
"""

import heapq

from core.request import Request

BUCKET_NS = 50_000_000
TREE_BITS = 40  # of an index: 2^40 buckets are more than a thousand years
MIN_SWEEP_SIZE = 1024


class LatestStarts:
    """Waiting requests by the time until which they must start; it may be changed."""

    def __init__(self) -> None:
        """Start empty."""
        self._heap: list[tuple[int, int, Request]] = []
        self._times: dict[Request, int] = {}
        self._count = 0

    def __len__(self) -> int:
        """Return the number of them."""
        return len(self._times)

    def __contains__(self, request: Request) -> bool:
        """Tell whether `request` is here."""
        return request in self._times

    @property
    def num_entries(self) -> int:
        """Entries in the heap, stale ones included."""
        return len(self._heap)

    def put(self, request: Request, when_ns: int) -> None:
        """Add `request`, or change its time."""
        self._times[request] = when_ns
        self._count += 1
        heapq.heappush(self._heap, (when_ns, self._count, request))
        if len(self._heap) > 2 * len(self._times) + MIN_SWEEP_SIZE:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    def discard(self, request: Request) -> None:
        """Forget `request`, if it is here."""
        self._times.pop(request, None)

    def pop_before(self, now_ns: int) -> list[Request]:
        """Take out all whose time has passed, the earliest first."""
        passed = []
        while self._heap and self._heap[0][0] < now_ns:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                del self._times[entry[2]]
                passed.append(entry[2])
        return passed

    def _is_live(self, entry: tuple[int, int, Request]) -> bool:
        return self._times.get(entry[2]) == entry[0]


class FenwickTree:
    """Sums over prefixes of a very long array of which few entries are not 0."""

    def __init__(self, bits: int = TREE_BITS) -> None:
        """Start with zeros, 2^bits of them."""
        self._num_entries = 1 << bits
        self._size = 1  # entries that the nodes reach, a power of two: it grows with the indexes
        self._sums: dict[int, int] = {}  # by node; the sum of the entries that it covers

    def __len__(self) -> int:
        """Return the number of nodes that are not 0."""
        return len(self._sums)

    def add(self, index: int, amount: int) -> None:
        """Add `amount` to an entry."""
        node, sums = index + 1, self._sums
        assert 0 < node < self._num_entries, index
        while self._size < node:
            self._double()
        while node <= self._size:
            total = sums.get(node, 0) + amount
            if total:
                sums[node] = total
            else:
                sums.pop(node, None)
            node += node & -node

    def prefix(self, index: int) -> int:
        """Return the sum of all entries up to `index`, itself included."""
        total, node = 0, min(index + 1, self._size)
        while node > 0:
            total += self._sums.get(node, 0)
            node &= node - 1
        return total

    def _double(self) -> None:
        """Reach twice as far: the last node covers all entries."""
        total = self._sums.get(self._size, 0)
        self._size *= 2
        if total:
            self._sums[self._size] = total


class Demand:
    """Work by when it is due, in buckets of BUCKET_NS."""

    def __init__(self) -> None:
        """Start with none."""
        self._tree = FenwickTree()

    def add(self, due_ns: int, work: int) -> None:
        """Add work, or take back what was added with the same time."""
        self._tree.add(due_ns // BUCKET_NS, work)

    def due_by(self, due_ns: int) -> int:
        """Return the work due until `due_ns`, and all of that in its bucket."""
        return self._tree.prefix(due_ns // BUCKET_NS)
