"""A clock that only moves when told to.

Never knows: what waits for it. Fits wherever a `core.clock.Clock` is asked for.
"""


class VirtualClock:
    """Time in nanoseconds under the test's or simulator's control."""

    def __init__(self, start_ns: int = 1_000_000_000) -> None:
        """Start at `start_ns`; not 0, which means "never" in stamps."""
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the present time, ns."""
        return self._now_ns

    def advance(self, duration_ns: int) -> int:
        """Move forward by `duration_ns` ≥ 0 and return the new time."""
        assert duration_ns >= 0, duration_ns
        self._now_ns += duration_ns
        return self._now_ns

    def advance_to(self, when_ns: int) -> int:
        """Move forward to `when_ns`, unless it has passed, and return the new time."""
        self._now_ns = max(self._now_ns, when_ns)
        return self._now_ns
