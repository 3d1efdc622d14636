"""Norms, activations, log-probabilities and block copies, against their references.

Rows lie in wider tensors of NaN, so a read or write beyond a row shows.
"""

import math

import pytest
import torch
from torch import Tensor

from core.kernels import linear
from core.kernels.norm import TorchNormAdd
from core.kernels.triton.block_copy import BlockCopy, torch_copy_blocks
from core.kernels.triton.gated_activation import gated_activation, torch_gated_activation
from core.kernels.triton.logprobs import token_logprobs, torch_token_logprobs
from core.kernels.triton.rms_norm import add_rms_norm, rms_norm, rms_norm_add
from tests.support.kernels.triton_device import DEVICE

# Infinity is what the exponential of a gate far below zero should be; numpy warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")

EPSILON = 1e-5
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=lambda dtype: str(dtype)[6:])
SIZES = pytest.mark.parametrize("size", [1, 63, 576, 1030])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers of the seed, on the device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def in_poison(rows: Tensor) -> Tensor:
    """The same rows as a view into wider rows of NaN."""
    wide = torch.full((len(rows) + 2, rows.shape[1] + 5), math.nan, dtype=rows.dtype)
    view = wide.to(DEVICE)[1:-1, : rows.shape[1]]
    view.copy_(rows)
    return view


def assert_close(got: Tensor, expected: Tensor) -> None:
    """Equal up to a rounding of the dtype."""
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got.cpu(), expected.cpu(), rtol=tolerance, atol=tolerance)


@DTYPES
@SIZES
def test_rms_norm_equals_the_reference(size: int, dtype: torch.dtype) -> None:
    """Rows are normalized by themselves, whatever lies behind them."""
    x, norm = random(3, size, dtype=dtype), random(size, seed=1)
    expected = linear.rms_norm(x.float(), norm, EPSILON).to(dtype)
    assert_close(rms_norm(in_poison(x), norm, EPSILON), expected)


@DTYPES
@SIZES
def test_add_rms_norm_equals_the_reference(size: int, dtype: torch.dtype) -> None:
    """The stream takes x in, rounded, and is normalized from there."""
    x, stream = random(3, size, dtype=dtype), random(3, size, seed=2, dtype=dtype)
    norm = random(size, seed=1)
    added = (x.float() + stream.float()).to(dtype)
    out = add_rms_norm(in_poison(x), stream, norm, EPSILON)
    assert_close(stream, added)
    assert_close(out, linear.rms_norm(added.float(), norm, EPSILON).to(dtype))


@DTYPES
def test_rms_norm_add_equals_the_reference(dtype: torch.dtype) -> None:
    """The normalized x joins the stream."""
    x, stream = random(3, 100, dtype=dtype), random(3, 100, seed=2, dtype=dtype)
    norm = random(100, seed=1)
    expected = TorchNormAdd(norm, EPSILON)(x, stream)
    rms_norm_add(in_poison(x), stream, norm, EPSILON)
    assert_close(stream, expected)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_gated_activation_equals_the_reference(activation: str, dtype: torch.dtype) -> None:
    """Gates from far below zero to far above, in rows longer and shorter than a tile."""
    for size in (1, 63, 1030):
        gate_up = 8 * random(2, 2 * size, dtype=dtype)
        expected = torch_gated_activation(gate_up, activation)
        assert_close(gated_activation(in_poison(gate_up), activation), expected)


def test_an_unknown_activation_is_refused() -> None:
    """No other activation is taken for one of them."""
    with pytest.raises(KeyError):
        gated_activation(random(1, 4), "relu")


@pytest.mark.parametrize("width", [1, 2048, 5000])
def test_token_logprobs_equal_the_reference(width: int) -> None:
    """Tokens at both ends, forbidden ones, rows with forbidden logits, and none at all."""
    logits = 5 * random(3, width)
    logits[1, : width // 2] = -math.inf
    token_ids = torch.tensor([[0, width - 1, -1]] * 3, dtype=torch.int32, device=DEVICE)
    got = token_logprobs(in_poison(logits), token_ids)
    expected = torch_token_logprobs(logits, token_ids)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def poisoned_layers(num_blocks: int, elements: int) -> list[Tensor]:
    """Three layers of bfloat16 NaN."""
    shape = (num_blocks, 2, elements)
    return [torch.full(shape, math.nan, dtype=torch.bfloat16, device=DEVICE) for _ in range(3)]


@pytest.mark.parametrize("elements", [4, 60, 4100])
def test_blocks_are_copied_in_every_layer(elements: int) -> None:
    """To another pool, bit for bit, and no other block changes."""
    origin, goal = poisoned_layers(5, elements), poisoned_layers(3, elements)
    expected = poisoned_layers(3, elements)
    for layer, tensor in enumerate(origin):
        tensor[1:4] = random(3, 2, elements, seed=layer)
    source = torch.tensor([3, 1], dtype=torch.int32, device=DEVICE)
    target = torch.tensor([0, 2], dtype=torch.int32, device=DEVICE)
    BlockCopy(origin, goal, DEVICE)(source, target)
    torch_copy_blocks(origin, expected, source, target)
    for got, wanted in zip(goal, expected, strict=True):
        assert torch.equal(got.view(torch.int16), wanted.view(torch.int16))


def test_a_block_is_copied_within_its_pool() -> None:
    """Copy-on-write: source and target are blocks of the same layers; no copy is no work."""
    pool = poisoned_layers(4, 8)
    for tensor in pool:
        tensor[2] = 1.0
    copy = BlockCopy(pool, pool, DEVICE)
    index = torch.tensor([2], dtype=torch.int32, device=DEVICE)
    copy(index[:0], index[:0])
    copy(index, index + 1)
    assert all(bool((tensor[2:] == 1.0).all()) for tensor in pool)
    assert all(bool(tensor[:2].isnan().all()) for tensor in pool)


def test_layers_that_cannot_be_copied_are_refused() -> None:
    """Blocks of two sizes, scattered ones, and sizes that are no multiple of 16 bytes."""
    pool = poisoned_layers(2, 8)
    for origin, goal in (
        (pool, poisoned_layers(2, 16)),
        ([tensor.transpose(1, 2) for tensor in pool], pool),
        (poisoned_layers(2, 5), poisoned_layers(2, 5)),
    ):
        with pytest.raises(ValueError, match="block"):
            BlockCopy(origin, goal, DEVICE)
