"""Lines of text with meaning: what every picture of the dashboard is made of.

Owns: tones (what a piece of text says about itself) and the arithmetic of fitting text into cells.
Never knows: colours; a theme gives each tone one, and without colour the text says it all.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from rich.cells import cell_len, set_cell_size


class Tone(StrEnum):
    """What a piece of text means; the value is the name of its style."""

    PLAIN = "plain"
    FAINT = "faint"  # labels and units
    TITLE = "title"
    GOOD = "good"
    NOTICE = "notice"  # worth a look
    ALARM = "alarm"  # somebody's promise is broken, or something is down
    ACCENT = "accent"  # charts
    SECOND = "second"  # the other part of a chart
    CURSOR = "cursor"
    HEAD = "head"  # of a table


PLAIN, FAINT, NOTICE, ALARM = Tone.PLAIN, Tone.FAINT, Tone.NOTICE, Tone.ALARM
"""For what is drawn by the hundred: Python 3.11 looks members of an enum up slowly."""

Span = tuple[str, Tone]
Line = tuple[Span, ...]


def line(*parts: Span | str) -> Line:
    """Return a line of spans; bare text is plain."""
    return tuple((part, Tone.PLAIN) if isinstance(part, str) else part for part in parts)


def plain(spans: Line) -> str:
    """Return the text of a line, without spaces at its end."""
    return "".join(text for text, _ in spans).rstrip()


def plain_text(lines: Iterable[Line]) -> str:
    """Return the text of lines."""
    return "\n".join(plain(each) for each in lines)


def cells(text: str) -> int:
    """Return how many cells a text takes."""
    return len(text) if text.isascii() else cell_len(text)


def width_of(spans: Line) -> int:
    """Return how many cells a line takes."""
    return sum([cells(text) for text, _ in spans])


def fit(text: str, width: int, *, right: bool = False, ellipsis: str = "…") -> str:
    """Return `text` in exactly `width` cells; what is too long ends in an ellipsis."""
    length = cells(text)
    if length > width:
        return set_cell_size(set_cell_size(text, max(0, width - 1)) + ellipsis, width)
    if length == width:
        return text
    space = " " * (width - length)
    return space + text if right else text + space


def crop(spans: Line, width: int) -> Line:
    """Return a line that takes at most `width` cells."""
    kept: list[Span] = []
    room = width
    for text, tone in spans:
        if room <= 0:
            break
        length = cells(text)
        kept.append((text if length <= room else set_cell_size(text, room), tone))
        room -= length
    return tuple(kept)


def beside(left: Sequence[Line], right: Sequence[Line], width: int, gap: int = 2) -> list[Line]:
    """Return two blocks side by side; the left one takes `width` cells."""
    height = max(len(left), len(right))
    padded_left = [*left, *[()] * (height - len(left))]
    padded_right = [*right, *[()] * (height - len(right))]
    return [
        (*crop(a, width), (" " * (max(0, width - width_of(a)) + gap), Tone.PLAIN), *b)
        for a, b in zip(padded_left, padded_right, strict=True)
    ]
