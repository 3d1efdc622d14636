"""Gives control commands to a running engine: the same messages as `headrace ctl`, audited alike.

Owns: what a person is told if there is no answer, and the open line to the engine that runs. Never
knows: which commands exist, or how an answer comes (`ipc.control_client`). It waits, so the app
calls it in threads of its own.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from dashboard.source.base import ControlError, Record
from ipc.control_client import AdminWorkers, Line
from ipc.errors import EngineNotFoundError, FrameError, IpcError
from ipc.run_directory import RunDirectory

TOOL = "top"


@dataclass(frozen=True, slots=True)
class OpenLine:
    """A line to one instance of an engine, and which inode its directory is."""

    line: Line
    num_workers: int
    directory: Path
    inode: int

    def is_of_living(self) -> bool:
        """Tell whether the directory is still that of this instance."""
        try:
            return os.stat(self.directory).st_ino == self.inode
        except OSError:
            return False


class ControlClient:
    """Speaks to the admin pool of the engine called `name`; `close` it at the end."""

    takes_commands = True

    def __init__(self, name: str, base: Path | None, admin_key: str) -> None:
        """Use `admin_key`, or if it is empty the one that the engine wrote for this user."""
        self._engine_name = name
        self._engine_base = base
        self._admin_key = admin_key
        self._open: OpenLine | None = None
        self._opening = Lock()

    def call(self, command: str, args: Mapping[str, object]) -> Record:
        """Return the result of a command; raises ControlError."""
        opened = self._line()
        try:
            reply = opened.line.call(command, args)
        except FrameError as error:
            raise ControlError(str(error)) from error
        if reply is None:
            self.close()
            raise ControlError(f"none of {opened.num_workers} admin workers answers")
        if reply.error:
            raise ControlError(reply.error)
        return reply.result

    def close(self) -> None:
        """Hang up; another call connects anew."""
        with self._opening:
            self._hang_up()

    def _line(self) -> OpenLine:
        """Return the line to the engine that runs now; raises ControlError if none does."""
        with self._opening:
            if self._open is None or not self._open.is_of_living():
                self._hang_up()
                self._open = self._connect()
            return self._open

    def _connect(self) -> OpenLine:
        try:
            directory = RunDirectory.find(self._engine_name, self._engine_base)
            key = self._admin_key or directory.read_admin_key()
            inode = os.stat(directory.path).st_ino
        except EngineNotFoundError as error:
            raise ControlError(f"engine {self._engine_name!r} is not running") from error
        except (IpcError, OSError) as error:
            raise ControlError(
                "no admin key: set HEADRACE_ADMIN_KEY to the configured one"
            ) from error
        workers = AdminWorkers.of(directory, key, TOOL)
        return OpenLine(Line(workers), len(workers.urls), directory.path, inode)

    def _hang_up(self) -> None:
        if self._open is not None:
            self._open.line.close()
        self._open = None
