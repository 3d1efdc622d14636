"""Which implementation of each kernel a model uses on this machine.

Owns: the choice between the C++ kernels and their plain-torch references, per model shape.
Never knows: layers or weights beyond their sizes.
"""

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from core.kernels.choice import Choice, NativeChoice, TorchChoice
from core.kernels.linear import (
    Gated,
    NativeGated,
    NativeNormed,
    NativePartial,
    NativeProduct,
    NativeResidual,
    Normed,
    Partial,
    Residual,
    TorchGated,
    TorchNormed,
    TorchPartial,
    TorchResidual,
)
from core.kernels.matrix import (
    INT8,
    Quantization,
    RoundedMatrix,
    make_matrix,
    pack_matrix,
    pack_pair,
)
from core.kernels.native import load_native
from core.kernels.norm import (
    HeadNorms,
    NativeNormAdd,
    NativeNormHeads,
    NormAdd,
    NormHeads,
    TorchNormAdd,
    TorchNormHeads,
)
from core.kernels.paged_attention import (
    PLAIN_RULE,
    AttentionRule,
    AttentionShape,
    NativePagedAttention,
    PagedAttention,
    TorchPagedAttention,
)
from core.kernels.prefetch import Upcoming
from core.kernels.vocabulary import (
    PackedVocabulary,
    PlainVocabulary,
    RoundedVocabulary,
    Vocabulary,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    """See `core.kernels.kernel_set.KernelSet`. `library` None = plain torch everywhere."""

    library: ctypes.CDLL | None
    dtype: torch.dtype
    quantization: Quantization | None = None
    upcoming: Upcoming = field(default_factory=Upcoming, repr=False, compare=False)

    @property
    def path(self) -> str:
        """`cpp` or `torch`."""
        return "torch" if self.library is None else "cpp"

    @property
    def name(self) -> str:
        """The file of the C++ kernels, another one for other sources or flags; or `torch`."""
        return "torch" if self.library is None else Path(self.library._name).name

    @property
    def rounds_inputs(self) -> bool:
        """With `int8` they are; the weights of `int4` have scales by groups of inputs too."""
        return self.quantization is not None and self.quantization.column_scale

    def place(self, tensor: Tensor) -> Tensor:
        """Return the tensor: all is in the host's memory."""
        return tensor

    def normed(self, weight: Tensor, bias: Tensor | None = None) -> Normed:
        """Return the product rms_norm(x)·Wᵀ + bias with `weight` [out, in]."""
        if self.library is None:
            return TorchNormed(make_matrix(weight, self.quantization), bias)
        packed = pack_matrix(weight, self.quantization)
        return NativeNormed(self.library, packed, bias, self.upcoming)

    def residual(self, weight: Tensor, bias: Tensor | None = None) -> Residual:
        """Return the product x·Wᵀ + bias + other with `weight` [out, in]."""
        if self.library is None:
            return TorchResidual(make_matrix(weight, self.quantization), bias)
        packed = pack_matrix(weight, self.quantization)
        return NativeResidual(self.library, packed, bias, self.upcoming)

    def partial(self, weight: Tensor) -> Partial:
        """Return the product x·Wᵀ in float32 with `weight` [out, some of the inputs]."""
        if self.library is None:
            return TorchPartial(make_matrix(weight.float(), self.quantization))
        return NativePartial(self.library, pack_matrix(weight, self.quantization))

    def gated(self, gate: Tensor, up: Tensor, activation: str = "silu") -> Gated:
        """Return the gated product with `gate` and `up` [out, in]; `silu` or `gelu`."""
        if self.library is None:
            gate_matrix, up_matrix = (make_matrix(one, self.quantization) for one in (gate, up))
            return TorchGated(gate_matrix, up_matrix, activation)
        packed = pack_pair(gate, up, self.quantization)
        return NativeGated(self.library, packed, activation, self.upcoming)

    def norm_add(self, norm: Tensor, epsilon: float) -> NormAdd:
        """Return other + rms_norm(x) with `norm` float32 [size]."""
        if self.library is None:
            return TorchNormAdd(norm, epsilon)
        return NativeNormAdd(self.library, norm, epsilon, self.dtype)

    def head_norms(self, norms: HeadNorms) -> NormHeads:
        """Return the norm of queries and keys, in place."""
        if self.library is None:
            return TorchNormHeads(norms)
        return NativeNormHeads(self.library, norms, self.dtype)

    def vocabulary(self, weight: Tensor) -> Vocabulary:
        """Return the embedding or LM head with `weight` [vocabulary, hidden].

        It is never in less than 8 bits: each token has one row only.
        """
        quantization = None if self.quantization is None else INT8
        if self.library is not None:
            return PackedVocabulary(self.library, pack_matrix(weight, quantization))
        if quantization is None:
            return PlainVocabulary(weight)
        return RoundedVocabulary(RoundedMatrix(weight, quantization), self.dtype)

    def choice(self) -> Choice:
        """Return the ways to choose tokens."""
        return TorchChoice() if self.library is None else NativeChoice(self.library)

    def attention(
        self, shape: AttentionShape, cos_sin: Tensor, rule: AttentionRule = PLAIN_RULE
    ) -> PagedAttention:
        """Return the attention; `cos_sin` float32 [positions, head_dim]."""
        if self.library is None:
            return TorchPagedAttention(shape, cos_sin, rule)
        return NativePagedAttention(self.library, shape, cos_sin, self.dtype, rule, self.upcoming)


def select_kernels(
    cache_directory: Path,
    dtype: torch.dtype,
    *,
    quantization: Quantization | None = None,
    head_dim: int,
    widths: Sequence[int],
) -> Kernels:
    """Return the C++ kernels if they can be built and fit the model, else the references.

    `widths` are the input sizes of all products. Says so in a warning if the slow path is taken.
    """
    if not (NativePagedAttention.supports(head_dim) and all(map(NativeProduct.supports, widths))):
        logger.warning(
            "heads of %d or inputs of %s do not fit the native kernels, using plain torch",
            head_dim,
            ", ".join(map(str, widths)),
        )
        return Kernels(None, dtype, quantization)
    return Kernels(load_native(cache_directory), dtype, quantization)
