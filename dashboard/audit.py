"""Records of the audit log as events: who gave which command, and what it changed. Pure."""

from datetime import datetime

from dashboard.pictures.answer import change_of, text_of
from dashboard.source.base import Record
from dashboard.tables.records import words


def event_of(record: Record) -> Record:
    """Return a command in the form in which the engine tells its events."""
    args, result = record.get("args"), record.get("result")
    told = [words(record, "command")]
    told += [text_of(value) for value in args.values()] if isinstance(args, dict) else []
    error = words(record, "error") or words(record, "code")
    return {
        "origin": "audit",
        "number": f"{words(record, 'time')} {words(record, 'worker')} {' '.join(told)}",
        "at_s": _seconds(words(record, "time")),
        "kind": "failed" if error else "command",
        "tenant": words(record, "actor"),
        "reason": " ".join(told),
        "change": error or (change_of(result) if isinstance(result, dict) else ""),
    }


def _seconds(text: str) -> float:
    """Return a time in ISO 8601 as the time of day in seconds, 0 if it is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
