"""Matrix products of a transformer layer with what surrounds them: references and C++ callers.

    normed    rms_norm(x) · Wᵀ + bias                           queries, keys and values
    residual  x · Wᵀ + bias + other                             back into the residual stream
    gated     act(rms_norm(x) · Gᵀ) * (rms_norm(x) · Uᵀ)        the first half of the MLP

x, other, result [tokens, …] in the model's dtype, weights [out, in] in the same, norms [in] and
biases [out] float32; without a norm x is taken as it is. `act` is `silu` or `gelu` (its tanh form).
Sums, norms and activations are float32; the normalized x and the result are rounded once.
The C++ forms keep one packed copy of the weight (see `linear.cpp`), and the result for a token does
not depend on the other tokens, bit for bit.
"""

import ctypes
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

PANEL_COLUMNS = 32
LANES = 16


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

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self.num_bytes = weight.nbytes + _bytes_of(bias)

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return rms_norm(x)·Wᵀ + bias."""
        product = torch.nn.functional.linear(_normalized(x, norm, epsilon), self._weight)
        return product if self._bias is None else (product.float() + self._bias).to(x.dtype)


class TorchResidual:
    """The reference."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._product = TorchNormed(weight, bias)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ + bias + other."""
        return self._product(x, None, 0.0) + other


class TorchGated:
    """The reference."""

    def __init__(self, gate: Tensor, up: Tensor, activation: str = "silu") -> None:
        self._gate, self._up = gate, up
        self._activation = ACTIVATIONS[activation]
        self.num_bytes = gate.nbytes + up.nbytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return act(rms_norm(x)·Gᵀ) * (rms_norm(x)·Uᵀ)."""
        normed = _normalized(x, norm, epsilon)
        gate = torch.nn.functional.linear(normed, self._gate).float()
        up = torch.nn.functional.linear(normed, self._up).float()
        return (self._activation(gate) * up).to(x.dtype)


def _bytes_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.nbytes


class _Product(ctypes.Structure):
    """`headrace::Product` of `linear.cpp`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "weight", "bias", "other", "out")),
        *((name, ctypes.c_int32) for name in ("rows", "inputs", "columns")),
        ("epsilon", ctypes.c_float),
    )


class NativeProduct:
    """One packed weight and the C++ function that multiplies with it.

    `kind` is `normed`, `add`, `silu`, `gelu` or `logits`; `packed` has the panels of `columns`
    results, `bias` is float32 [columns].
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        kind: str,
        packed: Tensor,
        inputs: int,
        columns: int,
        bias: Tensor | None = None,
    ) -> None:
        suffix = "bfloat16" if packed.dtype == torch.bfloat16 else "float32"
        self._function = getattr(library, f"headrace_{kind}_{suffix}")
        self._packed, self._bias = packed, bias
        self._columns = columns
        self._out_dtype = torch.float32 if kind == "logits" else packed.dtype
        self._product = _Product(
            weight=packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            inputs=inputs,
            columns=columns,
        )
        self._address = ctypes.addressof(self._product)
        self.num_bytes = packed.nbytes + _bytes_of(bias)

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
        out = torch.empty(rows, self._columns, dtype=self._out_dtype)
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

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        columns, inputs = weight.shape
        packed = pack_panels(weight, PANEL_COLUMNS)
        self._product = NativeProduct(library, "normed", packed, inputs, columns, bias)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        return self._product.run(x, norm=norm, epsilon=epsilon)


class NativeResidual:
    """x·Wᵀ + bias + other by `linear.cpp`."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        columns, inputs = weight.shape
        packed = pack_panels(weight, PANEL_COLUMNS)
        self._product = NativeProduct(library, "add", packed, inputs, columns, bias)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the product."""
        return self._product.run(x, other=other)


class NativeGated:
    """act(rms_norm(x)·Gᵀ) * (rms_norm(x)·Uᵀ) by `linear.cpp`."""

    def __init__(
        self, library: ctypes.CDLL, gate: Tensor, up: Tensor, activation: str = "silu"
    ) -> None:
        columns, inputs = gate.shape
        halves = torch.stack((pack_panels(gate, LANES), pack_panels(up, LANES)), dim=2)
        packed = halves.flatten(2, 3).contiguous()  # [panels, inputs/pack, gate 16 | up 16, pack]
        self._product = NativeProduct(library, activation, packed, inputs, columns)
        self.num_bytes = self._product.num_bytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        return self._product.run(x, norm=norm, epsilon=epsilon)


def pack_panels(weight: Tensor, width: int) -> Tensor:
    """Return [panels, inputs/pack, width, pack] of `weight` [columns, inputs], zero-padded.

    `pack` is the number of elements in 32 bits.
    """
    columns, inputs = weight.shape
    pack = 4 // weight.itemsize
    panels = -(-columns // width)
    padded = torch.nn.functional.pad(weight, (0, 0, 0, panels * width - columns))
    split = padded.view(panels, width, inputs // pack, pack)
    return split.permute(0, 2, 1, 3).contiguous()
