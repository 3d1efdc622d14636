"""The janitor: waits for the supervisor's death, kills what is left, removes the run directory.

Owns: nothing while the supervisor lives. Never knows: what the processes are. The supervisor writes
one line (pid, start time) a process into a pipe; its end means that the supervisor is gone. Unlike
the other children it must not die with its parent, so it does not attach as they do.
"""

import os
import select
import signal
import sys
from pathlib import Path

from core.config.file import config_from_json
from core.monotonic_clock import MonotonicClock
from ipc.child import read_setup
from ipc.heartbeat import HeartbeatLine, HeartbeatState
from ipc.owner import owner_of
from ipc.run_directory import RunDirectory
from ipc.segment import Segment

ROSTER = "roster"  # the fd with the lines
KILL_WAIT_MS = 2000


def roster_line(pid: int) -> bytes:
    """Return the line that tells the janitor of a process."""
    owner = owner_of(pid)
    return b"%d %d\n" % (pid, owner.start_ticks) if owner is not None else b""


def hold(line: str) -> int | None:
    """Return a pidfd of the process in a roster line, or None if it is gone."""
    pid, start_ticks = map(int, line.split())
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    owner = owner_of(pid)
    if owner is not None and owner.start_ticks == start_ticks:
        return pidfd
    os.close(pidfd)
    return None


def has_ended(pidfd: int) -> bool:
    """Return whether the process has ended; its pidfd is closed then."""
    if not select.select([pidfd], [], [], 0)[0]:
        return False
    os.close(pidfd)
    return True


def kill(pidfds: list[int]) -> None:
    """End the processes and wait until they are gone."""
    for pidfd in pidfds:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for pidfd in pidfds:
        select.select([pidfd], [], [], KILL_WAIT_MS / 1000)


def main(argv: list[str]) -> int:
    """Run until the supervisor is gone."""
    setup = read_setup(int(argv[1]))
    directory = RunDirectory.attach(Path(setup.run_dir))
    heartbeat_ms = config_from_json(setup.config).supervision.heartbeat_ms
    line = HeartbeatLine(Segment.open(directory.heartbeats), setup.slot)
    line.serve(setup.epoch)
    clock, roster, pending = MonotonicClock(), setup.fds[ROSTER], b""
    pidfds: list[int] = []
    while True:
        line.stamp(HeartbeatState.IDLE, clock.now_ns())
        if not select.select([roster], [], [], heartbeat_ms / 1000)[0]:
            continue
        if not (data := os.read(roster, 65536)):
            break
        *lines, pending = (pending + data).split(b"\n")
        pidfds = [pidfd for pidfd in pidfds if not has_ended(pidfd)]
        pidfds += [pidfd for text in lines if (pidfd := hold(text.decode())) is not None]
    kill(pidfds)
    directory.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
