"""How often a child may be restarted: intensity and period, as Erlang/OTP calls them.

Owns: the restart times of one child and the verdict. Never knows: what a restart is.
"""

from collections import deque
from dataclasses import dataclass, field

BACKOFF_FIRST_NS = 100_000_000
BACKOFF_MAX_NS = 2_000_000_000


@dataclass(slots=True)
class RestartBudget:
    """At most `intensity` restarts within any window of `period_ns`."""

    intensity: int
    period_ns: int
    times_ns: deque[int] = field(default_factory=deque)

    def spend(self, now_ns: int) -> bool:
        """Count one restart; False = it would be one too many and the child is to be given up."""
        self.forget(now_ns)
        if len(self.times_ns) >= self.intensity:
            return False
        self.times_ns.append(now_ns)
        return True

    def backoff_ns(self) -> int:
        """Return how long to wait before the restart just counted: the first is at once, then
        doubling, ns.
        """
        repeats = len(self.times_ns) - 1
        return min(BACKOFF_FIRST_NS << (repeats - 1), BACKOFF_MAX_NS) if repeats > 0 else 0

    def forget(self, now_ns: int) -> None:
        """Drop the restarts that lie before the window."""
        while self.times_ns and self.times_ns[0] <= now_ns - self.period_ns:
            self.times_ns.popleft()

    def forgive(self) -> None:
        """Drop all restarts."""
        self.times_ns.clear()
