"""Root-mean-square normalization: plain-torch reference and the C++ kernel's caller.

x, out [tokens, hidden] in the model's dtype; weight [hidden] float32; computed in float32.
"""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return x / sqrt(mean(x²) + epsilon) * weight, row by row."""
    wide = x.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (wide * factor * weight).to(x.dtype)


class NativeRmsNorm:
    """The same by `rms_norm.cpp`; hidden must be a multiple of 16 (`supports`)."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        suffix = "bfloat16" if dtype == torch.bfloat16 else "float32"
        self._function = getattr(library, f"headrace_rms_norm_{suffix}")

    @staticmethod
    def supports(hidden_size: int) -> bool:
        """Return whether rows of this width fill whole vectors."""
        return hidden_size % 16 == 0

    def __call__(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Return the normalized rows."""
        out = torch.empty_like(x)
        self._function(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], epsilon
        )
        return out
