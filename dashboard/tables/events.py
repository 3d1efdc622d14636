"""The table of events: what was decided under pressure, and by which two numbers."""

from collections.abc import Callable, Mapping

from dashboard.format import NOTHING, count, duration, milliseconds
from dashboard.lines import ALARM, FAINT, NOTICE, PLAIN, Tone
from dashboard.source.base import Record
from dashboard.table import Column, Table
from dashboard.tables.records import number, replica_column, word_column, words

KIND_TONES = {
    "reject": NOTICE,
    "shed": ALARM,
    "expire": ALARM,
    "fault": ALARM,
    "preempt": NOTICE,
    "swap": NOTICE,
    "shorten": NOTICE,
    "epoch": ALARM,
    "restart": ALARM,
    "engine": ALARM,
    "command": Tone.TITLE,
    "failed": ALARM,
    "route": FAINT,
    "queue": FAINT,
}

Show = Callable[[float], str]


def factor(value: float) -> str:
    """Return a number that may be small."""
    return f"{value:.2f}" if abs(value) < 10 else count(value)


NUMBERS: Mapping[str, tuple[str, Show]] = {
    "queue": ("{0} needed, {1} free", count),
    "reject": ("{0}, limit {1}", count),
    "shed": ("in {0}, due in {1}", milliseconds),
    "expire": ("waited {0} of {1}", milliseconds),
    "demote": ("{0} tokens, cap {1}", count),
    "route": ("cost {0}, best {1}", factor),
    "preempt": ("{0} back, {1} free", count),
    "swap": ("{0} back, {1} free", count),
    "shorten": ("{0} back, {1} free", count),
    "restore": ("kept {0} of {1} tokens", count),
    "epoch": ("epoch {0}, {1} blocks", count),
    "prices": ("epoch {0} after {1}", count),
    "restart": ("{0} so far", count),
}
"""How the two numbers of an event are told, by its kind."""


def numbers_of(record: Record) -> str:
    """Return the two numbers that were compared, or what a command changed."""
    measured, threshold = number(record, "measured"), number(record, "threshold")
    if "change" in record:
        return words(record, "change")
    if not (measured or threshold):
        return ""
    text, show = NUMBERS.get(words(record, "kind"), ("{0}, limit {1}", factor))
    return text.format(show(measured), show(threshold))


def order(record: Record) -> float:
    """Return when it happened, newest largest."""
    return number(record, "at_s") + number(record, "number") * 1e-9


NUMBERS_COLUMN: Column[Record] = Column(
    "numbers", "BY WHICH NUMBERS", 24, lambda r: (numbers_of(r) or NOTHING, PLAIN),
    lambda r: number(r, "measured"),
    "what was compared: KV blocks, times to the first token; of a command, before and after",
    right=False)  # fmt: skip

COLUMNS = (
    word_column("kind", "KIND", 8, "what was decided", KIND_TONES),
    word_column("tenant", "TENANT", 12, "about whose request; of a command, who gave it"),
    word_column("reason", "REASON", 22, "why; of commands and restarts, what"),
    NUMBERS_COLUMN,
    word_column("traffic_class", "CLASS", 14, "the class of the request"),
    word_column("operation_id", "REQUEST", 16, "operation id of a live request"),
    replica_column(),
)


def identity_of(record: Record) -> str:
    """Return what tells an event from all others."""
    return f"{words(record, 'origin')}{words(record, 'number')}"


def age_s(record: Record, now_s: float) -> float:
    """Return how long ago an event was, at this time of day."""
    return max(0.0, now_s - number(record, "at_s"))


def events_table(now_s: Callable[[], float]) -> Table[Record]:
    """Return the table, newest event first; ages are those at `now_s`, the time of day, so that
    they grow without other rows.
    """
    age: Column[Record] = Column(
        "at_s", "AGO", 7, lambda r: (duration(age_s(r, now_s())), PLAIN), order,
        "how long ago it was")  # fmt: skip
    return Table((age, *COLUMNS), identity_of, "at_s")
