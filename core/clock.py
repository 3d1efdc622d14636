"""Time as numbers: monotonic nanoseconds, and what tells them, as an object that is passed in.

Decisions are given `now_ns`; loops are given a `Clock`: `core.monotonic_clock` in production,
`core.simulation.virtual_clock` in tests and simulations.
"""

from typing import Protocol

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class Clock(Protocol):
    """Anything that tells the monotonic time in nanoseconds."""

    def now_ns(self) -> int:
        """Return the current monotonic time, ns."""
        ...
