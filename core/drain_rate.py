"""How fast a queue drains, to tell a refused client when to come back.

Owns: an exponentially decaying average of what leaves a queue, and the bounds of every time that a
client is asked to wait for one. Never knows: the queue.
"""

from math import ceil, exp

from core.clock import NS_PER_S
from core.errors import RETRY_AFTER_MS

TIME_CONSTANT_S = 10.0
MIN_RETRY_MS = 100
MAX_RETRY_MS = 60_000
MAX_NOTED = 64  # departures
QUEUE_SHARE_TO_DRAIN = 10  # a refused client is asked to wait until a tenth of the queue has left


class DrainRate:
    """Tokens per second that leave the queue, averaged over about TIME_CONSTANT_S."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._decayed_tokens = 0.0
        self._updated_ns = 0
        self._noted: list[tuple[int, int]] = []  # tokens that left and when, not in the average yet

    def observe(self, num_tokens: int, now_ns: int) -> None:
        """Take in that a request of `num_tokens` left the queue."""
        self._noted.append((num_tokens, now_ns))
        if len(self._noted) >= MAX_NOTED:
            self._catch_up()

    def tokens_per_s(self, now_ns: int) -> float:
        """Return the present rate."""
        self._catch_up()
        return self._decayed_at(now_ns) / TIME_CONSTANT_S

    def retry_after_ms(self, num_tokens: int, waiting_tokens: int, now_ns: int) -> int:
        """Return when there will probably be room for `num_tokens` in a queue of `waiting_tokens`,
        ms: when so many have left, and no less than a share of the queue.
        """
        rate = self.tokens_per_s(now_ns)
        if rate < 1.0:
            return RETRY_AFTER_MS
        ahead = max(num_tokens, waiting_tokens // QUEUE_SHARE_TO_DRAIN)
        return bounded_retry_ms(ceil(1000 * ahead / rate))

    def _catch_up(self) -> None:
        """Take what was noted into the average: it is asked for far less often than it changes."""
        for num_tokens, now_ns in self._noted:
            self._decayed_tokens = self._decayed_at(now_ns) + num_tokens
            self._updated_ns = max(now_ns, self._updated_ns)
        self._noted.clear()

    def _decayed_at(self, now_ns: int) -> float:
        elapsed_s = max(0, now_ns - self._updated_ns) / NS_PER_S
        return self._decayed_tokens * exp(-elapsed_s / TIME_CONSTANT_S)


def bounded_retry_ms(retry_ms: int) -> int:
    """Return a time to wait that is worth telling a client."""
    return min(MAX_RETRY_MS, max(MIN_RETRY_MS, retry_ms))
