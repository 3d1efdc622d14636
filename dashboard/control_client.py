"""Gives control commands to a running engine: the same messages as `headrace ctl`, audited alike.

Owns: what a person is told if there is no answer. Never knows: which commands exist, or how an
answer comes (`ipc.control_client`). It waits, so the app calls it in a thread of its own.
"""

from collections.abc import Mapping
from pathlib import Path

from dashboard.source.base import ControlError, Record
from ipc.control_client import AdminWorkers
from ipc.errors import EngineNotFoundError, FrameError, IpcError
from ipc.run_directory import RunDirectory

TOOL = "top"


class ControlClient:
    """Speaks to the admin pool of the engine called `name`."""

    takes_commands = True

    def __init__(self, name: str, base: Path | None, admin_key: str) -> None:
        """Use `admin_key`, or if it is empty the one that the engine wrote for this user."""
        self._engine_name = name
        self._engine_base = base
        self._admin_key = admin_key

    def call(self, command: str, args: Mapping[str, object]) -> Record:
        """Return the result of a command; raises ControlError."""
        try:
            directory = RunDirectory.find(self._engine_name, self._engine_base)
            key = self._admin_key or directory.read_admin_key()
        except EngineNotFoundError as error:
            raise ControlError(f"engine {self._engine_name!r} is not running") from error
        except IpcError as error:
            raise ControlError(
                "no admin key: set HEADRACE_ADMIN_KEY to the configured one"
            ) from error
        workers = AdminWorkers.of(directory, key, TOOL)
        try:
            reply = workers.call(command, args)
        except FrameError as error:
            raise ControlError(str(error)) from error
        if reply is None:
            raise ControlError(f"none of {len(workers.urls)} admin workers answers")
        if reply.error:
            raise ControlError(reply.error)
        return reply.result
