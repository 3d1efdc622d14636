"""Can a prompt still make its deadline at all?

Owns: the test that needs no prediction of other requests: the machine to itself from now on.
"""

from core.clock import NS_PER_MS
from core.errors import Rejection, RejectionReason
from core.policy.cost_model import CostModel, StepWork
from core.request import Request


def infeasible(request: Request, model: CostModel, now_ns: int) -> Rejection | None:
    """Return why a waiting `request` will miss its deadline even alone, or None."""
    if not request.ttft_deadline_ns:
        return None
    alone_ns = model.duration_ns(StepWork().with_prefill(request.num_tokens, 0))
    left_ns = request.ttft_deadline_ns - now_ns
    if alone_ns <= left_ns:
        return None
    return Rejection(
        RejectionReason.SHED_INFEASIBLE, 0, "", alone_ns / NS_PER_MS, max(0, left_ns) / NS_PER_MS
    )
