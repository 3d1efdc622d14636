"""Text and ids: control tokens stay out of text, and bytes are kept."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ModelError
from core.tokenizer.vocabulary import Vocabulary, byte_alphabet


def test_every_control_token_in_text_is_ordinary_text(vocabulary: Vocabulary) -> None:
    """Text that spells a control token never encodes to it, and decodes to the same spelling."""
    assert vocabulary.control_ids
    for name in vocabulary.control_ids.values():
        for text in (name, f"a{name}b", name * 3, f" {name} "):
            ids = vocabulary.encode(text)
            assert vocabulary.control_ids.keys().isdisjoint(ids)
            assert vocabulary.decode(ids) == text


@given(text=st.text())
def test_any_text_survives_encoding(vocabulary: Vocabulary, text: str) -> None:
    """Decoding the ids of a text gives the text."""
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_control_tokens_are_not_shown(vocabulary: Vocabulary) -> None:
    """Decoding skips control tokens; asked for by name, they have one."""
    control_id, name = next(iter(vocabulary.control_ids.items()))
    assert vocabulary.decode([control_id, *vocabulary.encode("hi"), control_id]) == "hi"
    assert vocabulary.token_text(control_id) == name


@given(st.lists(st.integers(0, 899), max_size=40))
def test_decoding_agrees_with_the_library(vocabulary: Vocabulary, token_ids: list[int]) -> None:
    """The table of bytes gives the text that the tokenizer library gives, also for broken UTF-8."""
    expected = vocabulary.library_decode(token_ids)
    assert vocabulary.decode(token_ids) == expected


def test_byte_alphabet_is_a_bijection() -> None:
    """Each of the 256 bytes has one character."""
    assert sorted(byte_alphabet().values()) == list(range(256))


def test_ids_without_a_token_are_empty(tokenizer_json: dict[str, Any]) -> None:
    """A model may know more ids than its tokenizer; they add nothing to a text."""
    padded = Vocabulary(tokenizer_json, 1000)
    assert padded.decode([999, *padded.encode("x"), 950]) == "x"


def test_longest_token_bounds_every_text(vocabulary: Vocabulary) -> None:
    """A text of n bytes has at least n / longest_token_bytes tokens."""
    text = "the rest of the street is interesting " * 50
    assert len(vocabulary.encode(text)) * vocabulary.longest_token_bytes >= len(text)


def test_only_known_pre_tokenizers_may_be_cut(
    tokenizer_json: dict[str, Any], vocabulary: Vocabulary, digits_vocabulary: Vocabulary
) -> None:
    """Texts are cut for GPT-2's pattern with or without digits apart, and for nothing else."""
    assert vocabulary.splits_on_whitespace
    assert digits_vocabulary.splits_on_whitespace
    byte_level = tokenizer_json["pre_tokenizer"]
    loose = {"id": 5, "content": "%%", "special": False, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False}  # fmt: skip
    for changed in (
        {"pre_tokenizer": {**byte_level, "add_prefix_space": True}},
        {"pre_tokenizer": {**byte_level, "use_regex": False}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"normalizer": {"type": "NFC"}},
        {"added_tokens": [*tokenizer_json["added_tokens"], loose]},
    ):
        assert not Vocabulary({**tokenizer_json, **changed}, 900).splits_on_whitespace


def test_a_bos_of_the_post_processor_is_found(tokenizer_json: dict[str, Any]) -> None:
    """Ids that the tokenizer puts before every text are known as its prefix."""
    special = {"<|im_start|>": {"id": "<|im_start|>", "ids": [0], "tokens": ["<|im_start|>"]}}
    pieces = [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    template = {
        "type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": special,
    }  # fmt: skip
    found = Vocabulary({**tokenizer_json, "post_processor": template}, 900)
    assert (found.prefix_ids, found.suffix_ids) == ([0], [])


def test_a_file_that_is_no_tokenizer_is_a_model_error() -> None:
    """A broken tokenizer file is one clear error."""
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Vocabulary({"model": {"type": "Nonsense"}}, 10)
