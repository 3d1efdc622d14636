"""A running engine as `headrace ctl` finds it: by its name, with the key to its admin pool.

Owns: what a person is told if it does not run, has a key of its own, or does not answer. Never
knows: which commands exist, or how an answer comes (`ipc.control_client`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.terminal import CommandError, ExitCode
from ipc.control_client import AdminWorkers
from ipc.errors import EngineNotFoundError, FrameError, IpcError, RunDirectoryError
from ipc.messages import ControlReply
from ipc.run_directory import RunDirectory

TOOL = "ctl"


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine and the way to its admin pool."""

    name: str
    workers: AdminWorkers


def find_engine(name: str, environ: Mapping[str, str], base: Path | None = None) -> Engine:
    """Return the engine called `name`; raises CommandError if it does not run.

    The key is HEADRACE_ADMIN_KEY, or the random one that the engine wrote for this user.
    """
    try:
        directory = RunDirectory.find(name, base)
    except EngineNotFoundError as error:
        raise CommandError(str(error), ExitCode.NOT_RUNNING) from error
    except IpcError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    return Engine(name, AdminWorkers.of(directory, admin_key(directory, environ), TOOL))


def admin_key(directory: RunDirectory, environ: Mapping[str, str]) -> str:
    """Return the admin key of an engine; raises CommandError if it is not to be found."""
    given = environ.get("HEADRACE_ADMIN_KEY", "")
    if given:
        return given
    try:
        return directory.read_admin_key()
    except RunDirectoryError as error:
        raise CommandError(
            "this engine has a configured admin key: set HEADRACE_ADMIN_KEY to it"
        ) from error


def call(engine: Engine, command: str, args: Mapping[str, object]) -> ControlReply:
    """Return the first worker's answer; raises CommandError if none answers in time."""
    try:
        reply = engine.workers.call(command, args)
    except FrameError as error:
        raise CommandError(str(error)) from error
    if reply is None:
        count = len(engine.workers.urls)
        raise CommandError(
            f"engine {engine.name!r} runs but none of its {count} admin workers answers"
        )
    return reply
