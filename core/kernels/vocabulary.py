"""The vocabulary matrix as embedding and LM head: plain-torch reference and the packed C++ form.

Logits are float32 in both dtypes: bfloat16 holds 3 digits, too few to tell the best token from its
runner-up. When the head is tied to the embedding, both share one packed copy.
"""

import ctypes
from typing import Protocol

import torch
from torch import Tensor

PANEL_TOKENS = 32


class Vocabulary(Protocol):
    """A [vocabulary, hidden] matrix that can be looked up and multiplied with."""

    @property
    def num_bytes(self) -> int:
        """Memory it takes, bytes."""
        ...

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids` int32 [tokens]: [tokens, hidden] in the model's dtype."""
        ...

    def logits(self, x: Tensor) -> Tensor:
        """Return x [rows, hidden] times the matrix: float32 [rows, vocabulary]."""
        ...

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (value, index) of the largest logit a row: float32, int32 [rows].

        Of equal ones the first; the value is NaN if the row holds a NaN.
        """
        ...


class PlainVocabulary:
    """The reference: the matrix as it is, products in float32."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    @property
    def num_bytes(self) -> int:
        """Memory of the matrix, bytes."""
        return self._weight.nbytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids`."""
        return self._weight[token_ids.long()]

    def logits(self, x: Tensor) -> Tensor:
        """Return float32 logits."""
        return x.float() @ self._weight.float().T

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (value, index) of the largest logit a row."""
        values, indices = logits.max(dim=1)
        return values, indices.int()


class PackedVocabulary:
    """The same by `lm_head.cpp`: panels of 32 tokens, [panels, hidden/pack, 32, pack].

    `pack` is the number of elements in a 32-bit cell. hidden must be a multiple of it.
    """

    def __init__(self, library: ctypes.CDLL, weight: Tensor) -> None:
        suffix = "bfloat16" if weight.dtype == torch.bfloat16 else "float32"
        self._logits = getattr(library, f"headrace_lm_head_{suffix}")
        self._embed = library.headrace_embed
        self._argmax = library.headrace_argmax
        self._dtype = weight.dtype
        self._vocab_size, self._hidden_size = weight.shape
        self._depth = self._hidden_size * weight.itemsize // 4
        self._packed = _pack(weight)

    @staticmethod
    def supports(hidden_size: int) -> bool:
        """Return whether rows of this width fill whole cells."""
        return hidden_size % 2 == 0

    @property
    def num_bytes(self) -> int:
        """Memory of the packed matrix, bytes."""
        return self._packed.nbytes

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return the rows of `token_ids`, which must lie inside the vocabulary."""
        num_tokens = token_ids.shape[0]
        out = torch.empty(num_tokens, self._hidden_size, dtype=self._dtype)
        self._embed(
            self._packed.data_ptr(), token_ids.data_ptr(), out.data_ptr(), num_tokens, self._depth
        )
        return out

    def logits(self, x: Tensor) -> Tensor:
        """Return float32 logits."""
        rows = x.shape[0]
        out = torch.empty(rows, self._vocab_size, dtype=torch.float32)
        self._logits(
            x.data_ptr(),
            self._packed.data_ptr(),
            out.data_ptr(),
            rows,
            self._depth,
            self._vocab_size,
        )
        return out

    def argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return (value, index) of the largest logit a row."""
        rows, width = logits.shape
        values = torch.empty(rows, dtype=torch.float32)
        indices = torch.empty(rows, dtype=torch.int32)
        self._argmax(logits.data_ptr(), values.data_ptr(), indices.data_ptr(), rows, width)
        return values, indices


def _pack(weight: Tensor) -> Tensor:
    """Return [panels, hidden/pack, 32, pack], zero-padded to whole panels."""
    vocab_size, hidden_size = weight.shape
    pack = 4 // weight.itemsize
    panels = -(-vocab_size // PANEL_TOKENS)
    padded = torch.nn.functional.pad(weight, (0, 0, 0, panels * PANEL_TOKENS - vocab_size))
    split = padded.view(panels, PANEL_TOKENS, hidden_size // pack, pack)
    return split.permute(0, 2, 1, 3).contiguous()
