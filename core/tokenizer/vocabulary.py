"""The model's tokens: text to ids and ids to bytes.

Owns: the tokenizer file, and the difference between text (never yields a control token) and control
tokens (only a chat template or explicit ids name them). Never knows: requests or templates.

Control tokens are the added tokens that the file calls special. Ordinary text is encoded by a
second instance of the tokenizer that has none of them, so there is nothing to escape or to forget.
"""

import json
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from core.errors import ModelError
from core.models.directory import read_json_object

BYTE_FALLBACK_PREFIX = "<0x"


class Vocabulary:
    """Encode and decode for one model; safe to use from several threads.

    `size` is the number of ids the model knows: ids from clients are checked against it.
    """

    def __init__(self, tokenizer_json: dict[str, object], size: int) -> None:
        """Take the content of tokenizer.json; raises ModelError if it is not understood."""
        self.content = tokenizer_json
        self._full = _tokenizer(tokenizer_json)
        self._text = _tokenizer(without_control_tokens(tokenizer_json))
        self.size = size
        self.control_tokens = {
            token_id: token
            for token_id, token in self._full.get_added_tokens_decoder().items()
            if token.special
        }
        self.control_ids = {i: token.content for i, token in self.control_tokens.items()}
        self.splits_on_whitespace = _splits_on_whitespace(tokenizer_json)
        self.is_byte_level = _type_of(tokenizer_json.get("decoder")) == "ByteLevel"
        self.prefix_ids, self.suffix_ids = self._surroundings()

    @classmethod
    def load(cls, directory: Path, size: int) -> "Vocabulary":
        """Read tokenizer.json of a model directory; raises ModelError."""
        return cls(read_json_object(directory / "tokenizer.json"), size)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ordinary text; control tokens in it are text like any other."""
        ids: list[int] = self._text.encode(text, add_special_tokens=False).ids
        if not self.control_ids.keys().isdisjoint(ids):
            raise ModelError("this tokenizer makes control tokens of ordinary text: not supported")
        return ids

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of ids below `size`, without control tokens."""
        if self.is_byte_level:
            table = self.visible_bytes
            return b"".join(table[i] for i in token_ids).decode("utf-8", errors="replace")
        return self.library_decode(token_ids)

    def library_decode(self, token_ids: list[int]) -> str:
        """As `decode`, by the tokenizer library: the only way for vocabularies not of bytes."""
        text: str = self._full.decode(token_ids, skip_special_tokens=True)
        return text

    def library_encode(self, text: str) -> list[int]:
        """Return the ids of trusted text, in which control tokens are control tokens."""
        ids: list[int] = self._full.encode(text, add_special_tokens=False).ids
        return ids

    def token_text(self, token_id: int) -> str:
        """Return one token's own text, control tokens by name, half characters as U+FFFD."""
        return self._all_texts[token_id]

    @cached_property
    def _all_texts(self) -> list[str]:
        return [token.decode("utf-8", errors="replace") for token in self.all_bytes]

    @cached_property
    def all_bytes(self) -> list[bytes]:
        """The bytes of each id, control tokens as their name, b"" for ids without a token."""
        to_bytes = _byte_level_bytes if self.is_byte_level else _plain_bytes
        tokens = [self._full.id_to_token(token_id) for token_id in range(self.size)]
        return [b"" if token is None else to_bytes(token) for token in tokens]

    @cached_property
    def visible_bytes(self) -> list[bytes]:
        """The bytes each id adds to an answer: as `all_bytes`, but nothing for control tokens."""
        return [
            b"" if token_id in self.control_ids else token
            for token_id, token in enumerate(self.all_bytes)
        ]

    @cached_property
    def longest_token_bytes(self) -> int:
        """Length of the longest token, bytes: text of n bytes has at least n / this many tokens."""
        return max(1, *map(len, self.all_bytes))

    def warm_up(self) -> None:
        """Build the tables now rather than within the first request."""
        self.encode("a")
        assert len(self.visible_bytes) == len(self._all_texts) == self.size
        assert self.longest_token_bytes > 0

    def _surroundings(self) -> tuple[list[int], list[int]]:
        """Return the ids the tokenizer puts before and after a text (a BOS, usually)."""
        probe = "a"
        bare = self._full.encode(probe, add_special_tokens=False).ids
        whole = self._full.encode(probe, add_special_tokens=True).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start], whole[start + len(bare) :]
        raise ModelError("the tokenizer's post-processor changes the text: not supported")


def without_control_tokens(tokenizer_json: dict[str, object]) -> dict[str, object]:
    """Return the tokenizer without its special added tokens and without post-processing."""
    added = tokenizer_json.get("added_tokens") or []
    assert isinstance(added, list), type(added)
    kept = [token for token in added if not token.get("special")]
    return {**tokenizer_json, "added_tokens": kept, "post_processor": None}


def _tokenizer(content: dict[str, object]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(content))
    except Exception as error:
        raise ModelError(f"tokenizer.json is not understood ({error})") from error


def _splits_on_whitespace(tokenizer_json: dict[str, object]) -> bool:
    """Say whether `core.tokenizer.pieces` may cut: GPT-2's pattern, digits apart, nothing else."""
    if tokenizer_json.get("normalizer") is not None:
        return False
    added = tokenizer_json.get("added_tokens") or []
    if not isinstance(added, list) or not all(token.get("special") for token in added):
        return False
    steps = _pre_tokenizer_steps(tokenizer_json.get("pre_tokenizer"))
    if not steps or not _is_gpt2_byte_level(steps[-1]):
        return False
    return all(_type_of(step) == "Digits" for step in steps[:-1])


def _is_gpt2_byte_level(step: dict[str, object]) -> bool:
    return (
        _type_of(step) == "ByteLevel"
        and step.get("use_regex") is True
        and step.get("add_prefix_space") is False
    )


def _pre_tokenizer_steps(content: object) -> list[dict[str, object]]:
    if not isinstance(content, dict):
        return []
    steps = content.get("pretokenizers") if content.get("type") == "Sequence" else [content]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _type_of(content: object) -> str:
    return str(content.get("type")) if isinstance(content, dict) else ""


def byte_alphabet() -> dict[str, int]:
    """Return the bytes that the 256 characters of byte-level BPE stand for.

    Printable Latin-1 characters stand for themselves, the others for code points from U+0100 on
    (Radford et al., GPT-2, 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTES = byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    """An added token may hold characters outside the alphabet; then it stands for itself."""
    if all(character in _BYTES for character in token):
        return bytes(_BYTES[character] for character in token)
    return token.encode("utf-8")


def _plain_bytes(token: str) -> bytes:
    """A token of a SentencePiece-like vocabulary: U+2581 is a space, <0xAB> a byte."""
    if token.startswith(BYTE_FALLBACK_PREFIX) and len(token) == 6:
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode("utf-8")
