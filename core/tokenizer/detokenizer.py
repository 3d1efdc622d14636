"""Ids to text, one token at a time, never half a character.

Owns: the bytes of an unfinished character (or, for other tokenizers, a short window of ids). Never
knows: stop strings or chunks. The texts of all pushes and of `finish`, joined, are the text of
decoding all ids at once.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from core.tokenizer.vocabulary import Vocabulary

_UTF8 = codecs.getincrementaldecoder("utf-8")
REPLACEMENT = "\ufffd"
MAX_PENDING_TOKENS = 16  # more undecodable tokens than any character needs: no character comes


class Detokenizer(Protocol):
    """The text side of one growing sequence."""

    def push(self, token_id: int) -> str:
        """Return the text that is certain now; "" while a character is unfinished."""
        ...

    def finish(self) -> str:
        """Return what was held back; an unfinished character becomes U+FFFD."""
        ...


def detokenizer(vocabulary: Vocabulary, prompt_tail: Sequence[int]) -> Detokenizer:
    """Return the right kind for a vocabulary; `prompt_tail` are the last few ids of the prompt."""
    if vocabulary.is_byte_level:
        return ByteDetokenizer(vocabulary.visible_bytes)
    return WindowedDetokenizer(vocabulary, prompt_tail)


class ByteDetokenizer:
    """For byte-level vocabularies: a table of bytes and a UTF-8 decoder; the fast path."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: list[bytes]) -> None:
        self._table = table
        self._decode = _UTF8("replace").decode

    def push(self, token_id: int) -> str:
        """Return the text that is certain now."""
        return self._decode(self._table[token_id])

    def finish(self) -> str:
        """Return U+FFFD for an unfinished character."""
        return self._decode(b"", True)


class WindowedDetokenizer:
    """For any other vocabulary: decode a window with and without the new ids, and take the rest.

    A token's text may depend on its neighbours (a leading space, a byte of a character); the window
    begins with ids whose text is out already, so that the difference is what the new ones add.
    """

    __slots__ = ("_ids", "_num_known", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary, prompt_tail: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._ids = list(prompt_tail)
        self._num_known = len(self._ids)

    def push(self, token_id: int) -> str:
        """Return the text that is certain now."""
        self._ids.append(token_id)
        text = self._new_text()
        is_unfinished = not text or text.endswith(REPLACEMENT)
        if is_unfinished and self._num_pending < MAX_PENDING_TOKENS:
            return ""
        self._ids = self._ids[self._num_known :]
        self._num_known = len(self._ids)
        return text

    def finish(self) -> str:
        """Return the text of ids that were held back."""
        text = self._new_text()
        self._num_known = len(self._ids)
        return text

    @property
    def num_window_ids(self) -> int:
        """How many ids each push decodes."""
        return len(self._ids)

    @property
    def _num_pending(self) -> int:
        return len(self._ids) - self._num_known

    def _new_text(self) -> str:
        known = self._vocabulary.decode(self._ids[: self._num_known])
        return self._vocabulary.decode(self._ids)[len(known) :]
