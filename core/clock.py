"""The one source of time: monotonic nanoseconds, as an object that is passed in.

Owns the reading of the clock for the process loops; decisions never see it, they are given
`now_ns`. CLOCK_MONOTONIC is shared by all processes of a machine, so stamps may be compared between
them.
"""

import time
from typing import Protocol

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Anything that tells the monotonic time in nanoseconds."""

    def now_ns(self) -> int:
        """Return the current monotonic time, ns."""
        ...


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC, ns."""
        return time.monotonic_ns()
