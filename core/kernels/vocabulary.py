"""The vocabulary matrix as embedding and LM head: plain-torch reference and the packed C++ form.

Logits are float32 in both dtypes: bfloat16 holds 3 digits, too few to tell the best token from its
runner-up. When the head is tied to the embedding, both share one packed copy.
"""

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from core.kernels.linear import NativeProduct, rms_norm
from core.kernels.matrix import PackedMatrix, RoundedMatrix


class Vocabulary(Protocol):
    """A [vocabulary, hidden] matrix that can be looked up and multiplied with."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes, bytes."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids` int32 [tokens]: [tokens, hidden] in the model's dtype."""
        ...

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return rms_norm(x [rows, hidden]) times the matrix: float32 [rows, vocabulary]."""
        ...


class PlainVocabulary:
    """The reference: the matrix as it is, products in float32."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self.num_bytes = weight.nbytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids`."""
        return self._weight[token_ids.long()]

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return float32 logits."""
        return rms_norm(x, norm, epsilon).float() @ self._weight.float().T


class RoundedVocabulary:
    """The reference of a quantized matrix: rounded rows, products of rounded numbers."""

    def __init__(self, weight: RoundedMatrix, dtype: torch.dtype) -> None:
        self._weight, self._dtype = weight, dtype
        self.num_bytes = weight.num_bytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rounded rows of `token_ids`."""
        return self._weight.rows(token_ids.long()).to(self._dtype)

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return float32 logits."""
        return self._weight.product(rms_norm(x, norm, epsilon))


class PackedVocabulary:
    """The same by `linear.cpp` and `vocabulary.cpp`; the matrix is plain or in 8 bits."""

    def __init__(self, library: ctypes.CDLL, weight: PackedMatrix) -> None:
        self._embed = getattr(library, f"headrace_embed_{weight.format}")
        self._weight = weight
        self._product = NativeProduct(library, "logits", weight)
        self.num_bytes = weight.num_bytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids`, which must lie inside the vocabulary."""
        weight = self._weight
        out = torch.empty(len(token_ids), weight.inputs, dtype=weight.dtype)
        self._embed(
            weight.data.data_ptr(), token_ids.data_ptr(), out.data_ptr(), len(out), weight.inputs
        )
        return out

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return float32 logits."""
        return self._product.run(x, norm=norm, epsilon=epsilon)
