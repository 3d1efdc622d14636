"""The table of live requests."""

from dashboard.format import count
from dashboard.lines import Span, Tone
from dashboard.source.base import Record
from dashboard.table import Column, Table
from dashboard.tables.records import number, number_column, time_column, word_column, words

STATUS_TONES = {
    "running": Tone.GOOD,
    "waiting": Tone.NOTICE,
    "preempted": Tone.ALARM,
    "swapped": Tone.ALARM,
}


def name_of(record: Record) -> str:
    """Return what a request is called: its operation, or its number."""
    return words(record, "operation_id") or words(record, "request_id")


def identity_of(record: Record) -> str:
    """Return the request's number, of which there is one only."""
    return words(record, "request_id")


def output(record: Record) -> Span:
    """Return how far its output is."""
    done, most = number(record, "num_output_tokens"), number(record, "max_tokens")
    return f"{count(done)}/{count(most)}", Tone.PLAIN if done else Tone.FAINT


NAME: Column[Record] = Column(
    "operation_id", "REQUEST", 14, lambda r: (name_of(r), Tone.PLAIN), name_of,
    "its operation id, as in the client's answer", right=False)  # fmt: skip
OUTPUT: Column[Record] = Column(
    "output", "OUT/MAX", 9, output, lambda r: number(r, "num_output_tokens"),
    "tokens generated, and asked for at the most")  # fmt: skip

COLUMNS = (
    NAME,
    word_column("tenant", "TENANT", 12, "whose it is"),
    word_column("traffic_class", "CLASS", 11, "its class of traffic"),
    word_column("status", "STATUS", 9, "waiting, running, preempted or swapped", STATUS_TONES),
    time_column("age_s", "AGE", 6, "time since it arrived"),
    number_column("prompt_len", "PROMPT", 6, "tokens of its prompt"),
    OUTPUT,
    number_column("num_preemptions", "PRE", 4, "how often it gave its memory back"),
    word_column("replica", "REP", 3, "the replica that serves it; -1 = none yet"),
    word_column("request_id", "NUMBER", 10, "its number in the scheduler"),
)


def requests_table() -> Table[Record]:
    """Return the table, oldest request first."""
    return Table(COLUMNS, identity_of, "age_s")
