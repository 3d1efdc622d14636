"""The vocabulary matrix as embedding and LM head: plain-torch reference and the packed C++ form.

Logits are float32 in both dtypes: bfloat16 holds 3 digits, too few to tell the best token from its
runner-up. When the head is tied to the embedding, both share one packed copy.
"""

import ctypes
from typing import Protocol

import torch
from torch import Tensor

from core.kernels.linear import PANEL_COLUMNS, NativeProduct, pack_panels, rms_norm


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


class PackedVocabulary:
    """The same by `linear.cpp` and `vocabulary.cpp`."""

    def __init__(self, library: ctypes.CDLL, weight: Tensor) -> None:
        vocab_size, self._hidden_size = weight.shape
        self._embed = library.headrace_embed
        self._packed = pack_panels(weight, PANEL_COLUMNS)
        self._product = NativeProduct(
            library, "logits", self._packed, self._hidden_size, vocab_size
        )
        self.num_bytes = self._packed.nbytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids`, which must lie inside the vocabulary."""
        num_tokens = token_ids.shape[0]
        out = torch.empty(num_tokens, self._hidden_size, dtype=self._packed.dtype)
        depth = self._packed.shape[1]
        self._embed(
            self._packed.data_ptr(), token_ids.data_ptr(), out.data_ptr(), num_tokens, depth
        )
        return out

    def logits(self, x: Tensor, norm: Tensor, epsilon: float) -> Tensor:
        """Return float32 logits."""
        return self._product.run(x, norm=norm, epsilon=epsilon)
