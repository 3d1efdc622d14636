"""The kernels of a model on a GPU, or on the CPU by Triton's interpreter.

Owns: that every weight is on the device once, in the form that its product reads. Never knows:
layers, or steps.
"""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from core.kernels.norm import HeadNorms
from core.kernels.paged_attention import PLAIN_RULE, AttentionRule, AttentionShape
from core.kernels.triton.paged_attention import TritonPagedAttention
from core.kernels.triton.products import (
    TritonGated,
    TritonNormAdd,
    TritonNormed,
    TritonNormHeads,
    TritonPartial,
    TritonResidual,
    TritonVocabulary,
)


@dataclass(frozen=True, slots=True)
class TritonKernels:
    """See `core.kernels.kernel_set.KernelSet`; weights are never quantized here."""

    device: torch.device
    dtype: torch.dtype

    @property
    def path(self) -> str:
        """`triton`."""
        return "triton"

    @property
    def name(self) -> str:
        """The versions of what computes."""
        return f"triton {triton.__version__} torch {torch.__version__}"

    @property
    def rounds_inputs(self) -> bool:
        """Nothing is."""
        return False

    def place(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device."""
        return tensor.to(self.device)

    def normed(self, weight: Tensor, bias: Tensor | None = None) -> TritonNormed:
        """Return the product rms_norm(x)·Wᵀ + bias."""
        return TritonNormed(self.place(weight), self._bias(bias))

    def residual(self, weight: Tensor, bias: Tensor | None = None) -> TritonResidual:
        """Return the product x·Wᵀ + bias + other."""
        return TritonResidual(self.place(weight), self._bias(bias))

    def partial(self, weight: Tensor) -> TritonPartial:
        """Return the product x·Wᵀ in float32."""
        return TritonPartial(self.place(weight))

    def gated(self, gate: Tensor, up: Tensor, activation: str = "silu") -> TritonGated:
        """Return the gated product, both of its matrices in one."""
        return TritonGated(torch.cat((self.place(gate), self.place(up))), activation)

    def norm_add(self, norm: Tensor, epsilon: float) -> TritonNormAdd:
        """Return other + rms_norm(x)."""
        return TritonNormAdd(self.place(norm), epsilon)

    def head_norms(self, norms: HeadNorms) -> TritonNormHeads:
        """Return the norm of queries and keys."""
        placed = HeadNorms(
            self.place(norms.query), self.place(norms.key), norms.queries, norms.keys, norms.epsilon
        )
        return TritonNormHeads(placed)

    def vocabulary(self, weight: Tensor) -> TritonVocabulary:
        """Return the embedding or LM head."""
        return TritonVocabulary(self.place(weight))

    def attention(
        self, shape: AttentionShape, cos_sin: Tensor, rule: AttentionRule = PLAIN_RULE
    ) -> TritonPagedAttention:
        """Return the attention."""
        return TritonPagedAttention(shape, self.place(cos_sin), rule, self.dtype)

    def _bias(self, bias: Tensor | None) -> Tensor | None:
        return None if bias is None else self.place(bias).to(self.dtype)
