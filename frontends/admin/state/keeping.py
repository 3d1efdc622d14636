"""When worker 0 keeps what is worth keeping: at once when the tenant directory has changed, else
about once a second.

Owns: the pace. Never knows: how it is written (`keeper`). Whoever changed something waits for it
to be on disk, so the supervisor rings for us too.
"""

import asyncio
from collections.abc import Callable

from frontends.admin.state.keeper import Keeper, Kept
from frontends.admin.state.usage import counted_to_ns, counters_of
from frontends.boards import Boards
from ipc.directory import DirectorySnapshot
from ipc.doorbell import Doorbell

STATE_BELL = "state"  # as in `core.runtime.wiring`
INTERVAL_S = 1.0


class Keeping:
    """Hands moments to `keeper`."""

    def __init__(
        self,
        keeper: Keeper,
        read_directory: Callable[[], DirectorySnapshot],
        read_boards: Callable[[], Boards],
    ) -> None:
        """Look with these; `start` and `tick` do the work."""
        self._keeper = keeper
        self._read_directory = read_directory
        self._read_boards = read_boards
        self._last_s = 0.0

    @property
    def failures(self) -> int:
        """How often writing has failed since it succeeded last."""
        return self._keeper.failures

    @property
    def kept_ns(self) -> int:
        """Up to which pages the counters are on disk."""
        return self._keeper.kept_ns

    def start(self, bell: Doorbell) -> None:
        """Keep the present state, and from now on what the bell is rung for."""

        def on_bell() -> None:
            bell.clear()
            self.keep()

        asyncio.get_running_loop().add_reader(bell.fileno(), on_bell)
        self.keep()

    def tick(self) -> None:
        """Keep the present state if that was not done for a while."""
        if asyncio.get_running_loop().time() - self._last_s >= INTERVAL_S:
            self.keep()

    def keep(self) -> None:
        """Keep the present state."""
        self._last_s = asyncio.get_running_loop().time()
        self._keeper.keep(self._present())

    def close(self) -> None:
        """Keep the last state, and end within a bound."""
        self._keeper.close(self._present())

    def _present(self) -> Kept:
        directory, boards = self._read_directory(), self._read_boards()
        return Kept(directory, counters_of(boards), counted_to_ns(boards))
