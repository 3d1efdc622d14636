"""What a flow makes up for when it comes back.

Owns: what each flow that rests was behind when its rest began, and the rule. Never knows: charges,
who waits.

While a flow decodes, or its client sends the next request, others are served what it was due. It
makes up for that: a client with one request at a time would never get its share otherwise. A rest
in which it was due more than a window is none of that.

    something of it runs                         what it is behind now
    it rests, and was due a window at the most   the same
    it rests for longer                          what it was behind when its rest began
    its class was level meanwhile                nothing: nobody owes what nobody else wanted

and never more than KEPT_WINDOWS windows. These are windows of its own service, whatever it weighs:
in virtual service, the lighter a tenant is, the more they are. So a weight that is set for somebody
else changes nothing here.
"""

from typing import NamedTuple

import numpy as np

from core.policy.queues.fair_queue import FairTable, Mask
from core.tenancy.classes import NUM_CLASSES

KEPT_WINDOWS = 4  # of a flow's own service


class Rest(NamedTuple):
    """How things stood when the last request of a flow left its row."""

    behind: int  # in units of its own service
    virtual_time: int  # V of its class
    num_levels: int  # how often its class had been level


class Rests:
    """Those of all flows, beside the table in which they are tenants of classes."""

    def __init__(self, tenants: FairTable) -> None:
        """Start with nobody resting."""
        self._tenants = tenants
        self._rests: dict[int, Rest] = {}  # by flow
        self._num_levels = np.zeros(NUM_CLASSES, np.int64)

    def begin(self, flow: int, window: int) -> None:
        """Take in that nothing of a flow runs any more."""
        traffic_class = flow % NUM_CLASSES
        self._rests[flow] = Rest(
            self._behind(flow, window),
            self._tenants.virtual_time(traffic_class),
            int(self._num_levels[traffic_class]),
        )

    def end(self, flow: int) -> None:
        """Take in that a flow has come back."""
        self._rests.pop(flow, None)

    def were_level(self, classes: Mask) -> None:
        """Take in which classes, bool[classes], had nobody who wanted more."""
        self._num_levels += classes

    def forget(self) -> None:
        """Forget all of them: their unit is another one now."""
        self._rests.clear()

    def kept(self, flow: int, window: int, *, runs: bool) -> int:
        """Return what a flow may be behind if it came back now, in virtual service; `runs`: it has
        something that runs.
        """
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        cost = self._tenants.cost(tenant)
        if runs:
            return self._behind(flow, window) * cost
        rest = self._rests.get(flow)
        if rest is None or rest.num_levels != self._num_levels[traffic_class]:
            return 0
        missed = self._tenants.virtual_time(traffic_class) - rest.virtual_time
        return cost * (self._behind(flow, window) if missed <= window * cost else rest.behind)

    def _behind(self, flow: int, window: int) -> int:
        """Return what a flow is behind now, up to the most that it may keep, in units of its own
        service.
        """
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        behind = -self._tenants.lag(tenant, traffic_class) // self._tenants.cost(tenant)
        return max(0, min(behind, KEPT_WINDOWS * window))
