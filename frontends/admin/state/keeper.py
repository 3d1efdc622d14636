"""The one writer of the state database: a thread of admin worker 0.

Owns: the connection, the order of a write, and what is said when there is none. Never knows: what
changed (`ipc.directory`) or what was used (`usage`); it is given both, whole, and writes the
newest, and what the audit log has more goes into its table with each
(`frontends.admin.audit.table`). A slow disk delays nobody: what comes while it writes is passed
over, for the next look brings it again. A write is one transaction, so that usage is never counted
twice. `kept_ns` says up to when all counters are there; until then no process gives those of a
tenant up. While the disk is full or the database cannot be opened nothing is lost, because nothing
counts as kept; a damaged file is moved out of the way, for whoever wants to save it.
"""

import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from core.clock import NS_PER_S
from core.errors import StateDamagedError, StateError
from core.state_database import (
    DAMAGED_PATTERN,
    FILE_NAME,
    TENANCY,
    Connection,
    fault,
    open_to_write,
    transaction,
)
from frontends.admin.audit.table import catch_up
from frontends.admin.state.usage import (
    HOUR_S,
    Counters,
    by_tenant,
    growth,
    hour_of,
    read_counted,
)
from ipc.directory import DirectorySnapshot

CLOSE_TIMEOUT_S = 2.0
COMPLAINT_INTERVAL = 60  # failures between two complaints in the log
MAX_USAGE_AGE_S = 400 * 24 * HOUR_S
FORGET_NS = 60 * NS_PER_S  # after its end a counter may still be in an answer under way

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """All that is worth keeping at one moment."""

    directory: DirectorySnapshot
    counters: Counters = field(repr=False)
    counted_to_ns: int = 0  # all pages were published then or later; 0 = some are missing


class Keeper:
    """Writes moments; `keep` never blocks and never raises."""

    def __init__(
        self,
        directory: Path,
        engine: str,
        wall_time_s: Callable[[], float],
        on_kept: Callable[[DirectorySnapshot], None],
    ) -> None:
        """Keep in `directory` for the run `engine`; `on_kept` is told, in the thread, of each
        version of the tenant directory that is on disk.
        """
        self.failures = 0
        self.kept_ns = 0  # counters that pages showed up to then are on disk
        self._directory = directory
        self._engine = engine
        self._wall_time_s = wall_time_s
        self._on_kept = on_kept
        self._counted: Counters = {}
        self._ended_ns: dict[tuple[str, str], int] = {}  # since when counters are on no page
        self._version = 0
        self._moments: queue.Queue[Kept | None] = queue.Queue(1)
        self._thread = threading.Thread(target=self._write_all, name="keeper", daemon=True)
        self._thread.start()

    def keep(self, moment: Kept) -> None:
        """Write `moment`, unless an earlier one waits to be written."""
        with suppress(queue.Full):
            self._moments.put_nowait(moment)

    def close(self, last: Kept) -> None:
        """Write the last moment and end, within a bound."""
        for moment in (last, None):
            with suppress(queue.Full):
                self._moments.put(moment, timeout=CLOSE_TIMEOUT_S)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _write_all(self) -> None:
        """Write until told to end, under one connection as long as that works."""
        is_over = False
        while not is_over:
            try:
                with closing(open_to_write(self._directory)) as connection:
                    is_over = self._write_until_failure(connection)
            except StateError as error:
                is_over = self._failed(error)
            except sqlite3.Error as error:
                is_over = self._failed(fault(self._directory / FILE_NAME, "written", error))

    def _write_until_failure(self, connection: Connection) -> bool:
        """Write what comes; True = the end, and raises what the database raises."""
        self._counted, self._version = read_counted(connection, self._engine), 0
        while (moment := self._moments.get()) is not None:
            self._write(connection, moment)
            self.kept_ns = max(self.kept_ns, moment.counted_to_ns)
            catch_up(connection, self._directory)
            self.failures = 0
        return True

    def _write(self, connection: Connection, moment: Kept) -> None:
        grown = growth(moment.counters, self._counted)
        snapshot = moment.directory
        if not grown and snapshot.version == self._version:
            return
        ended = self._ended(moment)
        with transaction(connection):
            connection.execute("REPLACE INTO kept VALUES (?, ?)", (TENANCY, snapshot.changes))
            self._add_usage(connection, grown, moment.counters)
            self._forget(connection, ended)
        self._counted = self._counted | {key: moment.counters[key] for key in grown}
        for key in ended:
            del self._counted[key], self._ended_ns[key]
        self._version = snapshot.version
        self._on_kept(snapshot)

    def _add_usage(self, connection: Connection, grown: Counters, counters: Counters) -> None:
        hour_s = hour_of(self._wall_time_s())
        connection.executemany(
            "INSERT INTO usage VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
            [(hour_s, *key, amount) for key, amount in by_tenant(grown).items()],
        )
        connection.execute("DELETE FROM usage WHERE hour_s < ?", (hour_s - MAX_USAGE_AGE_S,))
        connection.execute("DELETE FROM counted WHERE engine != ?", (self._engine,))
        connection.executemany(
            "REPLACE INTO counted VALUES (?, ?, ?, ?)",
            [(self._engine, *key, counters[key]) for key in grown],
        )

    def _ended(self, moment: Kept) -> list[tuple[str, str]]:
        """Return the counters that have been on no page for a while: nobody will see them again."""
        now_ns = moment.counted_to_ns
        if not now_ns:
            return []
        gone = self._counted.keys() - moment.counters.keys()
        self._ended_ns = {key: self._ended_ns.get(key, now_ns) for key in gone}
        return [key for key, ns in self._ended_ns.items() if now_ns - ns > FORGET_NS]

    def _forget(self, connection: Connection, ended: list[tuple[str, str]]) -> None:
        connection.executemany(
            "DELETE FROM counted WHERE engine = ? AND tenant = ? AND counter = ?",
            [(self._engine, *key) for key in ended],
        )

    def _failed(self, error: StateError) -> bool:
        """Complain, and wait for the next moment; True = the end."""
        self.failures += 1
        if self.failures % COMPLAINT_INTERVAL == 1:
            logger.error("the state database is not written: %s", error)
        self._set_aside_if_damaged(error)
        return self._moments.get() is None

    def _set_aside_if_damaged(self, error: StateError) -> None:
        """Move a file that is no database out of the way, so that a new one can be begun."""
        if not isinstance(error, StateDamagedError):
            return
        path = self._directory / FILE_NAME
        aside = path.with_name(DAMAGED_PATTERN.replace("*", str(int(self._wall_time_s()))))
        with suppress(OSError):
            path.rename(aside)
            self.kept_ns = 0  # the next one has nothing yet
            logger.error("%s is damaged and lies at %s now", path, aside)
