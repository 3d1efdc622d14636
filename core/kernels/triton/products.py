"""Matrix products of a layer on a GPU, with the Triton kernels around them.

Owns: where a norm, an activation or the residual stream meets a product. Never knows: layers. The
products are torch's (cuBLAS); what they add to, they add in float32 and round once, with a bias
twice. References are those of `core.kernels.linear`, `core.kernels.norm` and
`core.kernels.vocabulary`.

A reads from memory of the weight is all that a decode costs here, so gate and up are one matrix and
the residual stream is the product's own addend; norms and activations are launches of their own.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from core.kernels.norm import HeadNorms
from core.kernels.triton.gated_activation import gated_activation
from core.kernels.triton.rms_norm import rms_norm, rms_norm_add


def _normalized(x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
    return x if norm is None else rms_norm(x, norm, epsilon)


def _bytes_of(bias: Tensor | None) -> int:
    return 0 if bias is None else bias.nbytes


class TritonNormed:
    """rms_norm(x)·Wᵀ + bias; see `core.kernels.linear.Normed`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` [out, in] and `bias` [out] in one dtype, on the device."""
        self._weight, self._bias = weight, bias
        self.num_bytes = weight.nbytes + _bytes_of(bias)

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        return linear(_normalized(x, norm, epsilon), self._weight, self._bias)


class TritonResidual:
    """x·Wᵀ + bias + other; see `core.kernels.linear.Residual`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """`weight` [out, in] and `bias` [out] in one dtype, on the device."""
        self._transposed, self._bias = weight.t(), bias
        self.num_bytes = weight.nbytes + _bytes_of(bias)

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the product added to `other`."""
        added = other if self._bias is None else other + self._bias
        return torch.addmm(added, x, self._transposed)


class TritonGated:
    """act(rms_norm(x)·Gᵀ) * (rms_norm(x)·Uᵀ); see `core.kernels.linear.Gated`."""

    def __init__(self, gate_up: Tensor, activation: str = "silu") -> None:
        """`gate_up` [2 * out, in]: first the rows of the gate."""
        self._weight, self._activation = gate_up, activation
        self.num_bytes = gate_up.nbytes

    def __call__(self, x: Tensor, norm: Tensor | None, epsilon: float) -> Tensor:
        """Return the product."""
        return gated_activation(
            linear(_normalized(x, norm, epsilon), self._weight), self._activation
        )


class TritonPartial:
    """x·Wᵀ in float32; see `core.kernels.linear.Partial`."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.num_bytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product."""
        return product_float32(x, self._weight)


class TritonNormAdd:
    """other + rms_norm(x), in place of `other`; see `core.kernels.norm.NormAdd`."""

    def __init__(self, norm: Tensor, epsilon: float) -> None:
        self._norm, self._epsilon = norm, epsilon
        self.num_bytes = norm.nbytes

    def __call__(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the sum."""
        rms_norm_add(x, other, self._norm, self._epsilon)
        return other


class TritonNormHeads:
    """The norms of queries and keys in place; see `core.kernels.norm.NormHeads`."""

    def __init__(self, norms: HeadNorms) -> None:
        self._norms = norms

    def __call__(self, qkv: Tensor) -> None:
        """Normalize."""
        for part, norm in self._norms.parts(qkv):
            pieces = part.reshape(-1, len(norm))
            part.copy_(rms_norm(pieces, norm, self._norms.epsilon).view(part.shape))


class TritonVocabulary:
    """Embedding and LM head; see `core.kernels.vocabulary.Vocabulary`."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.num_bytes = weight.nbytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids` int32 [tokens]."""
        return embedding(token_ids, self._weight)

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return float32 [rows, vocabulary]."""
        return product_float32(rms_norm(x, norm, epsilon), self._weight)


def product_float32(x: Tensor, weight: Tensor) -> Tensor:
    """Return x·Wᵀ in float32, whatever both are in: x [rows, in], weight [out, in]."""
    if x.dtype == torch.float32:
        return linear(x, weight)
    if x.is_cuda:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return linear(x.float(), weight.float())
