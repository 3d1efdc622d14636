"""Fair sharing between siblings: how much each was served for its weight, and who may go on.

Owns: virtual service. Never knows: requests, deadlines, what a unit of charge is. Start-time fair
queueing (Goyal et al., SIGCOMM'96) with a window, as the eligible set of EEVDF (Stoica et al.,
1995): every child within `window` of the least served one that could use more may be chosen, for
reasons of urgency or locality, and no other.

    v        virtual service of a child: charged / weight, plus lifts
    V        that of its parent: the least v among children that could use more; it never falls
    wake     v ← max(v, V − kept): idling saves nothing up; debt stays, and so does, within a
             limit, what a child fell behind while what it had running could not use more
    level    if no child could use more, V ← the largest v of those that run, and they are there
             too: what nobody else wanted makes no debt (SFQ does so at the end of a busy period)
    charge   v ← v + charge / weight, the heaviest child's weight being 1

For two children that could use more all the time: |Δv_f − Δv_g| ≤ 2·window + the largest charges of
both, divided by their weights. A window is a time of service of the heaviest child.

Virtual service is counted in 1/PRECISION of a unit. `FairQueue` is one parent with few children;
`FairTable` is many groups of many children side by side, the same in int64. Its range suffices: V
is taken back to 0 before it passes 2^61, and no child is further than MAX_DEBT from it: further
off, the difference counts as that much. What belongs to a group is spread over its column before it
meets the table: numpy is several times slower where it must repeat rows of a few entries.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Charges = npt.NDArray[np.int64]
PRECISION_BITS = 16
PRECISION = 1 << PRECISION_BITS
MAX_DEBT = 1 << 60
REBASE_ABOVE = 1 << 61
FAR = np.iinfo(np.int64).max


class FairQueue:
    """The children of one parent, by index."""

    def __init__(self) -> None:
        """Start without children."""
        self.virtual: list[int] = []  # v
        self.floor = 0  # V
        self._cost: list[int] = []  # of a unit of charge, in virtual service

    def resize(self, weights: Sequence[float]) -> None:
        """Set all weights, those of new children at the end; debts keep their time to pay."""
        heaviest = max(weights)
        cost = [round(PRECISION * (heaviest / weight)) for weight in weights]
        for child, (old, new) in enumerate(zip(self._cost, cost, strict=False)):
            self.virtual[child] = self.floor + self.lag(child) * new // old
        self.virtual += [self.floor] * (len(cost) - len(self.virtual))
        self._cost = cost

    def wake(self, child: int) -> None:
        """`child` has something to be served again."""
        self.virtual[child] = max(self.virtual[child], self.floor)

    def charge(self, child: int, amount: int) -> None:
        """Charge `amount` to `child`; a negative one is a refund."""
        self.virtual[child] += amount * self._cost[child]

    def advance(self, serviceable: Iterable[int]) -> None:
        """Let V follow the least served of the children that could use more."""
        least = min((self.virtual[child] for child in serviceable), default=self.floor)
        self.floor = max(self.floor, least)

    def is_within(self, child: int, window: int) -> bool:
        """Tell whether a child is within `window` units of V."""
        return self.lag(child) <= window * PRECISION

    def within(self, window: int) -> list[int]:
        """Return the children within `window` units of V."""
        most = self.floor + window * PRECISION
        return [child for child, virtual in enumerate(self.virtual) if virtual <= most]

    def lag(self, child: int) -> int:
        """Return v − V of a child, in 1/PRECISION units; above 0 it is ahead of the others."""
        return self.virtual[child] - self.floor

    def rescale(self, factor: float) -> None:
        """Go over to another unit of charge, `factor` of which make an old one."""
        self.virtual = [self.floor + round((v - self.floor) * factor) for v in self.virtual]


class FairTable:
    """Groups of siblings: arrays [children, groups]; a child weighs the same in all groups."""

    def __init__(self, num_groups: int) -> None:
        """Start without children; their number grows as they appear."""
        self.virtual: Charges = np.zeros((0, num_groups), np.int64)  # v
        self.floor: Charges = np.zeros(num_groups, np.int64)  # V
        self._least: Charges = np.zeros(num_groups, np.int64)  # v of those that could use more
        self._rebased = [0] * num_groups
        self._cost: Charges = np.zeros((0, 1), np.int64)  # of a unit of charge, in virtual service
        self._groups = np.arange(num_groups)
        self._group_of = np.zeros((0, num_groups), np.int64)  # of each entry of the table
        self._costs: Charges = np.zeros((0, num_groups), np.int64)  # `_cost` in all groups
        self._dearest = PRECISION
        self._most_added = 0  # to any child since the range was looked at

    def resize(self, weights: Sequence[float]) -> None:
        """Set all weights, those of new children at the end; debts keep their time to pay."""
        relative = max(weights) / np.asarray(weights, np.float64)
        cost = np.rint(PRECISION * relative).astype(np.int64)[:, None]
        known, before = len(self.virtual), self._cost
        debt = self.virtual - self.floor
        changed = cost[:known] != before
        if changed.any():
            debt = np.where(changed, _scaled(debt, cost[:known] / np.maximum(before, 1)), debt)
        added = np.zeros((len(weights) - known, len(self.floor)), np.int64)
        self.virtual = np.concatenate([debt, added]) + self.floor
        self._cost = cost
        self._dearest = int(cost.max())
        self._costs = np.repeat(cost, len(self.floor), axis=1)
        self._group_of = np.tile(self._groups, (len(weights), 1))

    def wake(self, child: int, group: int, kept: int = 0) -> None:
        """`child` has something to be served again; of what it is behind it keeps `kept`."""
        least = int(self.floor[group]) - kept
        self.virtual[child, group] = max(int(self.virtual[child, group]), least)

    def level_child(self, child: int) -> None:
        """Let a child be neither ahead nor behind in any group: it is another one now."""
        self.virtual[child] = self.floor

    def charge(self, child: int, group: int, amount: int) -> None:
        """Charge `amount` to `child`; a negative one is a refund."""
        floor = int(self.floor[group])
        virtual = int(self.virtual[child, group]) + amount * int(self._cost[child, 0])
        self.virtual[child, group] = min(max(virtual, floor - MAX_DEBT), floor + MAX_DEBT)

    def charge_all(self, amounts: Charges, total: int) -> None:
        """Charge every child its entry of `amounts` ≥ 0, int64[children, groups]; `total` is more
        than any of them.
        """
        self._most_added += total * self._dearest
        if self._most_added > MAX_DEBT:
            amounts = np.minimum(amounts, MAX_DEBT // self._cost)
            self.virtual = np.minimum(self.virtual, self.floor + MAX_DEBT)
            self._most_added = 0
        self.virtual += amounts * self._costs

    def advance(self, serviceable: Mask) -> list[int]:
        """Let V follow the least served of the children that could use more, bool as `virtual`;
        return the groups that have any.
        """
        if not len(self.virtual):
            return []
        virtual = np.where(serviceable, self.virtual, FAR)
        least = virtual[virtual.argmin(axis=0), self._groups].tolist()  # faster than a minimum
        groups = [group for group, virtual in enumerate(least) if virtual < FAR]
        for group in groups:
            self._least[group] = least[group]
            if least[group] > self.floor[group]:
                self.floor[group] = least[group]
                if least[group] > REBASE_ABOVE:
                    self._rebase(group)
        return groups

    def level(self, satisfied: Mask) -> None:
        """Let all `satisfied` children, bool as `virtual`, be where the most served of them is.

        It is for groups without a child that could use more.
        """
        most = np.maximum.reduce(np.where(satisfied, self.virtual, -FAR), axis=0)
        self.floor = np.maximum(self.floor, most)
        self.virtual = np.where(satisfied, np.maximum(self.virtual, self.floor), self.virtual)

    def within(self, window: int) -> Mask:
        """Return which children are within `window` units of the least served one that could use
        more, bool[children, groups].
        """
        most = self._least + min(window * PRECISION, MAX_DEBT)
        mask: Mask = self.virtual <= most.take(self._group_of)
        return mask

    def leads(self) -> Charges:
        """Return v − V of all children in whole units, int64[children, groups]."""
        leads: Charges = (self.virtual - self.floor.take(self._group_of)) >> PRECISION_BITS
        return leads

    def is_within(self, child: int, group: int, window: int) -> bool:
        """Tell whether one child is."""
        ahead = int(self.virtual[child, group]) - int(self._least[group])
        return ahead <= min(window * PRECISION, MAX_DEBT)

    def lag(self, child: int, group: int) -> int:
        """Return v − V of a child, in 1/PRECISION units; above 0 it is ahead of the others."""
        return int(self.virtual[child, group]) - int(self.floor[group])

    def cost(self, child: int) -> int:
        """Return the virtual service of a unit of charge to a child: PRECISION or more."""
        return int(self._cost[child, 0])

    def virtual_time(self, group: int) -> int:
        """Return V as if it had never been taken back, in 1/PRECISION units."""
        return self._rebased[group] + int(self.floor[group])

    def rescale(self, factor: float) -> None:
        """Go over to another unit of charge, `factor` of which make an old one."""
        self.virtual = self.floor + _scaled(self.virtual - self.floor, factor)

    def _rebase(self, group: int) -> None:
        floor = int(self.floor[group])
        self._rebased[group] += floor
        debt = np.maximum(self.virtual[:, group], floor - MAX_DEBT) - floor
        self.virtual[:, group] = np.minimum(debt, MAX_DEBT)
        self._least[group] = self.floor[group] = 0


def _scaled(debt: Charges, factor: float | npt.NDArray[np.float64]) -> Charges:
    scaled: Charges = np.clip(np.rint(debt * factor), -MAX_DEBT, MAX_DEBT).astype(np.int64)
    return scaled
