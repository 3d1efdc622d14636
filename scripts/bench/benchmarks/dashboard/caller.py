"""Who gives control commands ten times a second: for the benchmarks, or as a process of its own.

python -m scripts.bench.benchmarks.dashboard.caller ENGINE

Owns: the pace and the commands. Each command goes over one line that stays open, as from a
dashboard; to start a `ctl` for each would measure the start of an interpreter.
"""

import itertools
import sys
import time
from contextlib import closing

from dashboard.control_client import ControlClient
from dashboard.source.base import ControlError

CALLS_HERTZ = 10.0
CALLS = ("status", "tenants", "requests")


class Caller:
    """Gives control commands that look, one after the other."""

    def __init__(self, name: str) -> None:
        """Ask the engine `name`; somebody must `close` it."""
        self.calls = 0
        self.failures = 0
        self._client = ControlClient(name, None, "")
        self._commands = itertools.cycle(CALLS)

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def call(self) -> None:
        """Give the next one."""
        self.calls += 1
        try:
            self._client.call(next(self._commands), {})
        except ControlError:
            self.failures += 1


def main(name: str) -> None:
    """Call until killed."""
    with closing(Caller(name)) as caller:
        while True:
            begin = time.perf_counter()
            caller.call()
            time.sleep(max(0.0, 1 / CALLS_HERTZ - (time.perf_counter() - begin)))


if __name__ == "__main__":
    main(*sys.argv[1:])
