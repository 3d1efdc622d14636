"""Matrix products of a transformer layer with what surrounds them: references and C++ callers.

    normed    rms_norm(x) · Wᵀ + bias                           queries, keys and values
    residual  x · Wᵀ + bias + other                             back into the residual stream
    gated     act(rms_norm(x) · Gᵀ) * (rms_norm(x) · Uᵀ)        the first half of the MLP
    partial   x · Wᵀ in float32                                 what one rank adds to a product

x, other, result [tokens, …] in the model's dtype, weights [out, in] plain or quantized (see
`matrix`), norms [in] and biases [out] float32; without a norm x is taken as it is. `act` is `silu`
or `gelu` (its tanh form). Sums, norms and activations are float32; the normalized x and the result
are rounded once. The C++ forms read one packed copy of the weight (see `linear.cpp`), and the
result for a token does not depend on the other tokens, bit for bit.
"""

import ctypes
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from core.kernels.matrix import LANES, Matrix, PackedMatrix
from core.kernels.prefetch import Upcoming


class Normed(Protocol):
    """Product with the normalized input; `Gated` has the same form."""

    @property
    def num_bytes(self) -> int:
        """Memory of the weights, bytes."""
        ...

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        ...


Gated = Normed


class Residual(Protocol):
    """Product added to a second operand."""

    @property
    def num_bytes(self) -> int:
        """Memory of the weight, bytes."""
        ...

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ + bias + other."""
        ...


class Partial(Protocol):
    """Product with some of the inputs, to be added to others."""

    @property
    def num_bytes(self) -> int:
        """Memory of the weight, bytes."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ, float32."""
        ...


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.nn.functional.silu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def rms_norm(x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x²) + epsilon) * norm, row by row, in x's dtype."""
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * factor * norm).to(x.dtype)


def _normalized(x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
    return x if norm is None else rms_norm(x, norm, epsilon)


class TorchNormed:
    """The reference."""

    def __init__(self, weight: Matrix, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self.num_bytes = weight.num_bytes + _bytes_of(bias)

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return rms_norm(x)·Wᵀ + bias."""
        product = self._weight.product(_normalized(x, norm, epsilon))
        return (product if self._bias is None else product.float() + self._bias).to(x.dtype)


class TorchResidual:
    """The reference."""

    def __init__(self, weight: Matrix, bias: Tensor | None = None) -> None:
        self._product = TorchNormed(weight, bias)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ + bias + other."""
        return self._product(x, None, 0.0) + other


class TorchGated:
    """The reference."""

    def __init__(self, gate: Matrix, up: Matrix, activation: str = "silu") -> None:
        self._gate, self._up = gate, up
        self._activation = ACTIVATIONS[activation]
        self.num_bytes = gate.num_bytes + up.num_bytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return act(rms_norm(x)·Gᵀ) * (rms_norm(x)·Uᵀ)."""
        normed = _normalized(x, norm, epsilon)
        gate, up = self._gate.product(normed).float(), self._up.product(normed).float()
        return (self._activation(gate) * up).to(x.dtype)


class TorchPartial:
    """The reference."""

    def __init__(self, weight: Matrix) -> None:
        """`weight` is in float32, or rounded."""
        self._weight = weight
        self.num_bytes = weight.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ."""
        return self._weight.product(x.float())


def _bytes_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes


class _Product(ctypes.Structure):
    """`headrace::Product` of `panels.h`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "weight", "bias", "other", "out")),
        *((name, ctypes.c_int32) for name in ("rows", "inputs", "columns")),
        ("epsilon", ctypes.c_float),
        ("upcoming", ctypes.c_void_p),
    )


class NativeProduct:
    """One packed weight and the C++ function that multiplies with it.

    `kind` is `normed`, `add`, `silu`, `gelu` or `logits`; `bias` is float32 [columns]. While it
    computes it fetches what is `upcoming`.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: str,
        weight: PackedMatrix,
        bias: Tensor | None = None,
        upcoming: Upcoming | None = None,
    ) -> None:
        self._function = getattr(library, f"headrace_{kind}_{weight.format}")
        self._weight, self._bias, self._upcoming = weight, bias, upcoming
        self._out_dtype = torch.float32 if kind == "logits" else weight.dtype
        self._product = _Product(
            weight=weight.data.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            inputs=weight.inputs,
            columns=weight.columns,
            upcoming=None if upcoming is None else upcoming.address,
        )
        self._address = ctypes.addressof(self._product)
        self.num_bytes = weight.num_bytes + _bytes_of(bias)

    def run(
        self,
        x: Tensor,
        *,
        norm: Tensor | None = None,
        epsilon: float = 0.0,
        other: Tensor | None = None,
    ) -> Tensor:
        """Return [rows, columns] for contiguous x [rows, inputs]."""
        assert x.is_contiguous(), "rows of x must follow each other"
        rows = x.shape[0]
        out = torch.empty(rows, self._weight.columns, dtype=self._out_dtype)
        product = self._product
        product.x = x.data_ptr()
        product.norm = None if norm is None else norm.data_ptr()
        product.other = None if other is None else other.data_ptr()
        product.out = out.data_ptr()
        product.rows = rows
        product.epsilon = epsilon
        self._function(self._address)
        return out

    @staticmethod
    def supports(inputs: int) -> bool:
        """Return whether inputs of this width fill whole vectors."""
        return inputs % LANES == 0


class NativeNormed:
    """rms_norm(x)·Wᵀ + bias by `linear.cpp`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: PackedMatrix,
        bias: Tensor | None = None,
        upcoming: Upcoming | None = None,
    ) -> None:
        self._product = NativeProduct(library, "normed", weight, bias, upcoming)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        return self._product.run(x, norm=norm, epsilon=epsilon)


class NativeResidual:
    """x·Wᵀ + bias + other by `linear.cpp`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: PackedMatrix,
        bias: Tensor | None = None,
        upcoming: Upcoming | None = None,
    ) -> None:
        self._product = NativeProduct(library, "add", weight, bias, upcoming)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the product."""
        return self._product.run(x, other=other)


class NativeGated:
    """act(rms_norm(x)·Gᵀ) * (rms_norm(x)·Uᵀ) by `linear.cpp`; the weight is a `pack_pair`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: PackedMatrix,
        activation: str = "silu",
        upcoming: Upcoming | None = None,
    ) -> None:
        self._product = NativeProduct(library, activation, weight, upcoming=upcoming)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        return self._product.run(x, norm=norm, epsilon=epsilon)


class NativePartial:
    """x·Wᵀ in float32 by `linear.cpp`: logits of an x that is not normalized."""

    def __init__(self, library: ctypes.CDLL, weight: PackedMatrix) -> None:
        self._product = NativeProduct(library, "logits", weight)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product."""
        return self._product.run(x)
