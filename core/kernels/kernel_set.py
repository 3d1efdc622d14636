"""What the kernels of one model are made by: one interface for all devices.

Owns: the `KernelSet` protocol. Never knows: which devices there are, or layers. A model is put
together of what a set makes (`core.models.decoder_weights`), and from then on only calls it, so
that the order of operations is written once for all devices.
"""

from typing import Protocol

import torch
from torch import Tensor

from core.kernels.linear import Gated, Normed, Partial, Residual
from core.kernels.norm import HeadNorms, NormAdd, NormHeads
from core.kernels.paged_attention import AttentionRule, AttentionShape, PagedAttention
from core.kernels.vocabulary import Vocabulary


class KernelSet(Protocol):
    """Makes the kernels of one model; weights come as they were read, in the host's memory."""

    @property
    def path(self) -> str:
        """Which implementation it is: `cpp`, `torch` or `triton`."""
        ...

    @property
    def name(self) -> str:
        """The same with its version: what the costs of steps depend on."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and KV."""
        ...

    @property
    def rounds_inputs(self) -> bool:
        """Whether neighbouring inputs of a product are rounded alike, but not their weights."""
        ...

    def place(self, tensor: Tensor) -> Tensor:
        """Return the tensor where kernels read it."""
        ...

    def normed(self, weight: Tensor, bias: Tensor | None = None) -> Normed:
        """Return the product rms_norm(x)·Wᵀ + bias with `weight` [out, in]."""
        ...

    def residual(self, weight: Tensor, bias: Tensor | None = None) -> Residual:
        """Return the product x·Wᵀ + bias + other with `weight` [out, in]."""
        ...

    def partial(self, weight: Tensor) -> Partial:
        """Return the product x·Wᵀ in float32 with `weight` [out, some of the inputs]."""
        ...

    def gated(self, gate: Tensor, up: Tensor, activation: str = "silu") -> Gated:
        """Return the gated product with `gate` and `up` [out, in]; `silu` or `gelu`."""
        ...

    def norm_add(self, norm: Tensor, epsilon: float) -> NormAdd:
        """Return other + rms_norm(x) with `norm` float32 [size]."""
        ...

    def head_norms(self, norms: HeadNorms) -> NormHeads:
        """Return the norm of queries and keys, in place."""
        ...

    def vocabulary(self, weight: Tensor) -> Vocabulary:
        """Return the embedding or LM head with `weight` [vocabulary, hidden]."""
        ...

    def attention(
        self, shape: AttentionShape, cos_sin: Tensor, rule: AttentionRule = ...
    ) -> PagedAttention:
        """Return the attention; `cos_sin` float32 [positions, head_dim]."""
        ...
