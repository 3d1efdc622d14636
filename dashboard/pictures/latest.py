"""The last event of each sort that an operator asks for, in a line each. Pure."""

from collections.abc import Iterator, Sequence

from dashboard.format import count, duration
from dashboard.lines import Line, Tone, crop, fit, line
from dashboard.source.base import Record
from dashboard.tables.events import KIND_TONES, numbers_of, order
from dashboard.tables.records import number, words

SORTS = (
    ("preempted", ("preempt", "swap", "shorten")),
    ("refused", ("reject", "shed", "expire", "fault")),
    ("restarted", ("restart", "epoch", "engine")),
    ("command", ("command", "failed")),
)
HEIGHT = len(SORTS)
LABEL = 22


def latest(events: Sequence[Record], width: int, *, is_whole: bool) -> list[Line]:
    """Return HEIGHT lines, each with how many there are; events may come in any order. Unless they
    are whole there may have been others before them.
    """
    absent = "none" if is_whole else "none among those kept here"
    return [crop(each, width) for each in _lines(events, absent)]


def _lines(events: Sequence[Record], absent: str) -> Iterator[Line]:
    for label, kinds in SORTS:
        found = [event for event in events if words(event, "kind") in kinds]
        times = f" ({count(len(found))})" if found else ""
        head = fit(f" last {label}{times}", LABEL)
        yield _told(head, max(found, key=order)) if found else line((head + absent, Tone.FAINT))


def _told(head: str, event: Record) -> Line:
    kind = words(event, "kind")
    numbers = numbers_of(event)
    return line(
        (head, Tone.FAINT),
        f"{duration(number(event, 'age_s')):>6} ago  ",
        ("" if kind == "command" else f"{kind} ", KIND_TONES.get(kind, Tone.PLAIN)),
        (f"{words(event, 'tenant')} ", Tone.TITLE),
        words(event, "reason"),
        f": {numbers}" if numbers else "",
    )
