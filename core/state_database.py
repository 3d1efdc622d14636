"""The database in the state directory: what outlives an engine, beside its configuration file.

Owns: where it lies, its tables, how it is opened. Never knows: what is in the rows. Admin worker 0
alone writes; the supervisor reads once, before any child is there, and other workers read when they
are asked. WAL: readers never wait for the writer.

    kept     what was changed at run time, by name: "tenancy" is a `core.tenancy_difference` as JSON
    usage    what each tenant has used in each hour (UTC, seconds since 1970), by counter
    counted  where the counters of the board stood when they were added to `usage` last

SQLite files that are damaged raise StateError here; nothing is repaired or deleted.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from core.errors import StateError

FILE_NAME = "state.db"
SCHEMA_VERSION = 1
BUSY_TIMEOUT_S = 0.05
TENANCY = "tenancy"

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
    hour_s INTEGER, tenant TEXT, counter TEXT, amount INTEGER NOT NULL,
    PRIMARY KEY (hour_s, tenant, counter)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counted (
    engine TEXT, tenant TEXT, counter TEXT, amount INTEGER NOT NULL,
    PRIMARY KEY (engine, tenant, counter)
) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA_VERSION};
"""

Connection = sqlite3.Connection


def open_to_write(directory: Path) -> Connection:
    """Return a connection for the one writer, made with directory (0700) and file (0600) if they
    are missing; raises StateError.
    """
    path = directory / FILE_NAME
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = _connect(path)
        _check_version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_SCHEMA)
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"{path} cannot be written: {error}") from error
    return connection


@contextmanager
def reading(directory: Path) -> Iterator[Connection]:
    """Give a connection that only reads, all of it as of one moment; raises StateError, also for
    errors within. An engine that has kept nothing yet has no file: FileNotFoundError.
    """
    path = directory / FILE_NAME
    path.stat()
    try:
        with closing(_connect(path)) as connection:
            connection.execute("PRAGMA query_only = TRUE")
            _check_version(connection, path)
            connection.execute("BEGIN")
            yield connection
    except (OSError, sqlite3.Error) as error:
        raise StateError(f"{path} cannot be read: {error}") from error


def read_kept(directory: Path, name: str) -> str | None:
    """Return what was kept under `name`, None if nothing was; raises StateError."""
    try:
        with reading(directory) as connection:
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


def _connect(path: Path) -> Connection:
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)


def _check_version(connection: Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise StateError(f"{path} was written by a newer version ({version} > {SCHEMA_VERSION})")
