"""How fast prompts are computed: the rate that replicas reach while prompts wait.

Owns: a moving average of prompt tokens a second, with its scatter, for each replica. Never knows:
why it is what it is. Whatever slows prompts down is in it: the decodes beside them, the promised
gaps, the margin, the noise. A step counts only if it left a prompt behind, or it would tell how
much there was to do, not how much could be done.
"""

from dataclasses import dataclass
from math import exp, sqrt

from core.clock import NS_PER_S

MEMORY_S = 3.0  # that the average looks back
FIRST_WEIGHT_S = 0.5  # that the first guess counts for
DEVIATIONS = 2.0  # of the scatter below the average is the cautious rate
DEVIATION_MAX = 0.4  # of the average


@dataclass(slots=True)
class _Replica:
    tokens_per_s: float
    seen_s: float = FIRST_WEIGHT_S
    variance: float = 0.0
    begun_ns: int = 0  # of the step that is computed
    num_tokens: int = 0  # of prompts in it
    left_some: bool = False


class PrefillRate:
    """The rates of all replicas, tokens a second; 0 = nobody has told or measured one."""

    def __init__(self) -> None:
        """Start with no replica."""
        self._replicas: dict[int, _Replica] = {}

    def guess(self, replica: int, tokens_per_s: float) -> None:
        """Go by `tokens_per_s` until steps were measured; a later guess changes nothing."""
        self._replicas.setdefault(replica, _Replica(tokens_per_s))

    def lose(self, replica: int) -> None:
        """Forget a replica that is gone."""
        self._replicas.pop(replica, None)

    def begin(self, replica: int, now_ns: int) -> None:
        """Take in that the next step is planned: the one before has shown its rate."""
        state = self._replicas.get(replica)
        if state is None or not state.begun_ns:
            return
        elapsed_s = (now_ns - state.begun_ns) / NS_PER_S
        state.begun_ns = 0
        if not state.left_some or elapsed_s <= 0:
            return
        state.seen_s = min(MEMORY_S, state.seen_s + elapsed_s)
        weight = 1 - exp(-elapsed_s / state.seen_s)
        error = state.num_tokens / elapsed_s - state.tokens_per_s
        state.tokens_per_s += weight * error
        state.variance += weight * ((1 - weight) * error**2 - state.variance)

    def planned(self, replica: int, now_ns: int, num_tokens: int, *, left_some: bool) -> None:
        """Take in what a step has of prompts, and whether it left some for the next."""
        state = self._replicas.get(replica)
        if state is not None:
            state.begun_ns, state.num_tokens, state.left_some = now_ns, num_tokens, left_some

    def of(self, replica: int) -> float:
        """Return the rate of a replica."""
        state = self._replicas.get(replica)
        return 0.0 if state is None else state.tokens_per_s

    def fastest(self) -> float:
        """Return the highest rate of a replica."""
        return max((state.tokens_per_s for state in self._replicas.values()), default=0.0)

    def total(self) -> float:
        """Return the rate of all replicas together."""
        return sum(state.tokens_per_s for state in self._replicas.values())

    def cautious(self) -> float:
        """Return a rate of all together that they seldom fall below for long."""
        return sum(_cautious(state) for state in self._replicas.values())


def _cautious(state: _Replica) -> float:
    deviation = min(DEVIATIONS * sqrt(state.variance), DEVIATION_MAX * state.tokens_per_s)
    return state.tokens_per_s - deviation
