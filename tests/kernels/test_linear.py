"""Fused products: the C++ kernels against the plain-torch references."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from core.kernels.linear import ACTIVATIONS, rms_norm
from core.kernels.matrix import INT4, QUANTIZATIONS, pack_matrix
from core.kernels.selection import Kernels
from tests.support.kernels.grids import on_grid
from tests.support.kernels.native_kernels import native_library

DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"]
)
SHAPES = pytest.mark.parametrize(
    ("inputs", "columns"), [(16, 7), (48, 32), (80, 61), (576, 160)], ids=lambda size: str(size)
)
FORMATS = pytest.mark.parametrize("quantization", QUANTIZATIONS)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
# An input that lies between two integers may be rounded either way.
ROUNDED_TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 2**-4}
EPSILON = 1e-5
KINDS = pytest.mark.parametrize(
    "kind", ["normed", "biased", "residual", "biased-residual", "gated", "geglu"]
)

Product = Callable[[Tensor, Tensor], Tensor]


class Operands:
    """Random weights, inputs and second operands of one shape.

    Those for `int4` are weights that 4 bits hold: others would be kept in 8.
    """

    def __init__(
        self, rows: int, inputs: int, columns: int, dtype: torch.dtype, quantization: str = "none"
    ) -> None:
        generator = torch.Generator().manual_seed(rows * inputs + columns)

        def random(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        weights = [random(columns, inputs) / inputs**0.5 for _ in range(2)]
        if quantization == "int4":
            weights = [on_grid(weight) for weight in weights]
        self.weight, self.up = (weight.to(dtype) for weight in weights)
        self.x = random(rows, inputs).mul(3).to(dtype)
        self.other = random(rows, columns).to(dtype)
        self.norm = 1 + random(inputs) / 10
        self.bias = random(columns)

    def products(self, kernels: Kernels) -> dict[str, Product]:
        """Each product as a function of (x, other)."""
        normed, biased = kernels.normed(self.weight), kernels.normed(self.weight, self.bias)
        gated, geglu = (kernels.gated(self.weight, self.up, name) for name in ("silu", "gelu"))
        return {
            "normed": lambda x, other: normed(x, self.norm, EPSILON),
            "biased": lambda x, other: biased(x, None, EPSILON),
            "residual": kernels.residual(self.weight),
            "biased-residual": kernels.residual(self.weight, self.bias),
            "gated": lambda x, other: gated(x, self.norm, EPSILON),
            "geglu": lambda x, other: geglu(x, None, EPSILON),
        }


def native(dtype: torch.dtype, quantization: str = "none") -> Kernels:
    """The C++ kernels."""
    return Kernels(native_library(), dtype, QUANTIZATIONS[quantization])


def reference(dtype: torch.dtype, quantization: str = "none") -> Kernels:
    """The plain-torch ones."""
    return Kernels(None, dtype, QUANTIZATIONS[quantization])


@DTYPES
@SHAPES
def test_weights_stay_in_4_bits_only_where_these_hold_them(
    inputs: int, columns: int, dtype: torch.dtype
) -> None:
    """`int4` keeps weights on a grid in 4 bits, and all others in 8."""
    operands = Operands(1, inputs, columns, dtype, "int4")
    assert pack_matrix(operands.weight, INT4).format.startswith("int4")
    others = Operands(1, inputs, columns, dtype)
    assert pack_matrix(others.weight, INT4).format.startswith("int8")


@DTYPES
@SHAPES
@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 63])
@FORMATS
@KINDS
def test_native_equals_reference(
    kind: str, quantization: str, rows: int, inputs: int, columns: int, dtype: torch.dtype
) -> None:
    """Every product of odd shapes and every format of weights agrees to the rounding of numbers."""
    operands = Operands(rows, inputs, columns, dtype, quantization)
    got = operands.products(native(dtype, quantization))[kind](operands.x, operands.other)
    expected = operands.products(reference(dtype, quantization))[kind](operands.x, operands.other)
    assert got.dtype == dtype
    tolerance = TOLERANCE[dtype] if quantization == "none" else ROUNDED_TOLERANCE[dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@DTYPES
@FORMATS
@KINDS
def test_a_row_is_the_same_alone_and_among_others(
    kind: str, quantization: str, dtype: torch.dtype
) -> None:
    """A token's product is bit-identical whatever other tokens are in the step."""
    operands = Operands(65, 576, 96, dtype, quantization)
    product = operands.products(native(dtype, quantization))[kind]
    together = product(operands.x, operands.other)
    for rows in (1, 2, 3, 8, 12, 31, 64):
        alone = product(operands.x[:rows].contiguous(), operands.other[:rows].contiguous())
        assert torch.equal(alone, together[:rows])


@KINDS
@FORMATS
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nan_stays_in_its_row(kind: str, quantization: str, poison: float) -> None:
    """A row with a NaN or an infinity ends as NaN or infinity and does not touch its neighbours."""
    operands = Operands(14, 32, 32, torch.float32, quantization)
    operands.x[6, 5] = poison
    out = operands.products(native(torch.float32, quantization))[kind](operands.x, operands.other)
    assert (~out.isfinite()).any(dim=1).nonzero().flatten().tolist() == [6]


def test_a_row_of_zeros_stays_zero() -> None:
    """Epsilon keeps a row without any magnitude finite, in kernel and reference."""
    x, norm = torch.zeros(2, 32), torch.ones(32)
    assert torch.equal(rms_norm(x, norm, EPSILON), x)
    for name in QUANTIZATIONS:
        normed = native(torch.float32, name).normed(torch.ones(4, 32))
        assert torch.equal(normed(x, norm, EPSILON), torch.zeros(2, 4))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("value", [-200.0, -30.0, -3.0, -1e-3, 0.0, 1e-3, 3.0, 30.0, 200.0])
def test_activations_are_finite_everywhere(value: float, activation: str) -> None:
    """The activation of very small and very large gates is exact to rounding, never NaN."""
    weight = torch.zeros(1, 16)
    weight[0, 0] = 1.0
    x = torch.ones(1, 16)
    gated = native(torch.float32).gated(weight * value, weight, activation)
    exact = ACTIVATIONS[activation](torch.tensor([[value]], dtype=torch.float64)).float()
    torch.testing.assert_close(gated(x, torch.ones(16), 0.0), exact, rtol=1e-5, atol=1e-8)
