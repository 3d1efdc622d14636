"""What attention reads next is fetched by products, and changes nothing else."""

import numpy as np
import pytest
import torch
from torch import Tensor

from core.kernels.matrix import QUANTIZATIONS
from core.kernels.paged_attention import AttentionBatch, AttentionRule, AttentionShape
from core.kernels.prefetch import FETCHED_BYTES_MAX
from core.kernels.selection import Kernels
from tests.support.kernels.native_kernels import native_library

SHAPE = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=32, block_size=16)
FORMATS = pytest.mark.parametrize("quantization", QUANTIZATIONS)


def native(quantization: str = "none") -> Kernels:
    """The C++ kernels."""
    return Kernels(native_library(), torch.bfloat16, QUANTIZATIONS[quantization])


def random(*shape: int) -> Tensor:
    """Numbers that are the same in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7)).bfloat16()


def cache_of(num_blocks: int) -> Tensor:
    """A layer's cache."""
    return torch.zeros(SHAPE.cache_shape(num_blocks), dtype=torch.bfloat16)


def blocks_of(*blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Blocks of a cache."""
    return np.array(blocks, dtype=np.int32)


@FORMATS
@pytest.mark.parametrize("rows", [1, 12, 13, 40])
def test_products_take_what_was_announced(rows: int, quantization: str) -> None:
    """Products take every part of every block, and give the same numbers."""
    kernels, x = native(quantization), random(rows, 576)
    product = kernels.normed(random(320, 576))
    expected = product(x, None, 0.0)
    kernels.upcoming.announce(cache_of(5), blocks_of(4, 0, 2))
    assert kernels.upcoming.num_claimed == 0
    assert torch.equal(product(x, None, 0.0), expected)
    assert kernels.upcoming.num_claimed == 3 * SHAPE.num_kv_heads


def test_nothing_is_taken_once_attention_reads_it() -> None:
    """What was withdrawn is not fetched any more."""
    kernels = native()
    kernels.upcoming.announce(cache_of(5), blocks_of(1, 2))
    kernels.upcoming.withdraw()
    kernels.normed(random(320, 576))(random(4, 576), None, 0.0)
    assert kernels.upcoming.num_claimed == 0


def test_no_more_is_fetched_than_a_cache_holds() -> None:
    """Of long contexts only the first blocks are fetched; attention asks for the others itself."""
    kernels = native()
    most = FETCHED_BYTES_MAX // (SHAPE.block_elements * 2)
    blocks = np.zeros(2 * most, dtype=np.int32)
    kernels.upcoming.announce(cache_of(1), blocks)
    product, x = kernels.normed(random(960, 576)), random(96, 576)
    for _ in range(40):
        product(x, None, 0.0)
    assert kernels.upcoming.num_claimed == most * SHAPE.num_kv_heads


@pytest.mark.parametrize(("window", "num_blocks"), [(0, 4 + 2 - 1), (20, 2 + 2)])
def test_attention_announces_each_block_that_it_reads_once(window: int, num_blocks: int) -> None:
    """A block that two sequences share counts once, and one before the window not at all."""
    kernels = native()
    table = torch.zeros(64, SHAPE.head_dim)
    attention = kernels.attention(SHAPE, table, AttentionRule(window=window))
    tables = np.array([[3, 1, 5, 6], [3, 8, 0, 0]], dtype=np.int32)
    batch = AttentionBatch(blocks_of(0, 1), blocks_of(1, 1), blocks_of(60, 20), tables)
    attention.begin(batch)
    attention.expect(cache_of(9))
    kernels.normed(random(320, 576))(random(4, 576), None, 0.0)
    assert kernels.upcoming.num_claimed == num_blocks * SHAPE.num_kv_heads
    attention(random(2, SHAPE.qkv_size), cache_of(9))
    assert kernels.upcoming.num_claimed == 0
