"""Weight matrices as the products take them: plain or in 8 or 4 bits, packed for C++ or for torch.

Owns: the formats of weights and their layout in memory (panels; see `panels.h`, `quantized.h`), and
the plain-torch reference of each. Never knows: what a product is for, or layers, or which integers
come closest to a weight (`core.kernels.rounding`).

`int8`: w ≈ integer · scale with a scale for each column, integers in [-127, 127]. `int4`:
w ≈ integer · scale + minimum with both for each 32 inputs of a column, integers in [0, 15], where
the weight lies on such a grid; one that does not is kept in 8 bits. The input of such a product is
rounded too, to 8 bits with a scale for each group of a row's inputs: the products are then exact
integers within a group. Scales are float32, those of int4 and its minimums rounded to bfloat16.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.kernels.rounding import (
    GRID_ERROR,
    Rounded,
    relative_error,
    round_affine,
    round_symmetric,
)

LANES = 16
PANEL_COLUMNS = 32
ACTIVATION_MAX = 127
INT8_MAX, INT4_MAX = 127, 15


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are rounded. `group` inputs share an input's scale."""

    name: str
    group: int
    column_scale: bool  # one scale a column instead of a scale and minimum a group and column


INT8 = Quantization("int8", 64, column_scale=True)
INT4 = Quantization("int4", 32, column_scale=False)
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
        quantization, rounded = quantize(weight, quantization)
        self._group, self._inputs = quantization.group, weight.shape[1]
        self._integers = rounded.integers.to(torch.int8)
        self._scales, self._minimums = rounded.scales, rounded.minimums
        self.num_bytes = sum(
            part.nbytes
            for part in (self._integers, self._scales, self._minimums)
            if part is not None
        )

    def rows(self, index: Tensor | slice) -> Tensor:
        """Return the rounded weight's rows at `index`, float32 [n, inputs]."""
        minimums = None if self._minimums is None else self._minimums[index]
        some = Rounded(self._integers[index].float(), self._scales[index], minimums)
        return some.values.flatten(1)[:, : self._inputs]

    def product(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ in float32."""
        return round_input(x, self._group) @ self.rows(slice(None)).T


def make_matrix(weight: Tensor, quantization: Quantization | None) -> Matrix:
    """Return the reference for `weight` [columns, inputs]."""
    return PlainMatrix(weight) if quantization is None else RoundedMatrix(weight, quantization)


def quantize(weight: Tensor, quantization: Quantization) -> tuple[Quantization, Rounded]:
    """Return `weight` [columns, inputs] rounded, and in which format that is.

    A weight that 4 bits do not hold comes in 8. Inputs are padded to whole groups; there is one
    group if every column has one scale.
    """
    if quantization is INT4:
        split = _groups(weight, INT4.group)
        rounded = round_affine(split, INT4_MAX)
        if relative_error(split, rounded) <= GRID_ERROR:
            return INT4, rounded
    return INT8, round_symmetric(_groups(weight, weight.shape[1]), INT8_MAX)


def _groups(weight: Tensor, group: int) -> Tensor:
    """Return float32 [columns, groups, group]; the last input is repeated to fill a group."""
    columns, inputs = weight.shape
    padding = (0, -inputs % group)
    padded = torch.nn.functional.pad(weight.float()[None], padding, mode="replicate")
    return padded.view(columns, -1, group)


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
    quantization, rounded = quantize(weight, quantization)
    data = _pack_int8(rounded) if quantization is INT8 else _pack_int4(rounded)
    return PackedMatrix(data, f"{quantization.name}_{name}", columns, inputs, weight.dtype)


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


def _pack_int8(rounded: Rounded) -> Tensor:
    """Return uint8 [panels, bytes]: cells of a panel, then its float32 scales."""
    integers = _pad_columns(rounded.integers.flatten(1), PANEL_COLUMNS)
    padded = torch.nn.functional.pad(integers, (0, -integers.shape[1] % INT8.group))
    cells = _cells((padded + (INT8_MAX + 1)).to(torch.uint8)).flatten(1)
    tail = _pad_columns(rounded.scales, PANEL_COLUMNS).view(-1, PANEL_COLUMNS)
    return torch.cat((cells, tail.view(torch.uint8)), dim=1)


def _pack_int4(rounded: Rounded) -> Tensor:
    """Return uint8 [panels, groups, bytes]: half-byte cells, bfloat16 scales and minimums."""
    assert rounded.minimums is not None
    integers = _pad_columns(rounded.integers.flatten(1), PANEL_COLUMNS)
    cells = _cells(integers.to(torch.uint8))  # [panels, inputs/4, 32, 4]
    halves = cells.view(len(cells), -1, 2, INT4.group // 8, PANEL_COLUMNS, 4)
    words = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(2)
    tails = [
        _pad_columns(one, PANEL_COLUMNS).view(len(cells), PANEL_COLUMNS, -1).transpose(1, 2)
        for one in (rounded.scales, rounded.minimums)
    ]
    tail = torch.cat(tails, dim=2).bfloat16()
    return torch.cat((words, tail.view(torch.uint8)), dim=2)
