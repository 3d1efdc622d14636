"""The table of live requests."""

from dashboard.format import count
from dashboard.lines import ALARM, FAINT, NOTICE, PLAIN, Span, Tone
from dashboard.source.base import Record
from dashboard.table import Column, Table
from dashboard.tables.records import (
    number,
    number_column,
    replica_column,
    time_column,
    word_column,
    words,
)

STATUS_TONES = {
    "running": Tone.GOOD,
    "waiting": NOTICE,
    "preempted": ALARM,
    "swapped": ALARM,
}


MAX_AGE_S = 1e7
URGENCY = ("preempted", "swapped", "waiting", "running")


def name_of(record: Record) -> str:
    """Return what a request is called: its operation, or its number."""
    return words(record, "operation_id") or words(record, "request_id")


def identity_of(record: Record) -> str:
    """Return the request's number, of which there is one only."""
    return words(record, "request_id")


def output(record: Record) -> Span:
    """Return how far its output is."""
    done, most = number(record, "num_output_tokens"), number(record, "max_tokens")
    return f"{count(done)}/{count(most)}", PLAIN if done else FAINT


def urgency(record: Record) -> float:
    """Return a place in the order in which requests need a look: those that wait come first, and of
    these the oldest.
    """
    text = words(record, "status")
    rank = URGENCY.index(text) if text in URGENCY else len(URGENCY)
    return rank * MAX_AGE_S - min(MAX_AGE_S, number(record, "age_s"))


def status(record: Record) -> Span:
    """Return where it stands."""
    text = words(record, "status")
    return text, STATUS_TONES.get(text, PLAIN)


NAME: Column[Record] = Column(
    "operation_id", "REQUEST", 14, lambda r: (name_of(r), PLAIN), name_of,
    "its operation id, as in the client's answer", right=False)  # fmt: skip
STATUS: Column[Record] = Column(
    "status", "STATUS", 9, status, urgency,
    "preempted, swapped, waiting, running: in this order, the oldest first",
    right=False)  # fmt: skip
OUTPUT: Column[Record] = Column(
    "output", "OUT/MAX", 9, output, lambda r: number(r, "num_output_tokens"),
    "tokens generated, and asked for at the most")  # fmt: skip

COLUMNS = (
    NAME,
    word_column("tenant", "TENANT", 12, "whose it is"),
    word_column("traffic_class", "CLASS", 11, "its class of traffic"),
    STATUS,
    time_column("age_s", "AGE", 6, "time since it arrived"),
    number_column("prompt_len", "PROMPT", 6, "tokens of its prompt"),
    OUTPUT,
    number_column("num_preemptions", "PRE", 4, "how often it gave its memory back"),
    replica_column(),
    word_column("request_id", "NUMBER", 14, "its number in the scheduler"),
)


def requests_table() -> Table[Record]:
    """Return the table: those that wait first, the oldest of them at the top."""
    return Table(COLUMNS, identity_of, "status", descending=False)
