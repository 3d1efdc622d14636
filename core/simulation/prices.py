"""What the promises cost, and how sure the policy was of them.

Owns: the definition of these figures. Never knows: how a history came about. A promise is paid for
with step tokens that it leaves unused while somebody waits, with requests that are refused early
for it, and, where it is of memory, with tokens that are computed again.
"""

from dataclasses import dataclass

import numpy as np

from core.errors import RejectionReason
from core.policy.base import Blocked
from core.simulation.history import History
from core.simulation.metrics import Mask, RequestTimes
from core.tenancy.classes import TrafficClass

ITL_REASONS = (Blocked.ITL,)
RESERVE_REASONS = (Blocked.RESERVE, Blocked.CLASS_CAP)
MEMORY_REASONS = (Blocked.MEMORY, Blocked.HEADROOM, Blocked.CLAIM)
SHEDS = (RejectionReason.SHED_INFEASIBLE, RejectionReason.SHED_PREDICTED)


@dataclass(frozen=True, slots=True)
class Protected:
    """Requests whose first token the policy was sure of at their arrival."""

    num_requests: int
    num_missed: int

    @property
    def miss_share(self) -> float:
        """The share whose first token was late or never came."""
        return self.num_missed / max(1, self.num_requests)


def protected(history: History, times: RequestTimes, chosen: Mask) -> Protected:
    """Return how many of the `chosen` requests were protected, and how many of these missed."""
    mask = chosen & history.protected
    return Protected(int(np.count_nonzero(mask)), int(np.count_nonzero(mask & ~times.on_time)))


@dataclass(frozen=True, slots=True)
class Prices:
    """What the promises cost, as shares of all computed tokens, and refusals by class."""

    gaps: float  # left unused so that no promised gap breaks
    reserves: float  # left unused because it is reserved for another class, or above a class's cap
    memory: float  # left unused because of the blocks that growth, claims and reserves keep free
    recomputed: float
    sheds: dict[str, int]  # refused early, by class


def prices(history: History) -> Prices:
    """Return the price of each promise over the whole run."""
    computed = max(1, history.computed_tokens)
    shed = np.isin(history.reason, SHEDS)
    classes = np.bincount(history.workload.traffic_class[shed], minlength=len(TrafficClass))

    def unused(reasons: tuple[Blocked, ...]) -> float:
        return sum(history.leftovers.get(reason, 0) for reason in reasons) / computed

    return Prices(
        gaps=unused(ITL_REASONS),
        reserves=unused(RESERVE_REASONS),
        memory=unused(MEMORY_REASONS),
        recomputed=history.recomputed_tokens / computed,
        sheds={each.label: int(classes[each]) for each in TrafficClass if classes[each]},
    )
