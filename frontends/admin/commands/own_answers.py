"""What an admin worker carries out itself, from files as well as from the board: `usage`,
`audit`, `dump`.

Owns: that no file delays the worker's loop, and for how long an answer may take. Never knows: who
asks.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ParamSpec, TypeVar

from core.config.headrace import HeadraceConfig
from core.errors import StateError
from frontends.admin.audit.log import iso_time
from frontends.admin.audit.table import Question, answer, answer_from_log
from frontends.admin.commands.dump import bundle
from frontends.admin.commands.views import freshness
from frontends.admin.since import moment_of
from frontends.admin.state.usage import (
    Counters,
    Record,
    counters_of,
    first_hour,
    growth,
    read_usage,
    report,
)
from frontends.boards import Boards
from ipc.control.audit import DEFAULT_COMMANDS
from ipc.run_directory import RunDirectory

READ_TIMEOUT_S = 0.08  # for the database; an answer shall be there within 100 ms

Args = Mapping[str, object]
P = ParamSpec("P")
Found = TypeVar("Found")


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
        boards = self.read_boards()  # before the database: that has what is on no page any more
        used, counted = await self._read_usage(since_s)
        grown = growth(counters_of(boards), counted)
        return {
            **report((used, grown), None if tenant is None else str(tenant)),
            "since": datetime.fromtimestamp(since_s, UTC).isoformat() if since_s else "",
            "kept": self.config.admin.keep_state and not keep_failures(boards),
            **freshness(boards),
        }

    async def dump(self, args: Args) -> Record:
        """Return the support bundle."""
        return await bundle(self.run_directory, self.read_boards(), self.config, self.state)

    async def audit(self, args: Args) -> Record:
        """Return the commands that are asked for; raises ArgumentError."""
        question = question_of(args, self.wall_time_s())
        if self.config.admin.keep_state:
            with suppress(StateError):
                commands, is_complete = await self._in_time(answer, self.state, question)
                return {"commands": commands, "complete": is_complete}
        commands = await asyncio.to_thread(answer_from_log, self.state, question)
        return {"commands": commands, "complete": False}

    async def _read_usage(self, since_s: int) -> tuple[Counters, Counters]:
        if not self.config.admin.keep_state:
            return {}, {}
        return await self._in_time(read_usage, self.state, engine_id(self.run_directory), since_s)

    async def _in_time(self, read: Callable[P, Found], *args: P.args, **kwargs: P.kwargs) -> Found:
        """Return what a thread reads; raises StateError, also if that takes too long."""
        try:
            return await asyncio.wait_for(asyncio.to_thread(read, *args, **kwargs), READ_TIMEOUT_S)
        except TimeoutError:
            raise StateError(f"{self.state} cannot be read within {READ_TIMEOUT_S:g} s") from None


def keep_failures(boards: Boards) -> int:
    """Return how often the database could not be written since it was written last."""
    return sum(int(page.record["keep_failures"]) for _, page in boards.of_kind("admin"))


def question_of(args: Args, now_s: float) -> Question:
    """Return which commands are asked for; raises ArgumentError."""
    asked = {name: str(args[name]) for name in ("since", "tenant", "command") if name in args}
    if "since" in asked:
        asked["since"] = iso_time(moment_of("audit", asked["since"], now_s))
    return Question(limit=int(str(args.get("limit", DEFAULT_COMMANDS))), **asked)


def engine_id(directory: RunDirectory) -> str:
    """Return what tells this run of the engine from all others."""
    owner = directory.owner
    return f"{owner.boot_id}.{owner.pid}.{owner.start_ticks}"
