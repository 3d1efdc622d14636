"""Whether this process still takes work: one flag, set once, seen by all who must say no."""

import asyncio


class Lifecycle:
    """SERVING until `drain`; then new work is refused and running answers end."""

    def __init__(self) -> None:
        self.is_draining = False
        self._wakeup = asyncio.Event()

    def drain(self) -> None:
        """Begin to leave; called in the loop's own thread."""
        self.is_draining = True
        self._wakeup.set()

    async def wait(self, timeout_s: float) -> None:
        """Sleep for `timeout_s`, or less if `drain` is called."""
        try:
            await asyncio.wait_for(self._wakeup.wait(), timeout_s)
        except TimeoutError:
            return
