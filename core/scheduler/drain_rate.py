"""How fast the waiting queue drains, to tell a refused client when to come back.

Owns: an exponentially decaying average of what leaves the queue. Never knows: the queue.
"""

from math import ceil, exp

from core.clock import NS_PER_S
from core.errors import RETRY_AFTER_MS

TIME_CONSTANT_S = 10.0
MIN_RETRY_MS = 100
MAX_RETRY_MS = 60_000


class DrainRate:
    """Tokens per second that leave the queue, averaged over about TIME_CONSTANT_S."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._decayed_tokens = 0.0
        self._updated_ns = 0

    def observe(self, num_tokens: int, now_ns: int) -> None:
        """Take in that a request of `num_tokens` left the queue."""
        self._decayed_tokens = self._decayed_at(now_ns) + num_tokens
        self._updated_ns = max(now_ns, self._updated_ns)

    def tokens_per_s(self, now_ns: int) -> float:
        """Return the present rate."""
        return self._decayed_at(now_ns) / TIME_CONSTANT_S

    def retry_after_ms(self, num_tokens: int, now_ns: int) -> int:
        """Return the time in which about `num_tokens` leave, within sensible bounds, ms."""
        rate = self.tokens_per_s(now_ns)
        if rate < 1.0:
            return RETRY_AFTER_MS
        return min(MAX_RETRY_MS, max(MIN_RETRY_MS, ceil(1000 * num_tokens / rate)))

    def _decayed_at(self, now_ns: int) -> float:
        elapsed_s = max(0, now_ns - self._updated_ns) / NS_PER_S
        return self._decayed_tokens * exp(-elapsed_s / TIME_CONSTANT_S)
