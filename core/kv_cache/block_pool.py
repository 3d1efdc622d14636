"""The blocks of one replica's KV cache: what each is, who holds it, and which go next.

Owns: kind, reference counts and holder of every block, and the order in which evictable ones go.
Never knows: what is in a block, requests, digests. Every block is of one kind:

    kind        references                    leaves it by
    FREE        0                             allocate
    HELD        > 0, not all of them fenced   fence, release
    FENCED      > 0, all of them fenced       release (the plan was acked), acquire (a prefix hit)
    EVICTABLE   0, its content is cached      acquire (a prefix hit), allocate (oldest first)

A fenced reference belongs to a request that is gone while a plan in flight still names the block.
Evictable blocks form an intrusive doubly linked list, oldest first. Free blocks need no list: the
map of kinds is searched for runs, because attention over contiguous blocks is measurably faster;
the search starts behind the last run and leaves room for its growth.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

# When free blocks run out, so much of the pool is evicted at once: there are runs again to choose.
EVICTION_SHARE = 1 / 64
MAX_EVICTION_BATCH = 32


NO_BLOCK = -1


class BlockKind(IntEnum):
    """What a block is; the value is its byte in the map of kinds."""

    FREE = 0
    HELD = 1
    FENCED = 2
    EVICTABLE = 3


# The same as plain integers, for the paths that every step takes: enum members are slow to look up.
FREE, HELD, FENCED, EVICTABLE = (int(kind) for kind in BlockKind)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Blocks in the order to use them, and the blocks whose cached content was lost for it."""

    block_ids: list[int]
    evicted: list[int]


@dataclass(frozen=True, slots=True)
class BlockPoolStatistics:
    """Numbers of blocks by kind."""

    num_blocks: int
    num_free: int
    num_held: int
    num_fenced: int
    num_evictable: int


