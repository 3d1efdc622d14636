"""The block pool: kinds, references, runs and the order of eviction."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from core.kv_cache.block_pool import BlockKind, BlockPool


def cached(pool: BlockPool, count: int, holder: int = 0) -> list[int]:
    """Return blocks that went through a request and are evictable now."""
    block_ids = pool.allocate(count, holder).block_ids
    pool.set_cached(block_ids)
    pool.release(block_ids)
    return block_ids


def test_blocks_come_in_one_run_if_there_is_one() -> None:
    """An allocation is contiguous as long as a free run of its length exists."""
    pool = BlockPool(16)
    pool.allocate(3, 0)
    block_ids = pool.allocate(5, 0).block_ids
    assert block_ids == list(range(block_ids[0], block_ids[0] + 5))


def test_room_is_left_behind_a_run_for_its_growth() -> None:
    """The next request is placed behind the room of the one before, which grows in place."""
    pool = BlockPool(32)
    first = pool.allocate(2, 0, room=4).block_ids
    second = pool.allocate(2, 0, room=4).block_ids
    assert second[0] - first[-1] > 4
    assert pool.grow([first[-1]], [0], 4).block_ids == [first[-1] + 1]


def test_room_is_given_up_when_blocks_are_short() -> None:
    """Room is a wish: the last blocks are handed out without it, in pieces if need be."""
    pool = BlockPool(8)
    taken = [pool.allocate(1, 0).block_ids[0] for _ in range(8)]
    pool.release(taken[0:1] + taken[3:5])
    assert sorted(pool.allocate(3, 0, room=16).block_ids) == [taken[0], taken[3], taken[4]]


def test_a_block_that_is_taken_or_the_end_stops_a_run() -> None:
    """Growth over a held block or the end of the pool goes on elsewhere, evicting if need be."""
    pool = BlockPool(6)
    first, _ = pool.allocate(2, 1).block_ids
    findable = cached(pool, 2)
    pool.allocate(2, 2)
    allocation = pool.grow([first, 5], [1, 2], 1)
    assert sorted(allocation.block_ids) == sorted(allocation.evicted) == sorted(findable)
    assert pool.held_by().tolist() == [0, 3, 3]
    pool.check_integrity()


def test_more_than_is_available_is_a_bug() -> None:
    """Asking for more than free + evictable blocks fails loudly and changes nothing."""
    pool = BlockPool(4)
    pool.allocate(3, 0)
    with pytest.raises(AssertionError):
        pool.allocate(2, 0)
    pool.check_integrity()
    assert pool.num_free == 1


def test_a_released_block_stays_evictable_only_if_it_is_cached() -> None:
    """Without cached content a released block is free, with it evictable; both are available."""
    pool = BlockPool(4)
    plain, findable = pool.allocate(2, 0).block_ids
    pool.set_cached([findable])
    pool.release([plain, findable])
    assert (pool.kind(plain), pool.kind(findable)) == (BlockKind.FREE, BlockKind.EVICTABLE)
    assert pool.num_available == 4


def test_the_longest_unused_blocks_go_first() -> None:
    """Eviction takes the request that left first, and of one request its last blocks."""
    pool = BlockPool(4)
    older, newer = cached(pool, 2), cached(pool, 2)
    assert pool.allocate(1, 0).evicted == [older[1]]
    assert pool.allocate(1, 0).evicted == [older[0]]
    assert pool.allocate(1, 0).evicted == [newer[1]]


def test_a_hit_saves_a_block_from_eviction() -> None:
    """An acquired block is held; it goes to the end of the order when it is released."""
    pool = BlockPool(3)
    first, second = cached(pool, 1), cached(pool, 1)
    pool.allocate(1, 0)
    pool.acquire(first, 0)
    pool.release(first)
    assert pool.allocate(1, 0).evicted == second


def test_a_shared_block_is_held_until_the_last_reference() -> None:
    """One of two holders leaving changes nothing but the number of references."""
    pool = BlockPool(2)
    block_ids = cached(pool, 1)
    pool.acquire(block_ids, 1)
    pool.acquire(block_ids, 1)
    pool.release(block_ids)
    assert pool.kind(block_ids[0]) is BlockKind.HELD
    pool.release(block_ids)
    assert pool.kind(block_ids[0]) is BlockKind.EVICTABLE


def test_a_fenced_block_is_not_available() -> None:
    """A fenced block can be allocated only after the release."""
    pool = BlockPool(1)
    block_ids = pool.allocate(1, 0).block_ids
    pool.fence(block_ids)
    assert (pool.num_available, pool.num_fenced) == (0, 1)
    pool.release(block_ids, fenced=True)
    assert (pool.num_available, pool.num_fenced) == (1, 0)


def test_a_fenced_block_can_be_found_by_a_new_request() -> None:
    """A prefix hit on a fenced block holds it again; the old fence does not free it."""
    pool = BlockPool(1)
    block_ids = pool.allocate(1, 0).block_ids
    pool.set_cached(block_ids[:1])
    pool.fence(block_ids)
    pool.acquire(block_ids, 0)
    pool.release(block_ids, fenced=True)
    assert pool.kind(block_ids[0]) is BlockKind.HELD


def test_a_block_is_fenced_when_its_last_unfenced_holder_leaves() -> None:
    """A shared block with one fenced reference becomes fenced when the other reference goes."""
    pool = BlockPool(1)
    block_ids = pool.allocate(1, 0).block_ids
    pool.set_cached(block_ids[:1])
    pool.acquire(block_ids, 0)
    pool.fence(block_ids)
    assert pool.kind(block_ids[0]) is BlockKind.HELD
    pool.release(block_ids)
    assert pool.kind(block_ids[0]) is BlockKind.FENCED


def test_blocks_are_counted_for_their_tenant() -> None:
    """A block counts once, for the tenant that holds it, fenced or not."""
    pool = BlockPool(8)
    mine = pool.allocate(3, 1).block_ids
    pool.allocate(2, 2)
    pool.fence(mine)
    assert pool.held_by().tolist() == [0, 3, 2]
    pool.release(mine, fenced=True)
    assert pool.held_by().tolist() == [0, 0, 2]


def test_content_that_is_forgotten_frees_an_evictable_block() -> None:
    """An evictable block whose content is withdrawn is free."""
    pool = BlockPool(1)
    block_ids = cached(pool, 1)
    pool.set_uncached(block_ids[:1])
    assert pool.statistics().num_free == 1


class BlockPoolMachine(RuleBasedStateMachine):
    """A pool beside a model: a list of the holdings of imaginary requests."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(24)
        self.held: list[list[int]] = []
        self.fenced: list[list[int]] = []

    @rule(count=st.integers(1, 9), holder=st.integers(0, 2), room=st.integers(0, 4))
    def allocate(self, count: int, holder: int, room: int) -> None:
        if count <= self.pool.num_available:
            block_ids = self.pool.allocate(count, holder, room=room).block_ids
            assert len(set(block_ids)) == count
            assert not set(block_ids) & self.in_use()
            self.held.append(block_ids)

    @rule(holder=st.integers(0, 2), room=st.integers(0, 4))
    def grow(self, holder: int, room: int) -> None:
        if 0 < len(self.held) <= self.pool.num_available:
            after = [block_ids[-1] for block_ids in self.held]
            block_ids = self.pool.grow(after, [holder] * len(after), room).block_ids
            assert len(set(block_ids)) == len(after)
            assert not set(block_ids) & self.in_use()
            for held, block_id in zip(self.held, block_ids, strict=True):
                held.append(block_id)

    @rule(data=st.data(), cached=st.booleans())
    def share(self, data: st.DataObject, cached: bool) -> None:
        known = [b for b in range(24) if self.pool.is_cached(b)]
        if known:
            block_ids = data.draw(st.lists(st.sampled_from(known), min_size=1, unique=True))
            self.pool.acquire(block_ids, 0)
            self.held.append(block_ids)

    @rule(data=st.data())
    def cache(self, data: st.DataObject) -> None:
        if self.held:
            block_id = data.draw(st.sampled_from(data.draw(st.sampled_from(self.held))))
            change = data.draw(st.sampled_from((self.pool.set_cached, self.pool.set_uncached)))
            change([block_id])

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.held:
            self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(data=st.data())
    def fence(self, data: st.DataObject) -> None:
        if self.held:
            block_ids = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            self.pool.fence(block_ids)
            self.fenced.append(block_ids)

    @rule(data=st.data())
    def release_fenced(self, data: st.DataObject) -> None:
        if self.fenced:
            block_ids = self.fenced.pop(data.draw(st.integers(0, len(self.fenced) - 1)))
            self.pool.release(block_ids, fenced=True)

    def in_use(self) -> set[int]:
        return {block_id for block_ids in self.held + self.fenced for block_id in block_ids}

    @invariant()
    def conserves_blocks(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_available == 24 - len(self.in_use())


def test_blocks_are_conserved_under_any_use() -> None:
    """However blocks are taken, shared, fenced and released, none is lost or given out twice."""
    run_state_machine_as_test(
        BlockPoolMachine, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
