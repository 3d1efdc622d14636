"""`dump`: everything that helps to understand a fault from afar, as one document without a prompt.

Owns: what is in it, and that no key, digest or text of a client is. Never knows: who writes it into
a file. It is made from shared memory, the run directory and the audit log alone, and asks processes
for their stacks by a signal whose handler runs even in one that hangs; so it can be made whatever
else is stuck. A process that is stopped (SIGSTOP) has no stacks to tell.
"""

import asyncio
import os
import platform
import signal
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from core.config.headrace import HeadraceConfig
from frontends.admin.audit.lines import last_records
from frontends.admin.redaction import without_secrets
from frontends.boards import Boards, text_of
from ipc.diagnostics import STACKS_SIGNAL, read_log_tail
from ipc.run_directory import RunDirectory

MAX_LOG_LINES = 200
MAX_AUDIT_LINES = 200
STACKS_WAIT_S = 0.1
PACKAGES = ("headrace", "torch", "numpy", "pyzmq", "uvicorn")

Record = dict[str, object]


async def bundle(
    directory: RunDirectory, boards: Boards, config: HeadraceConfig, state: Path
) -> Record:
    """Return the document; the audit log is in `state`."""
    children = ["supervisor", *sorted(boards.heartbeats)]
    stacks = await read_stacks(directory, processes(directory, boards))
    return {
        "versions": {name: version(name) for name in PACKAGES},
        "platform": {"python": platform.python_version(), "system": platform.platform()},
        "config": without_secrets(msgspec.to_builtins(config)),
        "boards": {
            child: {
                "epoch": page.epoch,
                "age_s": boards.age_s(page.written_ns),
                "page": plain(page.record),
            }
            for child, page in boards.pages.items()
        },
        "heartbeats": {
            child: {**msgspec.to_builtins(beat), "age_s": boards.age_s(beat.stamp_ns)}
            for child, beat in boards.heartbeats.items()
        },
        "audit": last_records(state)[-MAX_AUDIT_LINES:],
        "logs": {child: read_log_tail(directory.log(child), MAX_LOG_LINES) for child in children},
        "stacks": stacks,
    }


def processes(directory: RunDirectory, boards: Boards) -> dict[str, int]:
    """Return the pids of the supervisor and of the children that serve: those that have installed
    the handler, for to others the signal is the end.
    """
    page = boards.record("supervisor")
    found = {"supervisor": directory.owner.pid}
    for row in page["children"][: int(page["num_children"])]:
        child, beat = text_of(row["name"]), boards.heartbeats.get(text_of(row["name"]))
        if row["pid"] and beat is not None and beat.epoch == int(row["epoch"]):
            found[child] = int(row["pid"])
    return found


async def read_stacks(directory: RunDirectory, pids: Mapping[str, int]) -> dict[str, str]:
    """Return where the threads of each process are, within a bound."""
    asked = []
    for child, pid in pids.items():
        path = directory.stacks(child)
        with suppress(OSError):
            os.truncate(path, 0)  # only who has such a file has the handler
            send_signal(pid)
            asked.append((child, path))
    await asyncio.sleep(STACKS_WAIT_S)
    return {child: path.read_text(errors="replace") for child, path in asked if path.exists()}


def send_signal(pid: int) -> None:
    """Ask a process for its stacks."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, STACKS_SIGNAL)
    finally:
        os.close(pidfd)


def plain(record: np.void) -> Record:
    """Return a page as JSON-like data; tables end where their count says."""
    names = record.dtype.names or ()
    counts = {name: int(record[f"num_{name}"]) for name in names if f"num_{name}" in names}
    return {
        name: _plain_value(record[name][: counts[name]] if name in counts else record[name])
        for name in names
    }


def _plain_value(value: Any) -> object:
    if isinstance(value, np.void):
        return plain(value)
    if isinstance(value, np.ndarray):
        if value.dtype.names is not None:
            return [plain(row) for row in value]
        value = value.tolist()
        return [text_of(each) if isinstance(each, bytes) else each for each in value]
    return text_of(value) if isinstance(value, bytes) else value.item()
