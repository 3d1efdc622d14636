"""The database in the state directory: what outlives an engine, beside its configuration file.

Owns: where it lies, its tables, how it is opened. Never knows: what is in the rows. Admin worker 0
alone writes; the supervisor reads once, before any child is there, and other workers read when they
are asked. WAL: readers never wait for the writer.

    kept        what was changed at run time, by name: "tenancy" is a `core.tenancy.difference`
    usage       what each tenant has used in each hour (UTC, seconds since 1970), by counter
    counted     where the counters of the board stood when they were added to `usage` last
    audit       the commands that changed something or were to, the record of each as JSON
    audit_read  how much of each file of the audit log is in `audit`, bytes

What is locked, damaged or of a newer version is a StateError of its own; nothing is repaired or
deleted here; one of an older version gets the tables that it lacks when it is opened to be written.
A new database is made beside its place and moved there whole, so a file without the tables is a
damaged one, and `synchronous` is FULL: what counts as kept outlives a loss of power.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from core.errors import StateDamagedError, StateError, StateLockedError, StateNewerError

FILE_NAME = "state.db"
DAMAGED_PATTERN = f"{FILE_NAME}.damaged-*"  # files that the keeper has set aside
SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 0.05
TENANCY = "tenancy"

_SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
    hour_s INTEGER, tenant TEXT, counter TEXT, amount INTEGER NOT NULL,
    PRIMARY KEY (hour_s, tenant, counter)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counted (
    engine TEXT, tenant TEXT, counter TEXT, amount INTEGER NOT NULL,
    PRIMARY KEY (engine, tenant, counter)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (
    number INTEGER PRIMARY KEY, time TEXT NOT NULL, tenant TEXT NOT NULL, command TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_by_time ON audit (time);
CREATE TABLE IF NOT EXISTS audit_read (
    file TEXT PRIMARY KEY, read_bytes INTEGER NOT NULL
) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_LOCKS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_PRIMARY_CODE = 0xFF  # of an extended error code of SQLite

Connection = sqlite3.Connection


def open_to_write(directory: Path) -> Connection:
    """Return a connection for the one writer, made with directory (0700) and file (0600) if they
    are missing; raises StateError.
    """
    path = directory / FILE_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        connection = _connect(path, BUSY_TIMEOUT_S)
        if _check_version(connection, path) < SCHEMA_VERSION:
            connection.executescript(_SCHEMA)
        connection.execute("PRAGMA synchronous = FULL")
    except (OSError, sqlite3.Error) as error:
        raise fault(path, "written", error) from error
    return connection


@contextmanager
def reading(directory: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[Connection]:
    """Give a connection that only reads, all of it as of one moment; raises StateError, also for
    errors within. An engine that has kept nothing yet has no file: FileNotFoundError.
    """
    path = directory / FILE_NAME
    try:
        path.stat()
        with closing(_connect(path, busy_timeout_s)) as connection:
            connection.execute("PRAGMA query_only = TRUE")
            _check_version(connection, path)
            connection.execute("BEGIN")
            yield connection
    except FileNotFoundError:
        raise
    except (OSError, sqlite3.Error) as error:
        raise fault(path, "read", error) from error


def read_kept(directory: Path, name: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> str | None:
    """Return what was kept under `name`, None if nothing was; raises StateError."""
    try:
        with reading(directory, busy_timeout_s) as connection:
            row = connection.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
    except FileNotFoundError:
        return None
    return None if row is None else str(row[0])


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Do what follows as a whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.execute("COMMIT")


def fault(path: Path, done: str, error: OSError | sqlite3.Error) -> StateError:
    """Return what an error says of the database at `path`, which could not be `done`."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
    if code in _LOCKS:
        return StateLockedError(f"{path} is locked by another process")
    if code in _DAMAGE:
        return StateDamagedError(f"{path} is damaged: {error}")
    return StateError(f"{path} cannot be {done}: {error}")


def _make(path: Path) -> None:
    """Make an empty database at `path`, whole or not at all."""
    unfinished = path.with_name(f"{FILE_NAME}.new")
    unfinished.unlink(missing_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    os.close(os.open(unfinished, flags, 0o600))
    with closing(_connect(unfinished, BUSY_TIMEOUT_S)) as connection:
        connection.executescript(_SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
    for suffix in ("-wal", "-shm"):  # of a file that was moved away; they would be played back
        path.with_name(FILE_NAME + suffix).unlink(missing_ok=True)
    unfinished.rename(path)


def _connect(path: Path, busy_timeout_s: float) -> Connection:
    return sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)


def _check_version(connection: Connection, path: Path) -> int:
    """Return the version of the tables; raises StateError for one that cannot be used."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StateNewerError(
            f"{path} was written by a newer version of headrace ({version} > {SCHEMA_VERSION})"
        )
    if version == 0:
        raise StateDamagedError(f"{path} is damaged: it has not the tables of a state database")
    return int(version)