class BlockPool:
    """`num_blocks` blocks with ids 0 … num_blocks − 1."""

    def __init__(self, num_blocks: int) -> None:
        """Start with all blocks free."""
        assert num_blocks > 0, num_blocks
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_fenced = 0
        self.num_evictable = 0
        self.held_by: defaultdict[int, int] = defaultdict(int)  # flow → blocks it holds
        self._kinds = bytearray(num_blocks)
        self._cached = bytearray(num_blocks)
        self._references = _zeros(num_blocks)
        self._fenced_references = _zeros(num_blocks)
        self._holders = _zeros(num_blocks)
        self._newer = array("i", [num_blocks]) * (
            num_blocks + 1
        )  # the last entry is the list's head
        self._older = array("i", [num_blocks]) * (num_blocks + 1)
        self._search_from = 0
        self._too_long = num_blocks + 1  # no free run is that long, as far as is known
        self._eviction_batch = min(MAX_EVICTION_BATCH, int(EVICTION_SHARE * num_blocks))

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: a warm cache is not pressure."""
        return self.num_free + self.num_evictable

    def kind(self, block_id: int) -> BlockKind:
        """Return what `block_id` is."""
        return BlockKind(self._kinds[block_id])

    def references(self, block_id: int) -> int:
        """Return the number of references to `block_id`."""
        return self._references[block_id]

    def num_references(self) -> int:
        """Return the references to all blocks together."""
        return sum(self._references)

    def count_evictable(self, block_ids: Iterable[int]) -> int:
        """Return how many of `block_ids` nobody holds."""
        return sum(self._kinds[block_id] == EVICTABLE for block_id in block_ids)

    def is_cached(self, block_id: int) -> bool:
        """Tell whether the content of `block_id` can be found again."""
        return bool(self._cached[block_id])

    def allocate(
        self, count: int, holder: int, *, after: int = NO_BLOCK, room: int = 0
    ) -> Allocation:
        """Hold `count` ≤ num_available blocks for tenant `holder`, in runs as long as there are.

        `after` is the block they continue; behind a new run `room` blocks are left free if there
        is a place for that.
        """
        assert 0 <= count <= self.num_available, (count, self.num_available)
        evicted: list[int] = []
        if count > self.num_free:
            wanted = max(count - self.num_free, min(self._eviction_batch, self.num_evictable))
            evicted = [self._evict_oldest() for _ in range(wanted)]
        block_ids = self._continue_run(after, count)
        if len(block_ids) < count:
            self._take_runs(block_ids, count, room)
        for block_id in block_ids:
            self._references[block_id] = 1
            self._holders[block_id] = holder
        self.held_by[holder] += count
        return Allocation(block_ids, evicted)

    def extend(self, after: int, holder: int) -> int:
        """Hold the block behind `after` for `holder` if it is free; return it or NO_BLOCK."""
        block_id = after + 1
        if block_id == self.num_blocks or self._kinds[block_id] != FREE:
            return NO_BLOCK
        self._kinds[block_id] = HELD
        self._references[block_id] = 1
        self._holders[block_id] = holder
        self.held_by[holder] += 1
        self.num_free -= 1
        return block_id

    def acquire(self, block_ids: Iterable[int], holder: int) -> None:
        """Add a reference of tenant `holder` to each of `block_ids`, which hold cached content."""
        for block_id in block_ids:
            kind = self._kinds[block_id]
            assert kind != FREE, block_id
            if kind == EVICTABLE:
                self._unlink(block_id)
                self._holders[block_id] = holder
                self.held_by[holder] += 1
            elif kind == FENCED:
                self.num_fenced -= 1
            self._kinds[block_id] = HELD
            self._references[block_id] += 1

    def fence(self, block_ids: Iterable[int]) -> None:
        """Mark one reference to each of `block_ids` as the last word of a plan in flight."""
        for block_id in block_ids:
            self._fenced_references[block_id] += 1
            fenced, references = self._fenced_references[block_id], self._references[block_id]
            assert fenced <= references, (block_id, fenced, references)
            if fenced == references:
                self._kinds[block_id] = FENCED
                self.num_fenced += 1

    def release(self, block_ids: list[int], *, fenced: bool = False) -> None:
        """Drop one (`fenced`) reference to each of a request's blocks; the last go first."""
        for block_id in reversed(block_ids):
            assert self._references[block_id] > 0, block_id
            self._references[block_id] -= 1
            if fenced:
                self._fenced_references[block_id] -= 1
            if self._references[block_id] == 0:
                self._let_go(block_id)
            elif not fenced and self._fenced_references[block_id] == self._references[block_id]:
                self._kinds[block_id] = FENCED
                self.num_fenced += 1

    def set_cached(self, block_id: int, cached: bool) -> None:
        """Say whether the content of `block_id` can be found again."""
        self._cached[block_id] = cached
        if not cached and self._kinds[block_id] == EVICTABLE:
            self._unlink(block_id)
            self._set_free(block_id)

    def statistics(self) -> BlockPoolStatistics:
        """Return the numbers of blocks by kind."""
        held = self.num_blocks - self.num_free - self.num_fenced - self.num_evictable
        return BlockPoolStatistics(
            self.num_blocks, self.num_free, held, self.num_fenced, self.num_evictable
        )

    def check_integrity(self) -> None:
        """Assert that kinds, references, counts and eviction order agree; linear in the blocks."""
        kinds = np.frombuffer(self._kinds, np.uint8)
        references = np.frombuffer(self._references, np.int32)
        fenced = np.frombuffer(self._fenced_references, np.int32)
        counts = np.bincount(kinds, minlength=len(BlockKind))
        assert counts[FREE] == self.num_free, (counts, self.num_free)
        assert counts[FENCED] == self.num_fenced, (counts, self.num_fenced)
        assert counts[EVICTABLE] == self.num_evictable, (counts, self.num_evictable)
        in_use = (kinds == HELD) | (kinds == FENCED)
        assert np.array_equal(references > 0, in_use)
        assert np.array_equal((fenced == references) & in_use, kinds == FENCED)
        assert bool(np.all(fenced <= references))
        cached = np.frombuffer(self._cached, np.uint8) != 0
        assert not np.any(cached & (kinds == FREE))
        assert not np.any(~cached & (kinds == EVICTABLE))
        held = np.bincount(np.frombuffer(self._holders, np.int32)[in_use])
        assert {i: int(n) for i, n in enumerate(held) if n} == {
            i: n for i, n in self.held_by.items() if n
        }
        assert bytes(self._too_long) not in self._kinds, self._too_long
        self._check_eviction_order()

    def _check_eviction_order(self) -> None:
        head = self.num_blocks
        length, block_id = 0, self._newer[head]
        while block_id != head:
            assert self._kinds[block_id] == EVICTABLE, block_id
            assert self._older[self._newer[block_id]] == block_id, block_id
            length, block_id = length + 1, self._newer[block_id]
        assert length == self.num_evictable, (length, self.num_evictable)

    def _continue_run(self, after: int, count: int) -> list[int]:
        """Take up to `count` free blocks directly behind `after`."""
        if after < 0:
            return []
        end = after + 1
        last = min(self.num_blocks, end + count)
        while end < last and self._kinds[end] == FREE:
            end += 1
        return self._take(after + 1, end)

    def _take_runs(self, block_ids: list[int], count: int, room: int) -> None:
        """Fill `block_ids` up to `count` from free runs, halving the length when none is left."""
        length = count
        while len(block_ids) < count:
            length = min(length, count - len(block_ids))
            start = self._find_run(length + room)
            if start < 0 and room:
                start = self._find_run(length)
            if start < 0:
                length //= 2
                continue
            block_ids += self._take(start, start + length)
            self._search_from = start + length + room

    def _find_run(self, length: int) -> int:
        """Return the first block of a free run of `length` blocks, or -1."""
        if length >= self._too_long:
            return -1
        run, search_from = bytes(length), self._search_from
        start = self._kinds.find(run, search_from)
        if start < 0:
            start = self._kinds.find(run, 0, search_from + length - 1)
        if start < 0:
            self._too_long = length
        return start

    def _take(self, start: int, end: int) -> list[int]:
        self._kinds[start:end] = bytes([HELD]) * (end - start)
        self.num_free -= end - start
        return list(range(start, end))

    def _let_go(self, block_id: int) -> None:
        """The last reference is gone: keep the block evictable if its content can be found."""
        if self._kinds[block_id] == FENCED:
            self.num_fenced -= 1
        self.held_by[self._holders[block_id]] -= 1
        if self._cached[block_id]:
            self._kinds[block_id] = EVICTABLE
            self._link_newest(block_id)
        else:
            self._set_free(block_id)

    def _set_free(self, block_id: int) -> None:
        self._kinds[block_id] = FREE
        self.num_free += 1
        self._too_long = self.num_blocks + 1

    def _link_newest(self, block_id: int) -> None:
        head = self.num_blocks
        newest = self._older[head]
        self._newer[newest] = block_id
        self._older[block_id] = newest
        self._newer[block_id] = head
        self._older[head] = block_id
        self.num_evictable += 1

    def _unlink(self, block_id: int) -> None:
        older, newer = self._older[block_id], self._newer[block_id]
        self._newer[older] = newer
        self._older[newer] = older
        self.num_evictable -= 1

    def _evict_oldest(self) -> int:
        block_id = self._newer[self.num_blocks]
        assert block_id != self.num_blocks, "no block is evictable"
        self._unlink(block_id)
        self._cached[block_id] = False
        self._set_free(block_id)
        return block_id


def _zeros(count: int) -> "array[int]":
    return array("i", bytes(4 * count))
