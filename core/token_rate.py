"""A token rate as times: the arithmetic of a tenant's budget, the same for all who check it.

Owns: GCRA in integer nanoseconds, and when refused clients are asked to come back. Never knows: who
asks, or where the state of a tenant is kept (`hard_limits.budgets`; on the board for others).

The state is one time, the theoretical arrival time (TAT): the bucket is full when it has passed,
and every token debited moves it on by the time in which the rate gives one. A debit conforms if
the TAT stays within the burst from now. GCRA: ITU-T I.371 (2004), annex A.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from core.clock import NS_PER_MS, NS_PER_S

NS_PER_MINUTE = 60 * NS_PER_S
MAX_BURST_NS = 366 * 24 * 60 * NS_PER_MINUTE
MAX_RETRY_MS = 86_400_000
MAX_RETURNS = 256  # remembered for a tenant; clients beyond share the last time
GRACE_NS = 2 * NS_PER_S  # for a client that counts in whole seconds, and its way here
SPACING_NS = NS_PER_MS


class RateSettings(Protocol):
    """The settings of a tenant that its rate comes from."""

    @property
    def tokens_per_minute(self) -> int:
        """The rate; 0 = no budget."""
        ...

    @property
    def burst_tokens(self) -> int:
        """What may be used at once; 0 = what a minute gives."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRate:
    """So many tokens a minute, and at most the burst at once."""

    tokens_per_minute: int
    burst_tokens: int

    @classmethod
    def of(cls, settings: RateSettings) -> "TokenRate | None":
        """Return the rate of a tenant, None if it has no budget."""
        rate = settings.tokens_per_minute
        return cls(rate, settings.burst_tokens or rate) if rate else None

    @property
    def burst_ns(self) -> int:
        """The time in which an empty bucket fills."""
        return min(self.time_ns(self.burst_tokens), MAX_BURST_NS)

    def time_ns(self, num_tokens: int) -> int:
        """Return the time in which the rate gives so many tokens, rounded up."""
        return -(-num_tokens * NS_PER_MINUTE // self.tokens_per_minute)

    def tokens(self, time_ns: int) -> int:
        """Return the tokens that the rate gives in a time, rounded down."""
        return time_ns * self.tokens_per_minute // NS_PER_MINUTE

    def ever_fits(self, num_tokens: int) -> bool:
        """Tell whether a full bucket holds so many tokens."""
        return self.time_ns(num_tokens) <= self.burst_ns

    def ready_ns(self, tat_ns: int, num_tokens: int, now_ns: int) -> int:
        """Return when a debit of so many tokens conforms; it does now if that is not later."""
        return max(tat_ns, now_ns) + self.time_ns(num_tokens) - self.burst_ns

    def tokens_left(self, tat_ns: int, now_ns: int) -> int:
        """Return what conforms now, tokens."""
        return max(0, self.tokens(self.burst_ns - max(0, tat_ns - now_ns)))


@dataclass(frozen=True, slots=True)
class Return:
    """A refused client that was asked to come back then, and the time that its tokens take."""

    due_ns: int
    time_ns: int


class ReturnLine:
    """The refused clients of one tenant, each asked to come back after those before it were served.

    Whoever comes when a return is due takes its place; a return that nobody took in time lapses.
    Clients that come unasked are not held back by it: it spaces, it does not admit.
    """

    def __init__(self) -> None:
        """Start with nobody."""
        self._returns: deque[Return] = deque()

    def join(self, rate: TokenRate, tat_ns: int, num_tokens: int, now_ns: int) -> int:
        """Return in how many ms a refused client is to come back, rounded up."""
        self._lapse(now_ns)
        returns = self._returns
        for entry in returns:
            tat_ns = max(tat_ns, entry.due_ns) + entry.time_ns
        ready_ns = rate.ready_ns(tat_ns, num_tokens, now_ns)
        if returns:
            ready_ns = max(ready_ns, returns[-1].due_ns + SPACING_NS)
        retry_ms = max(1, -(-(ready_ns - now_ns) // NS_PER_MS))
        if len(returns) < MAX_RETURNS:
            returns.append(Return(now_ns + retry_ms * NS_PER_MS, rate.time_ns(num_tokens)))
        else:
            retry_ms = -(-(returns[-1].due_ns - now_ns) // NS_PER_MS)
        return min(MAX_RETRY_MS, max(1, retry_ms))

    def leave(self, now_ns: int) -> None:
        """Take in that a client was let in: the first one whose return is due, if there is one."""
        self._lapse(now_ns)
        if self._returns and self._returns[0].due_ns <= now_ns:
            self._returns.popleft()

    def _lapse(self, now_ns: int) -> None:
        while self._returns and self._returns[0].due_ns + GRACE_NS < now_ns:
            self._returns.popleft()
