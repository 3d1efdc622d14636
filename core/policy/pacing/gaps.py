"""How long a step may last for each decode with a promised gap, and for all of them.

Owns: slack, and the time limit that follows. Never knows: what else is in the step, which decodes
sit it out.

    slack(r)  = last token(r) + cap(r) − way(r) − begin  for each decode with a promised gap
    limit     = min over the decodes in the step of slack(r) / (1 + margin)

The promise is a cap on every gap, so slack is counted from the token that was delivered last. If a
step ends within the slack of each decode in it no gap is late, whatever happened before: a late
step costs that one gap and nothing afterwards. Counting along a schedule instead (first token +
cap · tokens so far) fails on both sides. It banks the time of short steps, and a decode that has
sat out a step would spend it in one gap above the cap; and after a late step it takes the next
gaps, which can be kept, for lost. Time left of the promised first token is not banked either.

A client sees tokens later than the step that made them ends, by a time that varies, and a step
begins later than it is planned. `policy.delivery_ms` of each gap is kept for both ways, and no more
than a tenth of it.
"""

import numpy as np
import numpy.typing as npt

from core.policy.base import DecodeBatch
from core.policy.cost_model import StepWork

UNLIMITED_NS = 1 << 62
DELIVERY_PART = 10  # of a promised gap is kept for the way of its token at the most

Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]


class Gaps:
    """The decodes that a step could have, and the slack of each."""

    def __init__(
        self, decodes: DecodeBatch, begin_ns: int, delivery_ns: int, margin: float
    ) -> None:
        """Let the step begin at `begin_ns`; `margin` is the share of its predicted time that is
        kept free for the model's error.
        """
        self.decodes = decodes
        self.begin_ns = begin_ns
        self.slack_ns = _slack_ns(decodes, begin_ns, delivery_ns)
        """How long it may last for each, int64[n]; above UNLIMITED_NS / 2: as long as it likes."""
        self._margin = margin

    def tightest_ns(self, among: Mask | None = None) -> int:
        """Return how long the step may last for those `among` the decodes, bool[n], or for all."""
        if among is None:
            return int(np.minimum.reduce(self.slack_ns, initial=UNLIMITED_NS))
        return int(self.slack_ns.min(where=among, initial=UNLIMITED_NS))

    def limit_ns(self, tightest_ns: int, margin: float | None = None) -> int:
        """Return how long the step may be predicted to last, so that it lasts no longer than told,
        with another `margin` than usual if one is given; UNLIMITED_NS: as long as it likes.
        """
        if is_unlimited(tightest_ns):
            return UNLIMITED_NS
        kept = self._margin if margin is None else margin
        return int(tightest_ns / (1 + kept))


def is_unlimited(time_ns: int) -> bool:
    """Tell whether a slack is that of a decode without a promised gap."""
    return time_ns > UNLIMITED_NS // 2


def decode_work(decodes: DecodeBatch, kept: Mask | None = None) -> StepWork:
    """Return the sums of the decodes in `kept`, bool[n], or of all."""
    contexts = decodes.context_tokens if kept is None else decodes.context_tokens[kept]
    count = len(contexts)
    return StepWork(0, 0, 0.0, count, int(np.add.reduce(contexts)), count)


def _slack_ns(decodes: DecodeBatch, begin_ns: int, delivery_ns: int) -> Times:
    """Return how long a step that begins then may last for each decode, int64[n]; without a cap as
    long as it likes, less what it has waited.
    """
    waited = begin_ns - decodes.last_token_ns
    np.maximum(waited, 0, out=waited)
    waited[decodes.last_token_ns == 0] = 0
    slack: Times = decodes.itl_cap_ns - waited
    slack -= np.minimum(decodes.itl_cap_ns // DELIVERY_PART, delivery_ns)
    slack[decodes.itl_cap_ns == 0] += UNLIMITED_NS
    return slack
