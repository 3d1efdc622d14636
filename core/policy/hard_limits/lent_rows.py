"""Rows that a class has reserved and others run in: kept and taken back when they are wanted.

Owns: for whom a row is kept, and who gives one back. Never knows: memory, or whose turn it is. A
lender waits at most a step: whoever runs in a lent row can be preempted, or it would not run there.
"""

from collections.abc import Mapping

import numpy as np

from core.policy.base import Blocked, Step
from core.policy.hard_limits.start_limits import Reasons
from core.policy.limits import Limits
from core.policy.queues.flows import Flows
from core.tenancy.classes import NUM_CLASSES, TrafficClass


class LentRows:
    """The rows of all replicas."""

    def __init__(self, flows: Flows, max_num_seqs: int) -> None:
        """Look at the queues of `flows`; a replica has `max_num_seqs` rows."""
        self._flows = flows
        self._max_num_seqs = max_num_seqs

    def keep(
        self, step: Step, limits: Limits, reasons: Reasons, owed: Mapping[TrafficClass, int]
    ) -> Reasons:
        """Return `reasons`, int8[flows], with all others kept from the rows that are wanted.

        `owed` are the rows that each class may still claim of its reserve. If none is free at all,
        one is called back.
        """
        num_free = self._max_num_seqs - step.num_running
        if not self._flows.has_waiting() or num_free > sum(owed.values()):
            return reasons
        num_wanted = sum(
            min(num_rows, self._num_ready(each, reasons)) for each, num_rows in owed.items()
        )
        if not num_wanted:
            return reasons
        if not step.may_start_requests:
            self._call_back(step, limits)
        elif num_free > num_wanted:
            return reasons
        others = np.array([each not in owed for each in TrafficClass])
        table = reasons.reshape(-1, NUM_CLASSES)
        kept = np.where((table == Blocked.NOTHING) & others, np.int8(Blocked.RESERVE), table)
        return kept.reshape(-1)

    def _num_ready(self, traffic_class: TrafficClass, reasons: Reasons) -> int:
        """Return how many requests of a class wait for nothing but a row, or memory."""
        of_class = slice(int(traffic_class), None, NUM_CLASSES)
        return int(self._flows.num_waiting[of_class] @ (reasons[of_class] == 0))

    def _call_back(self, step: Step, limits: Limits) -> None:
        """Preempt the youngest borrower, which loses least."""
        borrowers = [r for r in step.running() if limits.of(r.traffic_class).preemptible]
        youngest = max(borrowers, key=lambda request: request.order, default=None)
        if youngest is not None:
            step.preempt(youngest)
