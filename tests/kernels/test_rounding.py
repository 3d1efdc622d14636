"""Weights as small integers: which numbers are found again, and how far the others are off."""

import pytest
import torch
from torch import Tensor

from core.kernels.matrix import INT8, round_input
from core.kernels.rounding import (
    FEWEST_STEPS,
    GRID_ERROR,
    like_sized_order,
    relative_error,
    round_affine,
    round_symmetric,
)

LARGEST = 15
SHAPE = (40, 6, 32)  # columns, groups, inputs of a group


def random(seed: int) -> Tensor:
    """Numbers with heavier tails than the normal distribution has, none of them about 0."""
    normal = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return normal * normal.abs() + 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("largest", [LARGEST, 12, FEWEST_STEPS - 1])
@pytest.mark.parametrize("offset", [-3, 0, 4])
def test_weights_on_a_grid_are_found_again(offset: int, largest: int, dtype: torch.dtype) -> None:
    """What was made from 4-bit weights is nearly as it was, whether all 16 steps were used or not.

    `offset` is that of the grid, in its steps.
    """
    generator = torch.Generator().manual_seed(3)
    integers = torch.randint(0, largest + 1, SHAPE, generator=generator).float()
    integers[..., 0], integers[..., 1] = 0, largest
    scales = 0.01 + torch.rand(SHAPE[:2], generator=generator) / 10
    split = ((integers + offset) * scales[..., None]).to(dtype).float()
    rounded = round_affine(split, LARGEST)
    assert relative_error(split, rounded) < GRID_ERROR


@pytest.mark.parametrize("seed", range(3))
def test_weights_off_any_grid_are_told_apart(seed: int) -> None:
    """Numbers that never were in 4 bits are several times as far off as any that were."""
    split = random(seed)
    assert relative_error(split, round_affine(split, LARGEST)) > 4 * GRID_ERROR


def test_integers_scales_and_minimums_can_be_stored() -> None:
    """Integers are whole and in range; scales and minimums are bfloat16 numbers already."""
    rounded = round_affine(random(5), LARGEST)
    assert rounded.minimums is not None
    assert torch.equal(rounded.integers, rounded.integers.round().clamp(0, LARGEST))
    for numbers in (rounded.scales, rounded.minimums):
        assert torch.equal(numbers, numbers.bfloat16().float())


@pytest.mark.parametrize("value", [0.0, 0.75, -2.0])
def test_a_group_of_equal_numbers_is_exact(value: float) -> None:
    """A group without any range is its minimum."""
    split = torch.full(SHAPE, value)
    assert torch.equal(round_affine(split, LARGEST).values, split)


def test_symmetric_rounding_is_off_by_half_a_step_at_most() -> None:
    """The largest number of a group is exact, every other one at most half a scale off."""
    split = random(6)
    rounded = round_symmetric(split, 127)
    off = (rounded.values - split).abs()
    assert (off <= rounded.scales[..., None] * 0.5001).all()
    largest = split.abs().argmax(-1, keepdim=True)
    assert (off.gather(-1, largest) <= 1e-5 * split.abs().amax(-1, keepdim=True)).all()
    assert torch.equal(round_symmetric(torch.zeros(SHAPE), 127).values, torch.zeros(SHAPE))


def test_results_of_like_size_become_neighbours() -> None:
    """Rounded in the order that the weights suggest, results of an MLP lose far less."""
    generator = torch.Generator().manual_seed(7)
    norm = torch.rand(96, generator=generator) + 0.5
    sizes = torch.exp2(torch.randint(-4, 5, (512, 1), generator=generator))
    gate = torch.randn(512, 96, generator=generator) * sizes
    up = torch.randn(512, 96, generator=generator)
    order = like_sized_order(gate, up, norm)
    assert torch.equal(order.sort().values, torch.arange(512))
    x = torch.randn(20, 96, generator=generator) * norm
    results = torch.nn.functional.silu(x @ gate.T / 10) * (x @ up.T / 10)
    weights = 1 / results.norm(dim=0)  # each column counts the same

    def error(columns: Tensor) -> float:
        some = results[:, columns]
        return float(((round_input(some, INT8.group) - some) * weights[columns]).norm())

    assert error(order) < error(torch.arange(512)) / 2
