"""Stop strings are found where they are complete, and nothing of them is out before."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from core.tokenizer.stop_strings import StopFilter, StopMatch, failure_table

STOPS = st.lists(st.text("ab", min_size=1, max_size=6), max_size=4)
TOKENS = st.lists(st.text("abc", max_size=4), max_size=30)


@dataclass
class Outcome:
    """What came out of a filter: all text, the stop string, and the number of pushes it took."""

    text: str
    stop: str
    num_pushes: int


def filtered(tokens: list[str], stops: list[str], *, include: bool, min_tokens: int = 0) -> Outcome:
    """Push tokens until a stop string is complete or the text ends."""
    stop_filter = StopFilter(stops, include)
    text = ""
    for count, token in enumerate(tokens, 1):
        out = stop_filter.push(token, count >= min_tokens)
        if isinstance(out, StopMatch):
            return Outcome(text + out.text, out.stop, count)
        text += out
    return Outcome(text + stop_filter.finish(), "", len(tokens))


def naive(tokens: list[str], stops: list[str], *, include: bool, min_tokens: int = 0) -> Outcome:
    """Look at every prefix of the text: the obvious, quadratic way."""
    text = ""
    for count, token in enumerate(tokens, 1):
        for character in token:
            text += character
            found = [stop for stop in stops if text.endswith(stop)]
            if found and count >= min_tokens:
                stop = max(found, key=len)
                return Outcome(text if include else text.removesuffix(stop), stop, count)
    return Outcome(text, "", len(tokens))


@given(tokens=TOKENS, stops=STOPS, include=st.booleans(), min_tokens=st.integers(0, 12))
def test_agrees_with_the_obvious_search(
    tokens: list[str], stops: list[str], include: bool, min_tokens: int
) -> None:
    """For any tokens and stop strings, text, stop string and token count are the naive ones."""
    expected = naive(tokens, stops, include=include, min_tokens=min_tokens)
    assert filtered(tokens, stops, include=include, min_tokens=min_tokens) == expected


@given(tokens=TOKENS, stops=STOPS)
def test_holds_back_only_a_possible_beginning(tokens: list[str], stops: list[str]) -> None:
    """What is held back is the longest end of the text that begins a stop string."""
    stop_filter, text, out_text = StopFilter(stops, False), "", ""
    for token in tokens:
        out = stop_filter.push(token, True)
        if isinstance(out, StopMatch):
            return
        text += token
        out_text += out
        beginnings = [
            stop[:n] for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])
        ]
        longest = max(beginnings, key=len, default="")
        assert text == out_text + longest


def test_finds_a_stop_string_across_tokens() -> None:
    """A stop string that three tokens make together ends the text before its first character."""
    outcome = filtered(["x", "<en", "d", ">y"], ["<end>"], include=False)
    assert outcome == Outcome("x", "<end>", 4)


def test_includes_the_stop_string_if_asked() -> None:
    """With `include` the text goes up to the end of the stop string and no further."""
    assert filtered(["a\n", "\nb"], ["\n\n"], include=True) == Outcome("a\n\n", "\n\n", 2)


def test_min_tokens_makes_an_early_stop_string_text() -> None:
    """A stop string that is complete too early is text; the next one ends it."""
    outcome = filtered(["a", ".", "b", "."], ["."], include=False, min_tokens=3)
    assert outcome == Outcome("a.b", ".", 4)


@given(st.text("ab", min_size=1, max_size=12))
def test_failure_table_is_the_longest_border(stop: str) -> None:
    """Entry n is the length of the longest proper prefix of stop[:n] that is also its suffix."""
    for length, border in enumerate(failure_table(stop)):
        borders = [n for n in range(length) if stop[:length].endswith(stop[:n])]
        assert border == max(borders, default=0)


def test_hostile_stop_strings_cost_linear_work() -> None:
    """A stop string that nearly matches everywhere makes no more than two moves a character."""
    num_chars = 5000
    stop = "a" * 500 + "b"
    comparisons = CountingStr.comparisons
    outcome = filtered(["a" * 10] * (num_chars // 10), [CountingStr(stop)], include=False)
    assert outcome.text == "a" * num_chars
    assert CountingStr.comparisons - comparisons <= 6 * num_chars + 6 * len(stop)


class CountingStr(str):
    """A string that counts how often one of its characters is looked at."""

    __slots__ = ()
    comparisons = 0

    def __getitem__(self, key: object) -> str:
        CountingStr.comparisons += isinstance(key, int)
        return super().__getitem__(key)  # type: ignore[index]
