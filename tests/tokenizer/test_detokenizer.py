"""Text grows by whole characters, and to the text of decoding everything at once."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.tokenizer.detokenizer import (
    ByteDetokenizer,
    Detokenizer,
    WindowedDetokenizer,
    detokenizer,
)
from core.tokenizer.vocabulary import Vocabulary

IDS = st.lists(st.integers(0, 899), max_size=60)


def grown(growing: Detokenizer, token_ids: list[int]) -> list[str]:
    """Return the text of each push and of the finish."""
    return [*(growing.push(token_id) for token_id in token_ids), growing.finish()]


@given(token_ids=IDS)
def test_bytes_grow_to_the_whole_text(vocabulary: Vocabulary, token_ids: list[int]) -> None:
    """For random ids, half characters included, the pieces join to the whole decoding."""
    texts = grown(ByteDetokenizer(vocabulary.visible_bytes), token_ids)
    assert "".join(texts) == vocabulary.decode(token_ids)


@given(text=st.text(max_size=40))
def test_no_push_shows_half_a_character(vocabulary: Vocabulary, text: str) -> None:
    """While real text grows, U+FFFD never appears unless it is in the text."""
    texts = grown(ByteDetokenizer(vocabulary.visible_bytes), vocabulary.encode(text))
    assert "".join(texts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in texts)


@given(text=st.text(max_size=40))
def test_the_window_grows_to_the_whole_text(vocabulary: Vocabulary, text: str) -> None:
    """The general way gives the same text as the table."""
    texts = grown(WindowedDetokenizer(vocabulary, []), vocabulary.encode(text))
    assert "".join(texts) == text


def test_an_unfinished_character_is_held_and_then_replaced(vocabulary: Vocabulary) -> None:
    """Half a character gives nothing until the end, and U+FFFD then."""
    half = vocabulary.encode("🐍")[:2]
    for growing in (
        ByteDetokenizer(vocabulary.visible_bytes),
        WindowedDetokenizer(vocabulary, []),
    ):
        assert [growing.push(token_id) for token_id in half] == ["", ""]
        assert "\ufffd" in growing.finish()


def test_the_window_stays_short(vocabulary: Vocabulary) -> None:
    """Ids that never make a character do not make the window grow without bound."""
    growing = WindowedDetokenizer(vocabulary, [])
    broken = vocabulary.encode("🐍")[0]
    shown = [growing.push(broken) for _ in range(200)]
    assert any(shown)
    assert growing.num_window_ids <= 64


def test_leading_spaces_survive_in_other_vocabularies() -> None:
    """Where the decoder drops the first space of a text, the prompt's tail keeps an answer's."""
    vocabulary = Vocabulary(sentencepiece_like(), 8)
    assert not vocabulary.is_byte_level
    growing = detokenizer(vocabulary, [2])
    assert grown(growing, [3, 2, 4, 5, 3]) == [" b", " a", "", "é", " b", ""]


def sentencepiece_like() -> dict[str, Any]:
    """A vocabulary of words with U+2581 for spaces, and of bytes."""
    vocab = {"<unk>": 0, "<0x41>": 1, "▁a": 2, "▁b": 3, "<0xC3>": 4, "<0xA9>": 5, "<0xE2>": 6}
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True, "vocab": vocab,
        "merges": [],
    }  # fmt: skip
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps}, "model": model,
    }  # fmt: skip
