"""Weight matrices as the products take them: plain or in 8 or 4 bits, packed for C++ or for torch.

Owns: the formats of weights and their layout in memory (panels; see `panels.h`, `quantized.h`), and
the plain-torch reference of each. Never knows: what a product is for, or layers.

Symmetric rounding, w ≈ integer · scale: `int8` has a scale for each column (in [-127, 127]), `int4`
one for each 32 inputs of a column (in [-8, 7]). The input of such a product is rounded too, to 8
bits with a scale for each group of a row's inputs: the products are then exact integers within a
group. Scales are float32, those of int4 rounded to bfloat16.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

LANES = 16
PANEL_COLUMNS = 32
ACTIVATION_MAX = 127
SHRINKS = (1.0, 1.12, 0.92, 0.84, 0.76)  # of the scale that makes the largest number fit exactly


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are rounded. `group` inputs share an input's scale."""

    name: str
    bits: int
    group: int
    column_scale: bool  # one scale a column instead of one a group and column

    @property
    def largest(self) -> int:
        """Integers lie in [-largest, largest], or one further down."""
        return (1 << self.bits - 1) - 1


INT8 = Quantization("int8", 8, 64, column_scale=True)
INT4 = Quantization("int4", 4, 32, column_scale=False)
QUANTIZATIONS = {"none": None, "int8": INT8, "int4": INT4}


class Matrix(Protocol):
    """A weight [columns, inputs] that rows can be multiplied with."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes, bytes."""
        ...

    def product(self, x: Tensor) -> Tensor:
        """Return x [rows, inputs] · Wᵀ as [rows, columns], rounded to x's dtype or finer."""
        ...


class PlainMatrix:
    """The weight as it is."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.num_bytes = weight.nbytes

    def product(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ in x's dtype."""
        return torch.nn.functional.linear(x, self._weight)


