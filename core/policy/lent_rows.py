"""Rows that a class has reserved and others run in: taking one back when it is wanted.

Owns: who gives its row back. Never knows: how many rows are reserved (`start_limits`), memory. A
lender waits at most a step: whoever runs in a lent row can be preempted, or it would not run there.
"""

from collections.abc import Iterable

import numpy as np

from core.policy.base import Step
from core.policy.flows import NOBODY_NS, Flows
from core.policy.limits import Limits
from core.policy.start_limits import Reasons
from core.request import Request
from core.tenancy import NUM_CLASSES, TrafficClass


def recall_row(
    step: Step,
    flows: Flows,
    limits: Limits,
    reasons: Reasons,
    owed: Iterable[TrafficClass],
) -> Request | None:
    """Preempt one request if no row is free and one of the `owed` classes could use it; return it.

    `reasons`, int8[flows], keep flows from starting. The youngest borrower goes: it loses least.
    """
    if step.may_start_requests:
        return None
    due = np.where(reasons > 0, NOBODY_NS, flows.due_ns).reshape(-1, NUM_CLASSES)
    if not any(due[:, each].min(initial=NOBODY_NS) < NOBODY_NS for each in owed):
        return None
    borrowers = [r for r in step.running() if limits.of(r.traffic_class).preemptible]
    youngest = max(borrowers, key=lambda request: request.order, default=None)
    if youngest is not None:
        step.preempt(youngest)
    return youngest
