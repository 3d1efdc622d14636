"""Fair sharing between siblings: how much each was served for its weight, and who may go on.

Owns: virtual service. Never knows: requests, deadlines, what a unit of charge is. Start-time fair
queueing (Goyal et al., SIGCOMM'96) with a window: every child within `window` of the least served
one may be chosen, for reasons of urgency or locality, and no other.

    v     virtual service of a child: charged / weight, plus lifts
    V     that of the parent: the least v among children with work; it never falls
    wake  v ← max(v, V): idling saves nothing up; debt stays

For two children with work all the time: |Δv_f − Δv_g| ≤ 2·window + the largest charges of both,
divided by their weights.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
SCALE = 1024  # of virtual service to charge, for weight 1
REBASE = 1 << 61


class FairQueue:
    """The children of one parent, by index; their number grows as they appear."""

    def __init__(self) -> None:
        """Start without children."""
        self.virtual = np.zeros(0, np.int64)
        self.backlogged = np.zeros(0, np.bool_)
        self.floor = 0  # V
        self._cost = np.zeros(0, np.int64)  # of one unit of charge, in virtual service

    def __len__(self) -> int:
        """Return the number of children."""
        return len(self.virtual)

    def resize(self, weights: Sequence[float]) -> None:
        """Set all weights, those of new children at the end; debts keep their time to pay."""
        largest = max(weights)
        cost = np.array([round(SCALE * largest / weight) for weight in weights], np.int64)
        known = len(self.virtual)
        debt = self.virtual - self.floor
        debt = debt * cost[:known] // np.maximum(self._cost, 1)
        self.virtual = np.full(len(weights), self.floor, np.int64)
        self.virtual[:known] += debt
        self.backlogged = np.concatenate([self.backlogged, np.zeros(len(weights) - known, bool)])
        self._cost = cost

    def wake(self, child: int) -> None:
        """`child` has work from now on."""
        if not self.backlogged[child]:
            self.backlogged[child] = True
            self.virtual[child] = max(self.virtual[child], self.floor)

    def sleep(self, child: int) -> None:
        """`child` has no work any more."""
        self.backlogged[child] = False

    def charge(self, child: int, amount: int) -> None:
        """Charge `amount` to `child`; a negative one is a refund."""
        self.virtual[child] += amount * self._cost[child]

    def charge_all(self, amounts: npt.NDArray[np.int64]) -> None:
        """Charge each child its entry of `amounts`, int64[n]."""
        self.virtual[: len(amounts)] += amounts * self._cost[: len(amounts)]

    def advance(self, serviceable: Mask) -> None:
        """Let V follow the least served of the `serviceable` children with work."""
        served = self.virtual[serviceable & self.backlogged]
        if len(served):
            self.floor = max(self.floor, int(served.min()))

    def eligible(self, serviceable: Mask, window: int) -> Mask:
        """Return which `serviceable` children with work are within `window` units of V."""
        limit = self.floor + window * SCALE
        within: Mask = serviceable & self.backlogged & (self.virtual <= limit)
        return within
