"""Norms between products: the C++ kernels against the plain-torch references."""

import pytest
import torch
from torch import Tensor

from core.kernels.norm import (
    HeadNorms,
    NativeNormAdd,
    NativeNormHeads,
    TorchNormAdd,
    TorchNormHeads,
)
from tests.support.kernels.native_kernels import native_library

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
EPSILON = 1e-5
VALUE_COLUMNS = 48


def random(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers of the seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norms_of(queries: int, query_size: int, keys: int, key_size: int) -> HeadNorms:
    """Norms that differ from each other and from 1."""
    query, key = 1 + random(query_size, seed=1) / 3, 1 + random(key_size, seed=2) / 3
    return HeadNorms(query, key, queries, keys, EPSILON)


@DTYPES
@pytest.mark.parametrize("rows", [1, 3, 65])
@pytest.mark.parametrize("size", [16, 576])
def test_norm_add_equals_the_reference(rows: int, size: int, dtype: torch.dtype) -> None:
    """The normalized result joins the residual stream, which is left as it was."""
    x, other, norm = (
        random(rows, size).to(dtype),
        random(rows, size, seed=3).to(dtype),
        random(size),
    )
    before = x.clone(), other.clone()
    got = NativeNormAdd(native_library(), norm, EPSILON, dtype)(x, other)
    expected = TorchNormAdd(norm, EPSILON)(x, other)
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(x, before[0])
    assert torch.equal(other, before[1])


HEADS = pytest.mark.parametrize(
    "sizes", [(4, 32, 2, 32), (1, 128, 1, 64)], ids=["each-head", "whole-query"]
)


@DTYPES
@HEADS
@pytest.mark.parametrize("rows", [1, 33])
def test_norm_heads_equals_the_reference(
    rows: int, sizes: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    """Queries and keys are normalized in place, values stay."""
    norms = norms_of(*sizes)
    width = sizes[0] * sizes[1] + sizes[2] * sizes[3]
    qkv = random(rows, width + VALUE_COLUMNS).to(dtype)
    got, expected = qkv.clone(), qkv.clone()
    NativeNormHeads(native_library(), norms, dtype)(got)
    TorchNormHeads(norms)(expected)
    torch.testing.assert_close(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.equal(got[:, width:], qkv[:, width:])
    assert not torch.equal(got[:, :width], qkv[:, :width])


def test_each_head_has_its_own_magnitude() -> None:
    """A large head does not shrink its neighbours, unless all are one vector."""
    qkv = torch.ones(1, 4 * 16)
    qkv[0, :16] = 100.0
    ones = torch.ones(16)
    NativeNormHeads(native_library(), HeadNorms(ones, ones, 2, 1, 0.0), torch.float32)(qkv)
    torch.testing.assert_close(qkv, torch.ones(1, 64))
    qkv[0, :16] = 100.0
    both = HeadNorms(torch.ones(32), ones, 1, 1, 0.0)
    NativeNormHeads(native_library(), both, torch.float32)(qkv)
    assert qkv[0, 16] < 0.1
