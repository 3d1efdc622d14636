"""How much of the growth that is foreseen admission keeps free.

Owns: the share of preempted tokens in the computed ones, in windows, and the factor that follows
it. Never knows: who was preempted. The quantile of each request's length, summed, is more than
their sum will be, so admission that never overcommits leaves memory idle. The factor is moved so
that a small share of work is thrown away, a fifth of what may be: down by a step when nothing is,
up by as many steps as the share is a multiple of that (stochastic approximation: Robbins and Monro,
1951), and by a quarter of itself at once when it is more than may be.

What is called back by choice, not by need, is paid out of a credit that grows by half of what may
be thrown away.
"""

LOWEST, HIGHEST = 0.2, 2.0
STEP = 0.02
RISE = 1.25
AIM = 0.2  # of the limit
WINDOWS_IN_POOL = 8  # a window is as many computed tokens as this part of the pool holds
MIN_WINDOW_TOKENS = 1024
CREDIT = 0.5  # of the limit


class Caution:
    """The part of the foreseen growth that must be free when a request starts."""

    def __init__(self, max_preempted_fraction: float) -> None:
        """Start with all of it."""
        self.factor = 1.0
        self._limit = max_preempted_fraction
        self._num_computed = 0
        self._num_preempted = 0
        self._credit_tokens = 0.0

    @property
    def has_credit(self) -> bool:
        """Whether work may be thrown away without need."""
        return self._credit_tokens >= 0

    def preempted(self, num_tokens: int) -> None:
        """Take in that computed tokens were thrown away."""
        self._num_preempted += num_tokens
        self._credit_tokens -= num_tokens

    def computed(self, num_tokens: int, pool_tokens: int) -> None:
        """Take in a step; the pool holds `pool_tokens`."""
        window = max(MIN_WINDOW_TOKENS, pool_tokens // WINDOWS_IN_POOL)
        credit = self._credit_tokens + CREDIT * self._limit * num_tokens
        self._credit_tokens = min(credit, self._limit * window)
        self._num_computed += num_tokens
        if self._num_computed < window:
            return
        share = self._num_preempted / self._num_computed
        factor = self.factor - STEP
        if share > 0:
            factor += STEP * share / max(AIM * self._limit, 1e-6)
        if share > self._limit:
            factor = max(factor, self.factor * RISE)
        self.factor = min(HIGHEST, max(LOWEST, factor))
        self._num_computed = self._num_preempted = 0
