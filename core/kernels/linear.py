"""Matrix products with weights that are packed once: oneDNN, and the plain-torch reference.

x [tokens, in], weight [out, in], result [tokens, out], all in the model's dtype; accumulated in
float32. `activation` and the second operand are applied before the one rounding of the result.
"""

from typing import Protocol

import torch
from torch import Tensor


class Linear(Protocol):
    """One weight and the products the model needs with it."""

    @property
    def num_bytes(self) -> int:
        """Memory of the weight, bytes."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ."""
        ...

    def silu(self, x: Tensor) -> Tensor:
        """Return silu(x·Wᵀ)."""
        ...

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ + other."""
        ...

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ * other."""
        ...


class TorchLinear:
    """The reference: products, activation and second operand in float32."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @property
    def num_bytes(self) -> int:
        """Memory of the weight, bytes."""
        return self._weight.nbytes

    def _product(self, x: Tensor) -> Tensor:
        return x.float() @ self._weight.float().T

    def __call__(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ."""
        return self._product(x).to(x.dtype)

    def silu(self, x: Tensor) -> Tensor:
        """Return silu(x·Wᵀ)."""
        return torch.nn.functional.silu(self._product(x)).to(x.dtype)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ + other."""
        return (self._product(x) + other.float()).to(x.dtype)

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ * other."""
        return (self._product(x) * other.float()).to(x.dtype)


class PackedLinear:
    """The same by oneDNN over its own blocked copy of the weight.

    In float32 oneDNN sums a single row in another order than several, so one row is computed
    as two: a token's numbers must not depend on what else is in the step.
    """

    def __init__(self, weight: Tensor) -> None:
        self.num_bytes = weight.nbytes
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._pads_single_rows = weight.dtype == torch.float32
        self._unary = torch.ops.mkldnn._linear_pointwise.default
        self._binary = torch.ops.mkldnn._linear_pointwise.binary

    @staticmethod
    def supports(dtype: torch.dtype) -> bool:
        """Return whether oneDNN has fast kernels of this dtype on this CPU."""
        if not torch._C._has_mkldnn:
            return False
        return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())

    def __call__(self, x: Tensor) -> Tensor:
        """Return x·Wᵀ."""
        return self._apply(x, "none")

    def silu(self, x: Tensor) -> Tensor:
        """Return silu(x·Wᵀ)."""
        return self._apply(x, "swish")

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ + other."""
        return self._combine(x, other, "add")

    def multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x·Wᵀ * other."""
        return self._combine(x, other, "mul")

    def _apply(self, x: Tensor, activation: str) -> Tensor:
        if self._pads_single_rows and x.shape[0] == 1:
            return self._apply(x.repeat(2, 1), activation)[:1]
        out: Tensor = self._unary(x, self._packed, None, activation, [], "")
        return out

    def _combine(self, x: Tensor, other: Tensor, operation: str) -> Tensor:
        if self._pads_single_rows and x.shape[0] == 1:
            return self._combine(x.repeat(2, 1), other.repeat(2, 1), operation)[:1]
        out: Tensor = self._binary(x, other, self._packed, None, operation)
        return out


def make_linear(weight: Tensor, *, fast: bool) -> Linear:
    """Return the packed form if wanted and supported, else the reference."""
    if fast and PackedLinear.supports(weight.dtype):
        return PackedLinear(weight)
    return TorchLinear(weight)
