"""The queue of evictable blocks: first in, first out, however blocks are taken out between."""

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.kv_cache.eviction_queue import EvictionQueue

NUM_BLOCKS = 12


def test_the_oldest_block_goes_first() -> None:
    """Blocks leave in the order in which they came; one that returns is the newest."""
    queue = EvictionQueue(4)
    queue.push(np.array([2, 0, 3], np.int32))
    queue.remove(np.array([2], np.int32))
    queue.push(np.array([2], np.int32))
    assert queue.in_order().tolist() == [0, 3, 2]
    assert queue.pop(2).tolist() == [0, 3]
    assert (queue.num_blocks, queue.in_order().tolist()) == (1, [2])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5), st.integers(0, 99)), max_size=300))
def test_it_is_a_queue(actions: list[tuple[int, int, int]]) -> None:
    """Over any sequence of pushes, removals and pops it is what a deque is, also when its array
    begins anew.
    """
    queue, model = EvictionQueue(NUM_BLOCKS), deque[int]()
    for action, count, seed in actions:
        absent = [block for block in range(NUM_BLOCKS) if block not in model]
        chosen = np.random.default_rng(seed).permutation(absent if action == 0 else list(model))
        blocks = chosen[:count].astype(np.int32)
        if action == 0:
            queue.push(blocks)
            model.extend(blocks.tolist())
        elif action == 1:
            queue.remove(blocks)
            for block in blocks.tolist():
                model.remove(block)
        else:
            taken = min(count, len(model))
            assert queue.pop(taken).tolist() == [model.popleft() for _ in range(taken)]
        assert queue.in_order().tolist() == list(model)
        assert queue.num_blocks == len(model)
