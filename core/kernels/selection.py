"""Which implementation of each kernel a model uses on this machine.

Owns: the choice between the C++ kernels and their plain-torch references, per model shape.
Never knows: layers or weights beyond their sizes.
"""

import ctypes
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from core.kernels.linear import Linear, make_linear
from core.kernels.native import load_native
from core.kernels.paged_attention import (
    AttentionShape,
    NativePagedAttention,
    PagedAttention,
    TorchPagedAttention,
)
from core.kernels.rms_norm import NativeRmsNorm, RmsNorm, rms_norm
from core.kernels.vocabulary import PackedVocabulary, PlainVocabulary, Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Makes the kernels of one model. `library` None = plain torch everywhere."""

    library: ctypes.CDLL | None
    dtype: torch.dtype

    @property
    def path(self) -> str:
        """`cpp` or `torch`."""
        return "torch" if self.library is None else "cpp"

    def linear(self, weight: Tensor) -> Linear:
        """Return the products with `weight` [out, in]."""
        return make_linear(weight, fast=True)

    def rms_norm(self) -> RmsNorm:
        """Return the normalization."""
        return rms_norm if self.library is None else NativeRmsNorm(self.library, self.dtype)

    def vocabulary(self, weight: Tensor) -> Vocabulary:
        """Return the embedding or LM head with `weight` [vocabulary, hidden]."""
        if self.library is None:
            return PlainVocabulary(weight)
        return PackedVocabulary(self.library, weight)

    def attention(self, shape: AttentionShape, cos_sin: Tensor) -> PagedAttention:
        """Return the attention; `cos_sin` float32 [positions, head_dim]."""
        if self.library is None:
            return TorchPagedAttention(shape, cos_sin)
        return NativePagedAttention(self.library, shape, cos_sin, self.dtype)


def select_kernels(
    cache_directory: Path, dtype: torch.dtype, *, hidden_size: int, head_dim: int
) -> Kernels:
    """Return the C++ kernels if they can be built and fit the model's widths, else the references.

    Says so in a warning if the slow path is taken.
    """
    fits = (
        NativeRmsNorm.supports(hidden_size)
        and PackedVocabulary.supports(hidden_size)
        and NativePagedAttention.supports(head_dim)
    )
    if not fits:
        logger.warning(
            "hidden size %d or head size %d does not fit the native kernels, using plain torch",
            hidden_size,
            head_dim,
        )
        return Kernels(None, dtype)
    return Kernels(load_native(cache_directory), dtype)
