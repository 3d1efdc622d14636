"""Pieces of a text join to it, and encode to the ids of the whole."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.tokenizer.pieces import pieces
from core.tokenizer.vocabulary import Vocabulary

# Characters at which words begin and end, and spaces that look like the ones we cut at.
ALPHABET = "etaz EZ' \n\t\r\x0b\x1c\x85\u00a0\u2003\u3000\u200b.,!?_-’é日本語ßÅ̊🐍09٣½Ⅷsmredv'l"
TEXTS = st.text(st.sampled_from(ALPHABET) | st.characters(exclude_categories=["Cs"]), max_size=300)


@settings(max_examples=400)
@given(text=TEXTS, piece_chars=st.integers(1, 60))
@example(text="it's  \n 12 don't're!", piece_chars=1)
def test_pieces_encode_as_the_whole(
    vocabulary: Vocabulary, digits_vocabulary: Vocabulary, text: str, piece_chars: int
) -> None:
    """Whatever the text and the size of the pieces, the ids are those of encoding it at once."""
    for each in (vocabulary, digits_vocabulary):
        ids = [i for piece in pieces(text, piece_chars, True) for i in each.encode(piece)]
        assert ids == each.encode(text)


@given(text=TEXTS, piece_chars=st.integers(1, 60), may_cut=st.booleans())
def test_pieces_join_to_the_text(text: str, piece_chars: int, may_cut: bool) -> None:
    """Nothing is lost, doubled or empty."""
    found = list(pieces(text, piece_chars, may_cut))
    assert "".join(found) == text
    assert all(found)


def test_prose_is_cut_near_the_wanted_size() -> None:
    """Where words are short, no piece is longer than asked for and few are much shorter."""
    text = "the quick brown fox jumps over the lazy dog\n" * 500
    found = list(pieces(text, 1000, True))
    assert max(map(len, found)) <= 1000
    assert len(found) <= len(text) // 900


def test_a_text_without_cuts_is_one_piece() -> None:
    """A text of one letter is never cut, and neither is a text that must not be."""
    assert list(pieces("a" * 10_000, 100, True)) == ["a" * 10_000]
    assert list(pieces("a b " * 100, 10, False)) == ["a b " * 100]
