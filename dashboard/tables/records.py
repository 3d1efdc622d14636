"""Columns over records of control answers: values of unknown origin as cells."""

from dashboard.format import NOTHING, count, duration
from dashboard.lines import FAINT, PLAIN, Span, Tone
from dashboard.source.base import Record
from dashboard.table import Column, SortKey


def number(record: Record, name: str) -> float:
    """Return a field as a number, 0 if it is none."""
    value = record.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def records_in(result: Record, name: str) -> list[Record]:
    """Return the records of a list in an answer, none if there is no such list."""
    found = result.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def words(record: Record, name: str) -> str:
    """Return a field as printable text."""
    value = record.get(name)
    text = "" if value is None else str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def number_column(name: str, title: str, width: int, help_text: str) -> Column[Record]:
    """Return a column of counts."""

    def cell(record: Record) -> Span:
        value = number(record, name)
        return (count(value), PLAIN) if value else (NOTHING, FAINT)

    return Column(name, title, width, cell, lambda record: number(record, name), help_text)


def time_column(name: str, title: str, width: int, help_text: str) -> Column[Record]:
    """Return a column of seconds."""

    def cell(record: Record) -> Span:
        return duration(number(record, name)), PLAIN

    return Column(name, title, width, cell, lambda record: number(record, name), help_text)


def word_column(
    name: str, title: str, width: int, help_text: str, tones: dict[str, Tone] | None = None
) -> Column[Record]:
    """Return a column of words, some of which have a tone."""

    def cell(record: Record) -> Span:
        text = words(record, name)
        return text or NOTHING, (tones or {}).get(text, PLAIN if text else FAINT)

    def sort(record: Record) -> SortKey:
        return words(record, name)

    return Column(name, title, width, cell, sort, help_text, right=False)


def replica_column() -> Column[Record]:
    """Return a column of replicas; what is about none has no number."""

    def cell(record: Record) -> Span:
        value = record.get("replica")
        return (str(value), PLAIN) if isinstance(value, int) else (NOTHING, FAINT)

    def sort(record: Record) -> SortKey:
        value = record.get("replica")
        return value if isinstance(value, int) else -1

    help_text = "the replica that it is about; - = none"
    return Column("replica", "REP", 3, cell, sort, help_text)
