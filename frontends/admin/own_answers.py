"""What an admin worker carries out itself, from files as well as from the board: `usage`,
`audit`, `dump`.

Owns: that no file delays the worker's loop, and for how long an answer may take. Never knows: who
asks.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from core.config import HeadraceConfig
from core.errors import StateError
from frontends.admin.audit import audit_path
from frontends.admin.dump import audit_tail, bundle
from frontends.admin.usage import (
    Counters,
    Record,
    counters_of,
    first_hour,
    growth,
    read_usage,
    report,
)
from frontends.admin.views import freshness
from frontends.boards import Boards
from ipc.control.audit import DEFAULT_COMMANDS
from ipc.control.declaration import Effect
from ipc.control.registry import COMMANDS
from ipc.run_directory import RunDirectory

READ_TIMEOUT_S = 0.08  # for the database; an answer shall be there within 100 ms

Args = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class OwnAnswers:
    """The answers of one worker; `state` is the state directory of the engine."""

    run_directory: RunDirectory
    state: Path
    config: HeadraceConfig
    read_boards: Callable[[], Boards]
    wall_time_s: Callable[[], float]

    async def usage(self, args: Args) -> Record:
        """Return what was used; raises ArgumentError or StateError."""
        since, tenant = args.get("since"), args.get("tenant")
        since_s = first_hour(None if since is None else str(since), self.wall_time_s())
        used, counted = await self._read_usage(since_s)
        boards = self.read_boards()  # after the database: what it has is on the board too
        grown = growth(counters_of(boards), counted)
        return {
            **report((used, grown), None if tenant is None else str(tenant)),
            "since": datetime.fromtimestamp(since_s, UTC).isoformat() if since_s else "",
            "kept": self.config.admin.keep_state and not keep_failures(boards),
            **freshness(boards),
        }

    async def dump(self, args: Args) -> Record:
        """Return the support bundle."""
        audit = audit_path(self.state)
        return await bundle(self.run_directory, self.read_boards(), self.config, audit)

    async def audit(self, args: Args) -> Record:
        """Return the last commands that changed something, or were to."""
        found = await asyncio.to_thread(audit_tail, audit_path(self.state))
        limit = int(str(args.get("limit", DEFAULT_COMMANDS)))
        return {"commands": [each for each in found if is_change(each)][-limit:]}

    async def _read_usage(self, since_s: int) -> tuple[Counters, Counters]:
        if not self.config.admin.keep_state:
            return {}, {}
        engine = engine_id(self.run_directory)
        reading = asyncio.to_thread(read_usage, self.state, engine, since_s)
        try:
            return await asyncio.wait_for(reading, READ_TIMEOUT_S)
        except TimeoutError:
            raise StateError(f"{self.state} cannot be read within {READ_TIMEOUT_S:g} s") from None


def keep_failures(boards: Boards) -> int:
    """Return how often the database could not be written since it was written last."""
    return sum(int(page.record["keep_failures"]) for _, page in boards.of_kind("admin"))


def is_change(record: object) -> bool:
    """Tell whether a record of the audit log is of a command that changes something, or of a caller
    without the key.
    """
    if not isinstance(record, Mapping):
        return False
    command = COMMANDS.get(str(record.get("command")))
    return "refusals" in record or (command is not None and command.effect is Effect.WRITE)


def engine_id(directory: RunDirectory) -> str:
    """Return what tells this run of the engine from all others."""
    owner = directory.owner
    return f"{owner.boot_id}.{owner.pid}.{owner.start_ticks}"
