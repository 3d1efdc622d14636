"""RMS norms that no product takes in: behind attention and MLP, and of queries and keys.

    norm_add    other + rms_norm(x)      into the residual stream (Gemma 2, OLMo 2)
    norm_heads  queries, keys of qkv     before they are rotated: a head at a time (Qwen3, Gemma 3)
                                         or all heads as one vector (OLMo 2)

Norms are float32, sums too; results are rounded once to the model's dtype. References, and the
callers of `norm.cpp`.
"""

import ctypes
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.kernels.linear import Normed, rms_norm


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms of the queries and keys of one layer.

    `query` and `key` float32 [size]: the first `queries` pieces of a row of qkv, each as long as
    `query`, are normalized by themselves, and then `keys` pieces as long as `key`.
    """

    query: Tensor
    key: Tensor
    queries: int
    keys: int
    epsilon: float

    def parts(self, qkv: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
        """Return what of `qkv` [rows, columns] is normalized, as views, each with its norm."""
        middle = self.queries * len(self.query)
        end = middle + self.keys * len(self.key)
        return (qkv[:, :middle], self.query), (qkv[:, middle:end], self.key)

    @property
    def num_bytes(self) -> int:
        """Memory of the norms, bytes."""
        return self.query.nbytes + self.key.nbytes


class NormAdd(Protocol):
    """The norm of a result on its way into the residual stream."""

    @property
    def num_bytes(self) -> int:
        """Memory of the norm, bytes."""
        ...

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return other + rms_norm(x), both [tokens, size]."""
        ...


class NormHeads(Protocol):
    """The norms of queries and keys."""

    def __call__(self, qkv: Tensor) -> None:
        """Normalize queries and keys of qkv [tokens, qkv_size], contiguous, in place."""
        ...


class TorchNormAdd:
    """The reference."""

    def __init__(self, norm: Tensor, epsilon: float) -> None:
        self._norm, self._epsilon = norm, epsilon
        self.num_bytes = norm.nbytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the sum."""
        return (other.float() + rms_norm(x.float(), self._norm, self._epsilon)).to(x.dtype)


class TorchNormHeads:
    """The reference."""

    def __init__(self, norms: HeadNorms) -> None:
        self._norms = norms

    def __call__(self, qkv: Tensor) -> None:
        """Normalize in place."""
        for part, norm in self._norms.parts(qkv):
            pieces = part.reshape(-1, len(norm))
            part.copy_(rms_norm(pieces, norm, self._norms.epsilon).view(part.shape))


class _NormAdd(ctypes.Structure):
    """`headrace::NormAdd` of `norm.cpp`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "norm", "other", "out")),
        *((name, ctypes.c_int32) for name in ("rows", "size")),
        ("epsilon", ctypes.c_float),
    )


class _NormHeads(ctypes.Structure):
    """`headrace::NormHeads` of `norm.cpp`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "query_norm", "key_norm")),
        *((name, ctypes.c_int32) for name in ("rows", "stride", "queries", "query_size")),
        *((name, ctypes.c_int32) for name in ("keys", "key_size")),
        ("epsilon", ctypes.c_float),
    )


class NativeNormAdd:
    """The same by `norm.cpp`."""

    def __init__(
        self, library: ctypes.CDLL, norm: Tensor, epsilon: float, dtype: torch.dtype
    ) -> None:
        self._function = getattr(library, f"headrace_norm_add_{_suffix(dtype)}")
        self._norm = norm
        self._arguments = _NormAdd(norm=norm.data_ptr(), size=len(norm), epsilon=epsilon)
        self._address = ctypes.addressof(self._arguments)
        self.num_bytes = norm.nbytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the sum."""
        assert x.is_contiguous(), "rows of x must follow each other"
        assert other.is_contiguous(), "rows of the residual stream must follow each other"
        out = torch.empty_like(x)
        arguments = self._arguments
        arguments.x, arguments.other, arguments.out = x.data_ptr(), other.data_ptr(), out.data_ptr()
        arguments.rows = len(x)
        self._function(self._address)
        return out


class NativeNormHeads:
    """The same by `norm.cpp`."""

    def __init__(self, library: ctypes.CDLL, norms: HeadNorms, dtype: torch.dtype) -> None:
        self._function = getattr(library, f"headrace_norm_heads_{_suffix(dtype)}")
        self._norms = norms
        self._arguments = _NormHeads(
            query_norm=norms.query.data_ptr(),
            key_norm=norms.key.data_ptr(),
            queries=norms.queries,
            query_size=len(norms.query),
            keys=norms.keys,
            key_size=len(norms.key),
            epsilon=norms.epsilon,
        )
        self._address = ctypes.addressof(self._arguments)

    def __call__(self, qkv: Tensor) -> None:
        """Normalize in place."""
        assert qkv.is_contiguous(), "rows of qkv must follow each other"
        arguments = self._arguments
        arguments.qkv = qkv.data_ptr()
        arguments.rows, arguments.stride = qkv.shape
        self._function(self._address)


class NormedHeads:
    """A product of queries, keys and values whose queries and keys are normalized after it."""

    def __init__(self, product: Normed, norm_heads: NormHeads, norms: HeadNorms) -> None:
        self._product, self._norm_heads = product, norm_heads
        self.num_bytes = product.num_bytes + norms.num_bytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product of rms_norm(x), its queries and keys normalized."""
        qkv = self._product(x, norm, epsilon)
        self._norm_heads(qkv)
        return qkv


class NormedResidual:
    """A product that is normalized before it goes into the residual stream."""

    def __init__(self, product: Normed, norm_add: NormAdd) -> None:
        self._product, self._norm_add = product, norm_add
        self.num_bytes = product.num_bytes + norm_add.num_bytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return rms_norm(x·Wᵀ + bias) + other."""
        return self._norm_add(self._product(x, None, 0.0), other)


def _suffix(dtype: torch.dtype) -> str:
    return "bfloat16" if dtype == torch.bfloat16 else "float32"
