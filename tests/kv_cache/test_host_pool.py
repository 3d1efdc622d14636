"""The host memory of swapped requests, and what the KV cache makes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.kv_cache.host_pool import HostPool
from core.kv_cache.manager import BlockCopy, KVCacheManager
from core.request import Request
from tests.support.scheduler.checked_engine import make_request

BLOCK_SIZE = 4


def make_manager(num_host_blocks: int = 8, *, prefix_cache: bool = True) -> KVCacheManager:
    return KVCacheManager(
        16, BLOCK_SIZE, b"secret", prefix_cache=prefix_cache, num_host_blocks=num_host_blocks
    )


def run(manager: KVCacheManager, request: Request) -> None:
    """Start `request` and compute its whole prompt."""
    manager.start(request, manager.quote(request, request.num_tokens))
    manager.commit([(request, 0, request.prompt_len // BLOCK_SIZE)])


def leave(manager: KVCacheManager, request: Request, num_tokens: int) -> list[BlockCopy]:
    """Swap `request` out, which has computed `num_tokens`."""
    copies = manager.swap_out(request, num_tokens, 99)
    manager.release(request)
    return copies


def test_what_was_returned_is_free_only_for_the_next_plan() -> None:
    """A block that this plan may still read is not handed out again before `settle`."""
    pool = HostPool(3)
    first = pool.allocate(2)
    pool.release(first)
    assert (pool.num_free, pool.num_held) == (1, 0)
    pool.settle()
    assert pool.num_free == 3
    pool.check_integrity([])


@given(st.lists(st.integers(0, 5), max_size=40))
def test_no_block_is_given_twice(sizes: list[int]) -> None:
    """Whatever is taken and returned, every block is in one place."""
    pool, held = HostPool(8), list[list[int]]()
    for size in sizes:
        if size <= pool.num_free:
            held.append(pool.allocate(size))
        elif held:
            pool.release(held.pop(0))
        if size % 2:
            pool.settle()
        pool.check_integrity([block for each in held for block in each])


def test_more_than_is_free_is_a_bug() -> None:
    """Allocation beyond what is free is refused, and a block returned twice is found."""
    pool = HostPool(2)
    with pytest.raises(AssertionError):
        pool.allocate(3)
    block_ids = pool.allocate(1)
    pool.release(block_ids * 2)
    with pytest.raises(AssertionError):
        pool.check_integrity([])


def test_private_blocks_come_back_from_the_host() -> None:
    """Blocks with computed tokens go out, and a start brings back those the cache lacks."""
    manager, request = make_manager(prefix_cache=False), make_request(1, 10)
    run(manager, request)
    blocks = list(request.block_ids)
    assert [copy.block_id for copy in leave(manager, request, 9)] == blocks
    assert manager.hit_tokens(request) == 9
    quote = manager.quote(request, 10)
    assert (quote.num_known, len(quote.copies), quote.num_new) == (9, 3, 3)
    back = manager.start(request, quote)
    assert [copy.block_id for copy in back] == request.block_ids
    assert manager.host.num_held == 0
    manager.check_integrity()


def test_shared_blocks_stay_where_they_are() -> None:
    """What another request holds too is not copied, and is found again by its digest."""
    manager, first, second = make_manager(), make_request(1, 10), make_request(2, 12)
    run(manager, first)
    run(manager, second)
    assert second.block_ids[:2] == first.block_ids[:2]
    assert len(leave(manager, second, 11)) == 1
    quote = manager.quote(second, 12)
    assert (len(quote.hits), len(quote.copies), quote.num_known) == (2, 1, 11)


def test_copies_behind_a_prefix_that_is_gone_are_useless() -> None:
    """Without its shared prefix a request is computed again from where the cache ends."""
    manager, first, second = make_manager(), make_request(1, 10), make_request(2, 12)
    run(manager, first)
    run(manager, second)
    leave(manager, second, 11)
    manager.release(first)
    run(manager, make_request(3, 64, first_token=100))
    quote = manager.quote(second, 12)
    assert (quote.hits, quote.copies, quote.num_known) == ([], (), 0)


def test_what_the_cache_still_has_is_not_copied_back() -> None:
    """Private blocks that nobody evicted are hits; only those behind them come from the host."""
    manager, request = make_manager(), make_request(1, 10)
    run(manager, request)
    leave(manager, request, 9)
    quote = manager.quote(request, 10)
    assert (len(quote.hits), len(quote.copies), quote.num_known) == (2, 1, 9)


@pytest.mark.parametrize(("num_host_blocks", "max_copies"), [(2, 99), (8, 2), (0, 99)])
def test_a_swap_that_does_not_fit_is_none(num_host_blocks: int, max_copies: int) -> None:
    """Without room for all of it, on the host or in the plan, nothing is copied or held."""
    manager, request = make_manager(num_host_blocks), make_request(1, 10)
    run(manager, request)
    assert manager.swap_out(request, 9, max_copies) == []
    assert manager.host.num_held == 0
    assert manager.swapped() == []


def test_forgetting_returns_the_host_blocks() -> None:
    """A request that ends while swapped leaves nothing behind."""
    manager, request = make_manager(), make_request(1, 10)
    run(manager, request)
    leave(manager, request, 9)
    assert manager.host.num_held == 3
    manager.forget_swapped(request)
    assert manager.host.num_held == 0
    assert manager.hit_tokens(request) == 8
    manager.check_integrity()