class RoundedMatrix:
    """The reference of quantized products: rounded weights and inputs, sums in float32."""

    def __init__(self, weight: Tensor, quantization: Quantization) -> None:
        self._quantization = quantization
        integers, scales = quantize(weight, quantization)
        self._integers = integers.to(torch.int8)
        self._scales = scales
        self.num_bytes = self._integers.nbytes + scales.nbytes

    def rows(self, index: Tensor) -> Tensor:
        """Return the rounded weight's rows at `index`, float32 [n, inputs]."""
        return _expand(self._integers[index], self._scales[index], self._quantization)

    def product(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ in float32."""
        rounded = round_input(x, self._quantization.group)
        return rounded @ _expand(self._integers, self._scales, self._quantization).T


def make_matrix(weight: Tensor, quantization: Quantization | None) -> Matrix:
    """Return the reference for `weight` [columns, inputs]."""
    return PlainMatrix(weight) if quantization is None else RoundedMatrix(weight, quantization)


def quantize(weight: Tensor, quantization: Quantization) -> tuple[Tensor, Tensor]:
    """Return float32 (integers [columns, inputs], scales [columns, groups]) of `weight`.

    There is one group if every column has one scale. A column or group of zeros has scale 0.
    """
    columns, inputs = weight.shape
    group = inputs if quantization.column_scale else quantization.group
    padded = torch.nn.functional.pad(weight.float(), (0, -inputs % group))
    split = padded.view(columns, -1, group)
    if quantization.column_scale:
        scales = split.abs().amax(-1) / quantization.largest
        whole = _nearest(split, scales, -quantization.largest, quantization.largest)
    else:
        whole, scales = _least_error(split, quantization)
    return whole.view(columns, -1)[:, :inputs], scales


def _nearest(split: Tensor, scales: Tensor, low: int, high: int) -> Tensor:
    """Return `split` [columns, groups, n] as integers of `scales` [columns, groups]."""
    divisors = torch.where(scales != 0, scales, 1.0)
    return (split / divisors[..., None]).round_().clamp_(low, high)


def _least_error(split: Tensor, quantization: Quantization) -> tuple[Tensor, Tensor]:
    """Return (integers, bfloat16-rounded scales) with the least squared error of a few scales.

    The number of largest magnitude takes the one integer more that the negative side has, so a
    scale may be negative; with a smaller scale it is cut off, and the others are finer.
    """
    place = split.abs().argmax(-1, keepdim=True)
    extreme = split.gather(-1, place).squeeze(-1) / -(quantization.largest + 1)
    whole = scales = error = None
    for shrink in SHRINKS:
        some_scales = (extreme * shrink).bfloat16().float()
        some = _nearest(split, some_scales, -quantization.largest - 1, quantization.largest)
        some_error = (some * some_scales[..., None] - split).square_().sum(-1)
        if whole is None or scales is None or error is None:
            whole, scales, error = some, some_scales, some_error
            continue
        better = some_error < error
        whole = torch.where(better[..., None], some, whole)
        scales = torch.where(better, some_scales, scales)
        error = torch.minimum(error, some_error)
    assert whole is not None
    assert scales is not None
    return whole, scales


def _expand(integers: Tensor, scales: Tensor, quantization: Quantization) -> Tensor:
    """Return float32 [columns, inputs]: integers times their scales [columns, groups]."""
    inputs = integers.shape[1]
    group = inputs if quantization.column_scale else quantization.group
    return integers.float() * scales.repeat_interleave(group, dim=1)[:, :inputs]


def round_input(x: Tensor, group: int) -> Tensor:
    """Return float32 x [rows, inputs], each `group` of a row as multiples of its largest / 127."""
    rows, inputs = x.shape
    padded = torch.nn.functional.pad(x.float(), (0, -inputs % group)).view(rows, -1, group)
    top = padded.abs().amax(-1, keepdim=True)
    scaled = torch.where(top > 0, padded * (ACTIVATION_MAX / top), padded)
    return (scaled.round() * (top / ACTIVATION_MAX)).view(rows, -1)[:, :inputs]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight in panels of 32 columns, for the C++ products.

    `data` holds the panels one after the other; `format` names the products that read them.
    """

    data: Tensor
    format: str
    columns: int
    inputs: int
    dtype: torch.dtype  # of inputs and results

    @property
    def num_bytes(self) -> int:
        """Memory it takes, bytes."""
        return self.data.nbytes


def pack_matrix(weight: Tensor, quantization: Quantization | None) -> PackedMatrix:
    """Return `weight` [columns, inputs] in panels."""
    columns, inputs = weight.shape
    name = str(weight.dtype).removeprefix("torch.")
    if quantization is None:
        return PackedMatrix(_cells(weight), name, columns, inputs, weight.dtype)
    integers, scales = quantize(weight, quantization)
    pack = _pack_int8 if quantization is INT8 else _pack_int4
    name = f"{quantization.name}_{name}"
    return PackedMatrix(pack(integers, scales), name, columns, inputs, weight.dtype)


def pack_pair(gate: Tensor, up: Tensor, quantization: Quantization | None) -> PackedMatrix:
    """Return both in panels of 16 columns of `gate` and the same 16 of `up`."""
    columns, inputs = gate.shape
    halves = [_pad_columns(one, LANES).view(-1, LANES, inputs) for one in (gate, up)]
    both = pack_matrix(torch.stack(halves, dim=1).view(-1, inputs), quantization)
    return PackedMatrix(both.data, both.format, columns, inputs, gate.dtype)


def _pad_columns(weight: Tensor, multiple: int) -> Tensor:
    return torch.nn.functional.pad(weight, (0, 0, 0, -weight.shape[0] % multiple))


def _cells(weight: Tensor) -> Tensor:
    """Return [panels, inputs/pack, 32, pack]; `pack` is the number of elements in 32 bits."""
    inputs, pack = weight.shape[1], 4 // weight.itemsize
    panels = _pad_columns(weight, PANEL_COLUMNS).view(-1, PANEL_COLUMNS, inputs // pack, pack)
    return panels.permute(0, 2, 1, 3).contiguous()


def _unsigned(integers: Tensor, quantization: Quantization) -> Tensor:
    """Return uint8 [columns of whole panels, inputs of whole groups], 0 as half the range."""
    padded = _pad_columns(integers, PANEL_COLUMNS)
    padded = torch.nn.functional.pad(padded, (0, -integers.shape[1] % quantization.group))
    return (padded + (quantization.largest + 1)).to(torch.uint8)


def _pack_int8(integers: Tensor, scales: Tensor) -> Tensor:
    """Return uint8 [panels, bytes]: cells of a panel, then its float32 scales."""
    cells = _cells(_unsigned(integers, INT8)).flatten(1)
    tail = _pad_columns(scales, PANEL_COLUMNS).view(-1, PANEL_COLUMNS)
    return torch.cat((cells, tail.view(torch.uint8)), dim=1)


def _pack_int4(integers: Tensor, scales: Tensor) -> Tensor:
    """Return uint8 [panels, groups, bytes]: half-byte cells of a group, then bfloat16 scales."""
    group = INT4.group
    cells = _cells(_unsigned(integers, INT4))  # [panels, inputs/4, 32, 4]
    halves = cells.view(len(cells), -1, 2, group // 8, PANEL_COLUMNS, 4)
    words = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(2)
    tail = _pad_columns(scales, PANEL_COLUMNS).view(len(cells), PANEL_COLUMNS, -1)
    tail = tail.transpose(1, 2).contiguous().bfloat16()
    return torch.cat((words, tail.view(torch.uint8)), dim=2)
