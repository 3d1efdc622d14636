"""Serving by a plan that was made with the whole future known: what any order could reach.

Owns: following the plan. Never knows: how it was made (`core.simulation.clairvoyant`). Steps are
bounded by the promised gaps, as those of `gap-edf`; who is not in the plan is refused at arrival,
and who turns out late is refused when it is next.
"""

from collections.abc import Mapping

from core.errors import Rejection, RejectionReason
from core.policy.baselines.edf import StrictGapEdfPolicy
from core.policy.cost_model import CostModel
from core.policy.queues.place_queue import Place
from core.policy.settings import PolicySettings
from core.request import Request


class ClairvoyantPolicy(StrictGapEdfPolicy):
    """`plan` says for the requests worth serving, by id, in which order: smallest first."""

    def __init__(
        self,
        settings: PolicySettings,
        model: CostModel,
        plan: Mapping[int, int],
        *,
        margin: float = 0.0,
    ) -> None:
        """Start with nobody waiting."""
        super().__init__(settings, model, margin=margin)
        self._plan = plan

    def refusal(self, request: Request, now_ns: int) -> Rejection | None:
        """Refuse a request that is not in the plan."""
        if request.request_id in self._plan:
            return None
        return Rejection(RejectionReason.SHED_PREDICTED)

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return (place in the plan, arrival number)."""
        return (self._plan[request.request_id], request.order)
