"""The last event of each sort that an operator asks for, in a line each. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from dashboard.format import count, duration
from dashboard.lines import Line, Tone, crop, fit, line
from dashboard.source.base import Record
from dashboard.tables.events import KIND_TONES, age_s, numbers_of, order
from dashboard.tables.records import words

SORTS = (
    ("preempted", ("preempt", "swap", "shorten")),
    ("refused", ("reject", "shed", "expire", "fault")),
    ("restarted", ("restart", "epoch", "engine")),
    ("command", ("command", "failed")),
)
HEIGHT = len(SORTS)
LABEL = 22


class Latest(NamedTuple):
    """The last event of a sort, if there is any, and how many there are."""

    label: str
    times: int
    event: Record | None


def latest_of(events: Sequence[Record]) -> list[Latest]:
    """Return the last of each sort; events may come in any order."""
    found = {
        label: [event for event in events if words(event, "kind") in kinds]
        for label, kinds in SORTS
    }
    return [
        Latest(label, len(those), max(those, key=order, default=None))
        for label, those in found.items()
    ]


def latest(found: Sequence[Latest], now_s: float, width: int, *, is_whole: bool) -> list[Line]:
    """Return HEIGHT lines. Unless the events are whole there may have been others before them."""
    absent = "none" if is_whole else "none among those kept here"
    return [crop(_line(each, now_s, absent), width) for each in found]


def _line(each: Latest, now_s: float, absent: str) -> Line:
    times = f" ({count(each.times)})" if each.times else ""
    head = fit(f" last {each.label}{times}", LABEL)
    return _told(head, each.event, now_s) if each.event else line((head + absent, Tone.FAINT))


def _told(head: str, event: Record, now_s: float) -> Line:
    kind, tenant = words(event, "kind"), words(event, "tenant")
    numbers = numbers_of(event)
    return line(
        (head, Tone.FAINT),
        f"{duration(age_s(event, now_s)):>6} ago  ",
        ("" if kind == "command" else f"{kind} ", KIND_TONES.get(kind, Tone.PLAIN)),
        (f"{tenant} " if tenant else "", Tone.TITLE),
        words(event, "reason"),
        f": {numbers}" if numbers else "",
    )
