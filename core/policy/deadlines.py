"""Until when waiting requests must have started, and how much work is due until when.

Owns: a heap on the latest start of each request, and the work of each class by deadline. Never
knows: why a deadline matters, what happens when it passes. Both change only when a request comes or
goes, in O(log n), and nothing is looked at a step but the top of the heap.

    LatestStarts   whose time is up?                          a heap with lazy deletion
    FenwickTree    Σ amounts up to an index                   (Fenwick 1994), sparse
    Demand         work due until then; which later deadlines does more work hurt?
"""

import heapq
from bisect import bisect_right, insort

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
        self._size = 1 << bits
        self._sums: dict[int, int] = {}  # by node; the sum of the entries that it covers

    def __len__(self) -> int:
        """Return the number of nodes that are not 0."""
        return len(self._sums)

    def add(self, index: int, amount: int) -> None:
        """Add `amount` to an entry."""
        node, sums = index + 1, self._sums
        assert 0 < node < self._size, index
        while node < self._size:
            total = sums.get(node, 0) + amount
            if total:
                sums[node] = total
            else:
                sums.pop(node, None)
            node += node & -node

    def prefix(self, index: int) -> int:
        """Return the sum of all entries up to `index`, itself included."""
        total, node = 0, index + 1
        while node > 0:
            total += self._sums.get(node, 0)
            node &= node - 1
        return total


class Demand:
    """Work by the deadline until which it is due, in buckets of BUCKET_NS."""

    def __init__(self) -> None:
        """Start with none."""
        self._tree = FenwickTree()
        self._counts: dict[int, int] = {}  # requests by bucket
        self._buckets: list[int] = []  # those with requests, in order

    def add(self, deadline_ns: int, work: int) -> None:
        """Add a request."""
        bucket = deadline_ns // BUCKET_NS
        self._tree.add(bucket, work)
        if bucket not in self._counts:
            insort(self._buckets, bucket)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def remove(self, deadline_ns: int, work: int) -> None:
        """Take out a request that was added with the same numbers."""
        bucket = deadline_ns // BUCKET_NS
        self._tree.add(bucket, -work)
        self._counts[bucket] -= 1
        if not self._counts[bucket]:
            del self._counts[bucket]
            del self._buckets[bisect_right(self._buckets, bucket) - 1]

    def due_by(self, deadline_ns: int) -> int:
        """Return the work due until `deadline_ns`, and all of that in its bucket."""
        return self._tree.prefix(deadline_ns // BUCKET_NS)

    def later(self, deadline_ns: int, limit: int) -> list[tuple[int, int]]:
        """Return (deadline, work due by then) of up to `limit` later buckets with requests.

        The deadline of a bucket is its beginning: none in it is due earlier.
        """
        first = bisect_right(self._buckets, deadline_ns // BUCKET_NS)
        chosen = self._buckets[first : first + limit]
        return [(bucket * BUCKET_NS, self._tree.prefix(bucket)) for bucket in chosen]

    def num_later(self, deadline_ns: int) -> int:
        """Return the number of later buckets with requests."""
        return len(self._buckets) - bisect_right(self._buckets, deadline_ns // BUCKET_NS)
