"""The heads of all flows in a step, in the order in which they are due.

Owns: when the head of each flow is due, and of each class the first among the tenants within their
windows. Never knows: requests, which of the classes is next, what has closed one.

    promised       by when it is due; of flows that had requests refused lately, after all others
    not promised   after what is promised: the least served tenant first, then the least served
                   class
    kept out       of a tenant outside its window, or no head at all

Where it is known before that nothing can start there is no choice to make, and no V to work out:
the order is then only asked for the head that is due first (`any_earliest`).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from core.policy.fairness.shares import Shares
from core.policy.queues.flows import NO_PROMISE_NS, NOBODY_NS
from core.tenancy.classes import NUM_CLASSES

CROWDING_LATER_NS = 1 << 60  # added to due times: after all that are promised, before others
_EACH_CLASS = np.arange(NUM_CLASSES)
Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]


class HeadOrder:
    """Those of one step."""

    def __init__(
        self, due_ns: Times, crowding: Mask | None, shares: Shares, most: Sequence[int]
    ) -> None:
        """Take over when heads are due, int64[flows], NOBODY_NS without one; `crowding`,
        bool[flows], go last in their classes, None: nobody does. `most` are the tokens that each
        class may still have, by class: a live view.
        """
        self.first_ns = [NOBODY_NS] * NUM_CLASSES
        """By class: when its first head within the windows is due, ns; without a promise
        NO_PROMISE_NS and by how many units the class is ahead; NOBODY_NS: no turn."""
        self._due_ns = due_ns
        self._crowding = crowding
        self._shares = shares
        self._most = most
        self._serviceable: Mask | None = None  # who could use more when the windows were opened
        self._keys = due_ns.reshape(-1, NUM_CLASSES)  # until they are; then an array of its own
        self._first = [-1] * NUM_CLASSES  # by class: the flow whose head is due first
        self._first_due_ns = [NOBODY_NS] * NUM_CLASSES  # and when

    def open_windows(self) -> None:
        """Work out V, and the due times of the heads that are within the window of their tenant."""
        if self._serviceable is None:
            self._serviceable = self.with_head()
        if not self._shares.advance(self._serviceable):
            return
        keys = self._due_ns
        unpromised = (keys >= NO_PROMISE_NS) & (keys < NOBODY_NS)
        if len(unpromised.nonzero()[0]):
            keys = np.where(unpromised, NO_PROMISE_NS + self._shares.leads(), keys)
        if self._crowding is not None:
            later = self._crowding & (keys < NO_PROMISE_NS)
            keys = np.where(later, keys + CROWDING_LATER_NS, keys)
        keys = keys.reshape(-1, NUM_CLASSES)
        self._keys = np.where(self._shares.tenants_within(), keys, NOBODY_NS)
        first = self._keys.argmin(axis=0)
        keys_ns = self._keys[first, _EACH_CLASS].tolist()
        for traffic_class, tenant in enumerate(first.tolist()):
            self._note_first(traffic_class, tenant, keys_ns[traffic_class])

    def put_last(self, classes: Iterable[int]) -> bool:
        """Let `classes` hold nobody back, as long as others can use the step; tell whether any can.

        It opens the windows anew, before anything is granted.
        """
        others = self.with_head(but=classes)
        if not len(others.nonzero()[0]):
            return False
        self._serviceable = others
        self.open_windows()
        return True

    def earliest(self, classes: Iterable[int]) -> int:
        """Return the flow of `classes`, within caps and windows, whose head is due first, or -1."""
        earliest = (NOBODY_NS, NOBODY_NS, -1)
        for c in classes:
            if self.first_ns[c] < NOBODY_NS and self._most[c] > 0:
                earliest = min(earliest, (self.first_ns[c], self._first_due_ns[c], self._first[c]))
        return earliest[2]

    def any_earliest(self) -> int:
        """Return the flow whose head is due first, within its window or not, or -1."""
        if not len(self._due_ns):
            return -1
        flow = int(self._due_ns.argmin())
        return flow if self._due_ns[flow] < NOBODY_NS else -1

    def with_head(self, but: Iterable[int] = ()) -> Mask:
        """Return which flows have a head, those of the classes `but` left out, bool[flows]."""
        with_head: Mask = self._due_ns < NOBODY_NS
        for traffic_class in but:
            with_head[traffic_class::NUM_CLASSES] = False
        return with_head

    def flows_with_head(self, traffic_class: int) -> list[int]:
        """Return the flows of a class that have one."""
        flows = (self._due_ns[traffic_class::NUM_CLASSES] < NOBODY_NS).nonzero()[0]
        return (flows * NUM_CLASSES + traffic_class).tolist()

    def has_head(self, but: Iterable[int] = ()) -> bool:
        """Tell whether any flow has one, those of the classes `but` left out."""
        return len(self.with_head(but).nonzero()[0]) > 0

    def close(self, classes: Sequence[int]) -> None:
        """Forget the heads of `classes`."""
        for traffic_class in classes:
            self._due_ns[traffic_class::NUM_CLASSES] = NOBODY_NS
            self._keys[:, traffic_class] = NOBODY_NS
            self.first_ns[traffic_class] = NOBODY_NS

    def update(self, flow: int, due_ns: int) -> None:
        """Take in that a flow has another head, or none, or was charged."""
        self._due_ns[flow] = due_ns
        if self._serviceable is None:
            return
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        within = self._shares.is_within(flow)
        keys = self._keys[:, traffic_class]
        keys[tenant] = self._key(flow, due_ns) if within else NOBODY_NS
        first = int(keys.argmin())
        self._note_first(traffic_class, first, int(keys[first]))

    def _key(self, flow: int, due_ns: int) -> int:
        """Return by what the head of `flow` is ordered among tenants of its class."""
        if due_ns < NO_PROMISE_NS:
            is_crowding = self._crowding is not None and self._crowding[flow]
            return due_ns + CROWDING_LATER_NS if is_crowding else due_ns
        return due_ns if due_ns == NOBODY_NS else NO_PROMISE_NS + self._shares.over_share(flow)

    def _note_first(self, traffic_class: int, tenant: int, key_ns: int) -> None:
        """Take in whose head is due first in a class, at `key_ns` in the order of its tenants."""
        flow = self._first[traffic_class] = tenant * NUM_CLASSES + traffic_class
        first_ns = NOBODY_NS
        if key_ns < NOBODY_NS:
            first_ns = self._first_due_ns[traffic_class] = int(self._due_ns[flow])
        if NO_PROMISE_NS <= first_ns < NOBODY_NS:
            first_ns = NO_PROMISE_NS + max(0, self._shares.class_lead(traffic_class))
        self.first_ns[traffic_class] = first_ns
