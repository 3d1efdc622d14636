"""Earliest deadline first, with a fixed token budget or with steps no longer than the promised gap.

The deadline is that of the first token. `EdfPolicy` fills whatever budget the step has.
`StrictGapEdfPolicy` asks the cost model how many tokens the decodes in the step can bear, and sheds
the prompt at the head of the queue if, even served next and at that pace, it would be late.
"""

from core.clock import NS_PER_MS
from core.errors import Rejection, RejectionReason
from core.policy.base import Step
from core.policy.baselines.paced_budget import PacedBudget, tightest_gap_ns
from core.policy.baselines.urgency import UrgencyPolicy
from core.policy.cost_model import CostModel
from core.policy.queues.place_queue import Place
from core.policy.settings import PolicySettings
from core.request import Request

NEVER_NS = 1 << 62
DEFAULT_LONGEST_STEP_NS = 400_000_000


class EdfPolicy(UrgencyPolicy):
    """A request without a deadline comes after all that have one, in the order of arrival."""

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return (deadline, arrival time, arrival number)."""
        return (request.ttft_deadline_ns or NEVER_NS, request.arrival_ns, request.order)


class StrictGapEdfPolicy(EdfPolicy):
    """No step is predicted to last longer than 1/(1 + `margin`) of the tightest gap cap in it."""

    def __init__(
        self,
        settings: PolicySettings,
        model: CostModel,
        *,
        margin: float = 0.0,
        longest_step_ns: int = DEFAULT_LONGEST_STEP_NS,
    ) -> None:
        """Use `longest_step_ns` for steps in which nobody was promised a gap."""
        super().__init__(settings)
        self._model = model
        self._margin = margin
        self._longest_step_ns = longest_step_ns
        self._pace: PacedBudget | None = None  # of the step that is being filled

    def budget(self, step: Step) -> PacedBudget:
        """Return the time that the decodes in `step` can bear."""
        decodes = step.decodes()
        limit_ns = tightest_gap_ns(decodes) or self._longest_step_ns
        limit_ns = int(min(limit_ns, self._longest_step_ns) / (1 + self._margin))
        self._pace = PacedBudget(step, decodes, self._model, limit_ns)
        return self._pace

    def next_waiting(self, step: Step) -> Request | None:
        """Return the most urgent waiting prompt, after shedding those that would be late."""
        while (request := super().next_waiting(step)) is not None:
            rejection = self._too_late(request, step.now_ns)
            if rejection is None:
                return request
            step.shed(request, rejection)
        return None

    def _too_late(self, request: Request, now_ns: int) -> Rejection | None:
        if not request.ttft_deadline_ns or request.num_output_tokens or self._pace is None:
            return None
        needed_ns = self._pace.time_for(request.num_tokens)
        left_ns = request.ttft_deadline_ns - now_ns
        if needed_ns <= left_ns:
            return None
        return Rejection(
            RejectionReason.SHED_PREDICTED, 0, "", needed_ns / NS_PER_MS, left_ns / NS_PER_MS
        )
