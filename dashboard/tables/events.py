"""The table of events: what was decided under pressure, and by which two numbers."""

from dashboard.format import NOTHING, count, duration
from dashboard.lines import Span, Tone
from dashboard.source.base import Record
from dashboard.table import Column, Table
from dashboard.tables.records import number, word_column, words

KIND_TONES = {
    "reject": Tone.NOTICE,
    "shed": Tone.ALARM,
    "expire": Tone.ALARM,
    "fault": Tone.ALARM,
    "preempt": Tone.NOTICE,
    "swap": Tone.NOTICE,
    "shorten": Tone.NOTICE,
    "epoch": Tone.ALARM,
    "restart": Tone.ALARM,
    "engine": Tone.ALARM,
    "command": Tone.TITLE,
    "failed": Tone.ALARM,
    "route": Tone.FAINT,
    "queue": Tone.FAINT,
}


def value(record: Record, name: str) -> Span:
    """Return one of the numbers that were compared."""
    found = number(record, name)
    text = f"{found:.2f}" if 0 < abs(found) < 10 and found != int(found) else count(found)
    return (text, Tone.PLAIN) if found else (NOTHING, Tone.FAINT)


def order(record: Record) -> float:
    """Return when it happened, newest largest."""
    return number(record, "at_s") + number(record, "number") * 1e-9


AGE: Column[Record] = Column(
    "at_s", "AGO", 7, lambda r: (duration(number(r, "age_s")), Tone.PLAIN), order,
    "how long ago it was")  # fmt: skip
MEASURED: Column[Record] = Column(
    "measured", "MEASURED", 9, lambda r: value(r, "measured"), lambda r: number(r, "measured"),
    "the number that was compared, in the unit of the reason")  # fmt: skip
THRESHOLD: Column[Record] = Column(
    "threshold", "LIMIT", 7, lambda r: value(r, "threshold"), lambda r: number(r, "threshold"),
    "what it was compared with")  # fmt: skip

COLUMNS = (
    AGE,
    word_column("kind", "KIND", 8, "what was decided", KIND_TONES),
    word_column("tenant", "TENANT", 12, "about whose request"),
    word_column("reason", "REASON", 26, "why; of commands and restarts, what"),
    MEASURED,
    THRESHOLD,
    word_column("traffic_class", "CLASS", 14, "the class of the request"),
    word_column("operation_id", "REQUEST", 16, "operation id of a live request"),
    word_column("replica", "REP", 3, "the replica; -1 = none"),
)


def identity_of(record: Record) -> str:
    """Return what tells an event from all others."""
    return f"{words(record, 'origin')}{words(record, 'number')}"


def events_table() -> Table[Record]:
    """Return the table, newest event first."""
    return Table(COLUMNS, identity_of, "at_s")
