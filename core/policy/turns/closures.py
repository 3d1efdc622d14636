"""Who starts nothing more in a step, and why.

Owns: the reason that keeps each flow and each class out, from before the step or from a head that
was tried in it, and who has the claim on memory to come. Never knows: whose turn it is, prompts
under way, which go on in any case.

    what blocked a head                        closes
    no row, or the replica starts nothing      all classes
    a prompt too many in part, TRIES times     all classes: those behind are as long, or longer
    a limit of its class                       that class
    memory                                     what can neither be dropped for it nor has a reserve
    anything else                              its own flow
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.policy.base import Blocked
from core.policy.turns.step_shares import CLASSES, StepShares
from core.request import Request
from core.tenancy.classes import NUM_CLASSES

OF_ALL = frozenset({Blocked.SEQUENCES, Blocked.DRAINING})
OF_CLASS = frozenset({Blocked.CLASS_CAP, Blocked.RESERVE, Blocked.CLAIM})
CLAIMING = frozenset({Blocked.MEMORY, Blocked.HEADROOM})
TRIES = 4
Reasons = npt.NDArray[np.int8]  # `Blocked` of each flow


class Closures:
    """Those of one step."""

    def __init__(self, shares: StepShares, reasons: Reasons) -> None:
        """Start with `reasons`, int8[flows], which keep flows from starting anything."""
        self.blocked: dict[int, Blocked] = {}  # by flow, in the order of turns
        self._shares = shares
        self._reasons = reasons
        self._has_claim = False
        self._backfilling: list[int] = []  # classes that can be dropped for the claim
        self._flows: set[int] = set()
        self._classes: dict[int, Blocked] = {}  # and why
        self._num_too_long = 0  # heads that do not fit whole when none may be computed in part

    @property
    def has_closed_all(self) -> bool:
        """Whether nothing can start any more."""
        return len(self._classes) == NUM_CLASSES

    def keep_out(self, flow: int) -> bool:
        """Tell whether the head of a flow may not start."""
        is_closed = flow % NUM_CLASSES in self._classes or flow in self._flows
        return is_closed or bool(self._reasons[flow])

    def needs_reserve(self, request: Request) -> bool:
        """Tell whether a waiting `request` may start behind a claim only in reserved memory."""
        return self._has_claim and request.traffic_class not in self._backfilling

    def reason(self, flow: int) -> Blocked:
        """Return what blocked the head of `flow`; NOTHING if it only had no turn, or has come
        since.
        """
        if flow in self.blocked:
            return self.blocked[flow]
        if flow < len(self._reasons) and self._reasons[flow]:
            return Blocked(int(self._reasons[flow]))
        return self._classes.get(flow % NUM_CLASSES, Blocked.NOTHING)

    def add(self, request: Request, blocked: Blocked) -> Sequence[int]:
        """Take in what kept a waiting head from its start; return the classes that this closes."""
        self.blocked[request.flow] = blocked
        self._flows.add(request.flow)
        classes = self._closed_by(int(request.traffic_class), blocked)
        why = Blocked.CLAIM if blocked in CLAIMING else blocked
        self._classes.update(dict.fromkeys(classes, why))
        return classes

    def _closed_by(self, traffic_class: int, blocked: Blocked) -> Sequence[int]:
        if blocked in OF_ALL:
            return CLASSES
        if blocked is Blocked.PARTIAL_PREFILLS:
            self._num_too_long += 1
            return CLASSES if self._num_too_long == TRIES else ()
        if blocked in OF_CLASS:
            return (traffic_class,)
        if blocked in CLAIMING and not self._has_claim:
            return self._give_claim(traffic_class)
        return ()

    def _give_claim(self, traffic_class: int) -> Sequence[int]:
        """Keep memory to come for the first that lacks it; return who starts nothing any more."""
        self._has_claim = True
        self._backfilling = self._shares.can_be_dropped_for(traffic_class)
        go_on = {*self._backfilling, *self._shares.have_memory()} - {traffic_class}
        return [c for c in CLASSES if c not in go_on]
