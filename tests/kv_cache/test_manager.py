"""The KV cache in the terms of requests: what a start takes and what others find."""

from core.kv_cache.manager import KVCacheManager
from core.request import Request
from core.sampling_params import SamplingParams
from tests.support.scheduler.checked_engine import make_request

BLOCK_SIZE = 4


def make_manager(num_blocks: int = 16, *, prefix_cache: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks, BLOCK_SIZE, b"secret", prefix_cache=prefix_cache)


def start(manager: KVCacheManager, request: Request) -> int:
    quote = manager.quote(request, request.num_tokens)
    assert manager.start(request, quote) == []
    return quote.num_known


def compute_all(manager: KVCacheManager, request: Request) -> None:
    start(manager, request)
    manager.commit([(request, 0, request.prompt_len // BLOCK_SIZE)])


def test_a_start_takes_blocks_for_the_whole_prompt() -> None:
    """A request starts with blocks for all its known tokens, rounded up."""
    manager, request = make_manager(), make_request(prompt_len=9)
    assert start(manager, request) == 0
    assert len(request.block_ids) == 3


def test_an_equal_prefix_is_found_while_its_owner_runs() -> None:
    """A second request shares the computed blocks of an equal prefix, and takes the rest."""
    manager, first, second = make_manager(), make_request(1, 10), make_request(2, 10)
    compute_all(manager, first)
    assert start(manager, second) == 8
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]
    manager.check_integrity()


def test_a_block_is_not_found_before_it_is_committed() -> None:
    """What is still being computed cannot be shared."""
    manager, first, second = make_manager(), make_request(1, 10), make_request(2, 10)
    start(manager, first)
    assert start(manager, second) == 0


def test_a_full_hit_leaves_one_token_to_compute() -> None:
    """A prompt that is wholly cached is found up to its last block, which is computed again."""
    manager, first, second = make_manager(), make_request(1, 8), make_request(2, 8)
    compute_all(manager, first)
    assert start(manager, second) == 4


def test_tenants_never_share() -> None:
    """An equal prompt of another tenant, or for another adapter, finds nothing."""
    manager, first = make_manager(), make_request(1, 10)
    compute_all(manager, first)
    assert start(manager, make_request(2, 10, tenant="b")) == 0
    adapted = make_request(3, 10)
    adapted.adapter = "x"
    assert start(manager, adapted) == 0


def test_prompt_logprobs_bypass_the_cache() -> None:
    """A request that wants prompt log-probabilities computes every position."""
    manager, first = make_manager(), make_request(1, 10)
    compute_all(manager, first)
    curious = make_request(2, 10, sampling=SamplingParams(num_prompt_logprobs=0))
    assert start(manager, curious) == 0


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    """With the prefix cache switched off, nothing is found and every released block is free."""
    manager, first, second = (
        make_manager(prefix_cache=False),
        make_request(1, 10),
        make_request(2, 10),
    )
    compute_all(manager, first)
    assert start(manager, second) == 0
    manager.release(first)
    assert manager.pool.num_evictable == 0


def test_generated_blocks_are_found_in_the_next_turn() -> None:
    """A prompt that repeats an answer finds the blocks that were generated."""
    manager, first = make_manager(), make_request(1, 6, max_tokens=6)
    start(manager, first)
    first.token_ids[6:12] = range(16, 22)
    first.num_output_tokens = 6
    manager.grow([first], [first.flow])
    manager.commit([(first, 0, 3)])
    assert start(manager, make_request(2, 14)) == 12


def test_hits_that_nobody_holds_count_as_needed() -> None:
    """A quote counts evictable hits, because holding them takes from what is available."""
    manager, first, second = make_manager(4), make_request(1, 8), make_request(2, 9)
    compute_all(manager, first)
    manager.release(first)
    quote = manager.quote(second, second.num_tokens)
    assert (len(quote.hits), quote.num_new, quote.num_needed) == (2, 1, 3)


def test_evicted_content_is_not_found_any_more() -> None:
    """A block that was handed out again is forgotten by the prefix cache."""
    manager, first = make_manager(4), make_request(1, 12)
    compute_all(manager, first)
    manager.release(first)
    start(manager, make_request(2, 16, first_token=100))
    assert manager.hit_tokens(make_request(3, 12)) == 0
    manager.check_integrity()


def test_retracted_blocks_are_forgotten_unless_shared() -> None:
    """What lies behind a stop string is forgotten, except what somebody else holds too."""
    manager, first = make_manager(), make_request(1, 12)
    compute_all(manager, first)
    sharer = make_request(2, 8)
    start(manager, sharer)
    manager.retract(first, 2)
    assert manager.hit_tokens(make_request(3, 13)) == 4
    manager.check_integrity()
