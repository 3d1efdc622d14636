"""Weights as small integers: which integers, scales and minimums come closest to a weight.

Owns: the search, group by group, on plain tensors, and which inputs should be neighbours. Never
knows: layouts in memory, or products (`core.kernels.matrix`).

Symmetric: w ≈ integer · scale. Affine: w ≈ integer · scale + minimum, integers from 0 up. The
affine form is for weights that lie on such a grid already, because the checkpoint was made from
4-bit weights (GGUF's Q4_0 and Q4_1 among others): they are found again as they were. What was never
in 4 bits is further off than a small model bears, and `relative_error` says by how much.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FEWEST_STEPS = 8  # between the smallest and the largest number of a group: fewer, doubled, fit
GRID_ERROR = 0.01  # relative; what bfloat16 leaves of a grid is half of it


@dataclass(frozen=True, slots=True)
class Rounded:
    """Float32 integers [columns, groups, group], scales and minimums [columns, groups]."""

    integers: Tensor
    scales: Tensor
    minimums: Tensor | None = None  # None: 0

    @property
    def values(self) -> Tensor:
        """The numbers that they stand for, float32 [columns, groups, group]."""
        whole = self.integers * self.scales[..., None]
        return whole if self.minimums is None else whole + self.minimums[..., None]


def round_symmetric(split: Tensor, largest: int) -> Rounded:
    """Return integers in [-largest, largest] for `split` float32 [columns, groups, group].

    A group of zeros has scale 0.
    """
    scales = split.abs().amax(-1) / largest
    return Rounded(_nearest(split, scales, -largest, largest), scales)


def round_affine(split: Tensor, largest: int) -> Rounded:
    """Return integers in [0, largest] for `split`; scales and minimums are rounded to bfloat16.

    The smallest number of a group is 0 and the largest `largest`, or fewer steps away where that
    comes closer: a grid need not be used from end to end.
    """
    low = split.amin(-1)
    width = split.amax(-1) - low
    best = _affine(split, width / largest, low, largest)
    if relative_error(split, best) <= GRID_ERROR:
        return best
    error = _error(split, best)
    for steps in range(largest - 1, FEWEST_STEPS - 1, -1):
        some = _affine(split, width / steps, low, largest)
        some_error = _error(split, some)
        best = _either(some_error < error, some, best)
        error = torch.minimum(error, some_error)
    return best


def relative_error(split: Tensor, rounded: Rounded) -> float:
    """Return how far `rounded` is from `split`, as a part of it; 0 for zeros."""
    size = float(torch.linalg.vector_norm(split))
    return float(_error(split, rounded).sum().sqrt()) / size if size else 0.0


def _either(is_first: Tensor, first: Rounded, second: Rounded) -> Rounded:
    """Return the groups of `first` where `is_first` [columns, groups], of `second` elsewhere."""
    assert first.minimums is not None
    assert second.minimums is not None
    return Rounded(
        torch.where(is_first[..., None], first.integers, second.integers),
        torch.where(is_first, first.scales, second.scales),
        torch.where(is_first, first.minimums, second.minimums),
    )


def like_sized_order(gate: Tensor, up: Tensor, norm: Tensor | None) -> Tensor:
    """Return the columns of an MLP [columns, inputs] from those of small results to large ones.

    A result is a gated product of two sums over inputs whose size goes with `norm`, and its size
    with those of both rows. As inputs of the next product neighbours share a scale, which their
    largest decides: like beside like, none is rounded away.
    """
    sizes = torch.ones(len(gate))
    for weight in (gate, up):
        row = weight.float() if norm is None else weight.float() * norm
        sizes *= row.square().sum(1)
    return torch.argsort(sizes, stable=True)


def _affine(split: Tensor, scales: Tensor, minimums: Tensor, largest: int) -> Rounded:
    scales, minimums = scales.bfloat16().float(), minimums.bfloat16().float()
    integers = _nearest(split - minimums[..., None], scales, 0, largest)
    return Rounded(integers, scales, minimums)


def _nearest(split: Tensor, scales: Tensor, low: int, high: int) -> Tensor:
    """Return `split` [columns, groups, n] as integers of `scales` [columns, groups]."""
    divisors = torch.where(scales != 0, scales, 1.0)
    return (split / divisors[..., None]).round_().clamp_(low, high)


def _error(split: Tensor, rounded: Rounded) -> Tensor:
    """Return the squared error of each group."""
    return (rounded.values - split).square_().sum(-1)
