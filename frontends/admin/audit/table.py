"""The audit log as a table that can be asked: what was commanded, by time, tenant and command.

Owns: what of the log is in the table, for how long, and the answer to `audit`. Never knows: who
appends to the log (`frontends.admin.audit.log`), or when the table is written
(`frontends.admin.state.keeper`). The log is the record: each worker appends to it. Whoever writes
the table follows the log, and how far it came is written in the same transaction as the rows: so
each command is there exactly once, whenever the writer is killed. An answer is the table and what
the log has beyond it.

The table has changes, those that failed too, and callers without the key: the newest `MAX_ROWS`, of
at most `log.MAX_LINE_BYTES` each. Looks are in the log alone.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from core.errors import StateError
from core.state_database import reading, transaction
from frontends.admin.audit.lines import (
    Piece,
    Positions,
    Record,
    last_pieces,
    last_records,
    next_pieces,
    records_of,
)
from ipc.control.declaration import Effect
from ipc.control.registry import COMMANDS

MAX_ROWS = 20_000
_TENANT_PATH = re.compile(r"tenants(?:\.|\[)([\w.-]+?)\]?\.\w+")

Row = tuple[str, str, str, str]  # time, tenant, command, record


@dataclass(frozen=True, slots=True)
class Question:
    """Which commands are asked for: at most `limit`, since a time in UTC (ISO 8601), of a tenant,
    of a name; None = whichever.
    """

    limit: int
    since: str | None = None
    tenant: str | None = None
    command: str | None = None

    def takes(self, record: Record) -> bool:
        """Tell whether a record is asked for."""
        return (
            is_change(record)
            and (self.since is None or str(record.get("time", "")) >= self.since)
            and self.tenant in (None, tenant_of(record))
            and self.command in (None, record.get("command"))
        )

    def newest(self, records: Iterable[Record]) -> list[Record]:
        """Return the newest of the records that are asked for, the oldest first."""
        taken = (record for record in records if self.takes(record))
        return sorted(taken, key=lambda record: str(record.get("time", "")))[-self.limit :]


def catch_up(connection: sqlite3.Connection, directory: Path) -> None:
    """Bring the table up to the log in `directory`, a piece of each file at a time; raises
    StateError or sqlite3.Error.
    """
    read = _positions(connection)
    pieces = _pieces(directory, read)
    if all(piece.end == read.get(piece.file) for piece in pieces):
        return
    with transaction(connection):
        connection.executemany(
            "INSERT INTO audit (time, tenant, command, record) VALUES (?, ?, ?, ?)", _rows(pieces)
        )
        connection.execute(
            "DELETE FROM audit WHERE number <= (SELECT MAX(number) FROM audit) - ?", (MAX_ROWS,)
        )
        connection.execute("DELETE FROM audit_read")  # files that are no more need no position
        connection.executemany(
            "INSERT INTO audit_read VALUES (?, ?)", [(piece.file, piece.end) for piece in pieces]
        )


def answer(directory: Path, question: Question) -> tuple[list[Record], bool]:
    """Return the commands that are asked for, the oldest first, and whether all that was kept was
    looked at; raises StateError.
    """
    told: list[Record] = []
    read: Positions = {}
    with suppress(FileNotFoundError), reading(directory) as connection:
        told, read = list(_select(connection, question)), _positions(connection)
    try:
        unread = list(last_pieces(directory, read))
    except OSError as error:
        raise _unreadable(directory, error) from error
    told += [record for piece in unread for record in records_of(piece.lines)]
    return question.newest(told), all(piece.is_whole for piece in unread)


def answer_from_log(directory: Path, question: Question) -> list[Record]:
    """Return the commands that are asked for and are at the end of the log."""
    return question.newest(last_records(directory))


def is_change(record: Record) -> bool:
    """Tell whether a record is of a command that changes something, or of a caller without the
    key.
    """
    command = COMMANDS.get(str(record.get("command")))
    return "refusals" in record or (command is not None and command.effect is Effect.WRITE)


def tenant_of(record: Record) -> str:
    """Return the tenant that a command was about, "" if it was about none."""
    args = record.get("args")
    if not isinstance(args, dict):
        return ""
    path = _TENANT_PATH.fullmatch(str(args.get("path", "")))
    return path[1] if path is not None else str(args.get("tenant", ""))


def _rows(pieces: Iterable[Piece]) -> Iterator[Row]:
    for piece in pieces:
        for record in records_of(piece.lines):
            if is_change(record):
                command, time = str(record.get("command", "")), str(record.get("time", ""))
                yield time, tenant_of(record), command, orjson.dumps(record).decode()


def _select(connection: sqlite3.Connection, question: Question) -> Iterator[Record]:
    rows = connection.execute(
        "SELECT record FROM audit WHERE (:since IS NULL OR time >= :since)"
        " AND (:tenant IS NULL OR tenant = :tenant)"
        " AND (:command IS NULL OR command = :command)"
        " ORDER BY time DESC, number DESC LIMIT :limit",
        {
            "since": question.since,
            "tenant": question.tenant,
            "command": question.command,
            "limit": question.limit,
        },
    ).fetchall()
    for (record,) in reversed(rows):
        yield orjson.loads(record)


def _positions(connection: sqlite3.Connection) -> Positions:
    return dict(connection.execute("SELECT file, read_bytes FROM audit_read"))


def _pieces(directory: Path, read: Positions) -> list[Piece]:
    try:
        return list(next_pieces(directory, read))
    except OSError as error:
        raise _unreadable(directory, error) from error


def _unreadable(directory: Path, error: OSError) -> StateError:
    return StateError(f"the audit log in {directory} cannot be read: {error}")
