"""The supervisor's end of the pipe to the janitor: every process is written down, once.

Owns: the pipe. Never knows: what the janitor does with the lines (`core.runtime.janitor`).
"""

import os
from collections.abc import Mapping

from core.runtime.janitor import roster_line


class Roster:
    """Tells the janitor of processes; a janitor that is away loses nothing, it gets all anew."""

    def __init__(self) -> None:
        """Start without a pipe."""
        self._fds: tuple[int, int] | None = None

    def reopen(self, pids: Mapping[str, int]) -> int:
        """Make a new pipe with all `pids` in it and return the janitor's end."""
        self.close()
        self._fds = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for pid in pids.values():
            self.add(pid)
        return self._fds[0]

    def add(self, pid: int) -> None:
        """Write a process down."""
        if self._fds is not None:
            os.write(self._fds[1], roster_line(pid))

    def close(self) -> None:
        """Close the pipe: the janitor takes that as our death."""
        if self._fds is not None:
            for fd in self._fds:
                os.close(fd)
            self._fds = None
