"""The blocks of one replica's KV cache: what each is, who holds it, and which go next.

Owns: kind, reference counts and holder of every block, and the order in which evictable ones go.
Never knows: what is in a block, requests, digests. Every block is of one kind:

    kind        references                    leaves it by
    FREE        0                             allocate
    HELD        > 0, not all of them fenced   fence, release
    FENCED      > 0, all of them fenced       release (the plan was acked), acquire (a prefix hit)
    EVICTABLE   0, its content is cached      acquire (a prefix hit), allocate (oldest first)

A fenced reference belongs to a request that is gone while a plan in flight still names the block.
Evictable blocks queue up (`eviction_queue`). Free blocks need no list: the map of kinds is searched
for runs, because attention over contiguous blocks is measurably faster; the search starts behind
the last run, or where blocks were evicted since, and leaves room for growth. Blocks come and go by
the request: one operation on columns over all of its blocks, which are distinct, not one for each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.kv_cache.eviction_queue import Blocks, EvictionQueue

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


class Allocation(NamedTuple):
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
        self._kinds = bytearray(num_blocks) + bytes([HELD])  # behind the last is nothing free
        self._kind: npt.NDArray[np.uint8] = np.frombuffer(self._kinds, np.uint8)  # the same bytes
        self._cached = np.zeros(num_blocks, np.bool_)
        self._references = np.zeros(num_blocks, np.int32)
        self._fenced_references = np.zeros(num_blocks, np.int32)
        self._holders = np.zeros(num_blocks, np.int32)
        self._evictable = EvictionQueue(num_blocks)
        self._search_from = 0
        self._too_long = num_blocks + 1  # no free run is that long, as far as is known
        self._eviction_batch = min(MAX_EVICTION_BATCH, int(EVICTION_SHARE * num_blocks))

    @property
    def num_evictable(self) -> int:
        """Blocks that nobody holds and whose content is cached."""
        return self._evictable.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: a warm cache is not pressure."""
        return self.num_free + self._evictable.num_blocks

    def kind(self, block_id: int) -> BlockKind:
        """Return what `block_id` is."""
        return BlockKind(self._kinds[block_id])

    def references(self, block_id: int) -> int:
        """Return the number of references to `block_id`."""
        return int(self._references[block_id])

    def num_references(self) -> int:
        """Return the references to all blocks together."""
        return int(self._references.sum())

    def count_evictable(self, block_ids: Iterable[int]) -> int:
        """Return how many of `block_ids` nobody holds."""
        kinds = self._kinds
        return sum(kinds[block_id] == EVICTABLE for block_id in block_ids)

    def is_cached(self, block_id: int) -> bool:
        """Tell whether the content of `block_id` can be found again."""
        return bool(self._cached[block_id])

    def cached_blocks(self, holders: range | None = None) -> list[int]:
        """Return the blocks whose content can be found again, of those that one of `holders` held
        last, or of all.
        """
        cached = np.flatnonzero(self._cached)
        if holders is not None:
            held_by = self._holders[cached]
            cached = cached[(held_by >= holders.start) & (held_by < holders.stop)]
        found: list[int] = cached.tolist()
        return found

    def held_by(self) -> npt.NDArray[np.int64]:
        """Return how many blocks each flow holds, int64[n]; further flows hold none."""
        in_use = (self._kind[:-1] == HELD) | (self._kind[:-1] == FENCED)
        return np.bincount(self._holders[in_use])

    def allocate(
        self, count: int, holder: int, *, after: int = NO_BLOCK, room: int = 0
    ) -> Allocation:
        """Hold `count` ≤ num_available blocks for the flow `holder`, in runs as long as there are.

        `after` is the block they continue; behind a new run `room` blocks are left free if there
        is a place for that.
        """
        evicted = self._make_free(count)
        block_ids = self._continue_run(after, count, holder)
        if len(block_ids) < count:
            self._take_runs(block_ids, count, holder, room)
        return Allocation(block_ids, evicted)

    def grow(self, after: Sequence[int], holders: Sequence[int], room: int) -> Allocation:
        """Hold a block more for each of `holders`, together ≤ num_available: the one behind the
        last it has, `after`, if that is free, else the first of a new run.
        """
        evicted = self._make_free(len(after))
        block_ids, kinds = [], self._kinds
        for last in after:
            block_id = last + 1
            if kinds[block_id] != FREE:
                block_id = self._find_run_with_room(1, room)
                self._search_from = block_id + 1 + room
            kinds[block_id] = HELD
            block_ids.append(block_id)
        self._references[block_ids] = 1
        self._holders[block_ids] = holders
        self.num_free -= len(block_ids)
        return Allocation(block_ids, evicted)

    def acquire(self, block_ids: list[int], holder: int) -> None:
        """Add a reference of `holder` to each of `block_ids`, which hold cached content."""
        if not block_ids:
            return
        blocks = np.array(block_ids, np.int32)
        kinds = self._kind[blocks]
        assert kinds.all(), block_ids
        unheld = blocks[kinds == EVICTABLE]
        self._evictable.remove(unheld)
        self._holders[unheld] = holder
        self.num_fenced -= len((kinds == FENCED).nonzero()[0])
        self._kind[blocks] = HELD
        self._references[blocks] += 1

    def fence(self, block_ids: list[int]) -> None:
        """Mark one reference to each of `block_ids` as the last word of a plan in flight."""
        blocks = np.array(block_ids, np.int32)
        fenced = self._fenced_references[blocks] + 1
        left = self._references[blocks] - fenced
        assert not len((left < 0).nonzero()[0]), block_ids
        self._fenced_references[blocks] = fenced
        self._set_fenced(blocks[left == 0])

    def release(self, block_ids: list[int], *, fenced: bool = False) -> None:
        """Drop one (`fenced`) reference to each of a request's blocks; the last go first."""
        blocks = np.array(block_ids[::-1], np.int32)
        left = self._references[blocks] - 1
        assert not len((left < 0).nonzero()[0]), block_ids
        self._references[blocks] = left
        if fenced:
            self._fenced_references[blocks] -= 1
        is_last = left == 0
        if len(is_last.nonzero()[0]) == len(blocks):
            self._let_go(blocks)
            return
        self._let_go(blocks[is_last])
        if not fenced:
            self._set_fenced(blocks[~is_last & (self._fenced_references[blocks] == left)])

    def set_cached(self, block_ids: list[int]) -> None:
        """Note that the content of these blocks, which are held, can be found again."""
        self._cached[block_ids] = True

    def set_uncached(self, block_ids: list[int]) -> None:
        """Note that it cannot; what nobody holds is free."""
        blocks = np.array(block_ids, np.int32)
        self._cached[blocks] = False
        unheld = blocks[self._kind[blocks] == EVICTABLE]
        self._evictable.remove(unheld)
        self._set_free(unheld)

    def statistics(self) -> BlockPoolStatistics:
        """Return the numbers of blocks by kind."""
        held = self.num_blocks - self.num_free - self.num_fenced - self.num_evictable
        return BlockPoolStatistics(
            self.num_blocks, self.num_free, held, self.num_fenced, self.num_evictable
        )

    def check_integrity(self) -> None:
        """Assert that kinds, references, counts and eviction order agree; linear in the blocks."""
        kinds, references, fenced = self._kind[:-1], self._references, self._fenced_references
        counts = np.bincount(kinds, minlength=len(BlockKind))
        assert counts[FREE] == self.num_free, (counts, self.num_free)
        assert counts[FENCED] == self.num_fenced, (counts, self.num_fenced)
        assert counts[EVICTABLE] == self.num_evictable, (counts, self.num_evictable)
        in_use = (kinds == HELD) | (kinds == FENCED)
        assert np.array_equal(references > 0, in_use)
        assert np.array_equal((fenced == references) & in_use, kinds == FENCED)
        assert bool(np.all(fenced <= references))
        assert not np.any(self._cached & (kinds == FREE))
        assert not np.any(~self._cached & (kinds == EVICTABLE))
        assert bytes(self._too_long) not in self._kinds, self._too_long
        queued = self._evictable.in_order()
        assert np.array_equal(np.sort(queued), np.flatnonzero(kinds == EVICTABLE))
        assert len(queued) == self.num_evictable

    def _continue_run(self, after: int, count: int, holder: int) -> list[int]:
        """Take up to `count` free blocks directly behind `after`."""
        if after < 0:
            return []
        end = after + 1
        while end <= after + count and self._kinds[end] == FREE:
            end += 1
        return self._take(after + 1, end, holder)

    def _take_runs(self, block_ids: list[int], count: int, holder: int, room: int) -> None:
        """Fill `block_ids` up to `count` from free runs, halving the length when none is left."""
        length = count
        while len(block_ids) < count:
            length = min(length, count - len(block_ids))
            start = self._find_run_with_room(length, room)
            if start < 0:
                length //= 2
                continue
            block_ids += self._take(start, start + length, holder)
            self._search_from = start + length + room

    def _find_run_with_room(self, length: int, room: int) -> int:
        """Return the first block of a free run of `length`, with `room` behind it if there is such
        a run, or -1.
        """
        if room and length + room < self._too_long:
            start = self._find_run(length + room)
            if start >= 0:
                return start
        return self._find_run(length)

    def _find_run(self, length: int) -> int:
        """Return the first block of a free run of `length` blocks, or -1."""
        if length >= self._too_long or length > self.num_free:
            return -1
        run, search_from = bytes(length), self._search_from
        start = self._kinds.find(run, search_from)
        if start < 0:
            start = self._kinds.find(run, 0, search_from + length - 1)
        if start < 0:
            self._too_long = length
        return start

    def _take(self, start: int, end: int, holder: int) -> list[int]:
        self._kind[start:end] = HELD
        self._references[start:end] = 1
        self._holders[start:end] = holder
        self.num_free -= end - start
        return list(range(start, end))

    def _let_go(self, blocks: Blocks) -> None:
        """Their last references are gone: what can be found again stays, evictable."""
        if self.num_fenced:
            self.num_fenced -= len((self._kind[blocks] == FENCED).nonzero()[0])
        cached = self._cached[blocks]
        kept = blocks[cached]
        self._kind[kept] = EVICTABLE
        self._evictable.push(kept)
        self._set_free(blocks[~cached])

    def _set_fenced(self, blocks: Blocks) -> None:
        self._kind[blocks] = FENCED
        self.num_fenced += len(blocks)

    def _set_free(self, blocks: Blocks) -> None:
        if len(blocks):
            self._kind[blocks] = FREE
            self.num_free += len(blocks)
            self._too_long = self.num_blocks + 1

    def _make_free(self, count: int) -> list[int]:
        """See to it that `count` blocks are free; return those that were evicted for it."""
        assert 0 <= count <= self.num_available, (count, self.num_available)
        if count <= self.num_free:
            return []
        missing = count - self.num_free
        blocks = self._evictable.pop(max(missing, min(self._eviction_batch, self.num_evictable)))
        self._cached[blocks] = False
        self._set_free(blocks)
        self._search_from = int(np.minimum.reduce(blocks))  # what was one run may be one again
        evicted: list[int] = blocks.tolist()
        return evicted
