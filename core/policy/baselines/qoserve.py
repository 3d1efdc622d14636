"""The policy of QoServe (ASPLOS'26; earlier called Niyama), for comparison.

Three parts. Dynamic chunking: token j is due at deadline + j·gap, so a request that was early lends
its slack to the prompts of others, up to a largest chunk. Hybrid order: deadline + α·remaining,
between earliest deadline and shortest prompt. Eager relegation: who can no longer make it waits
until nobody else does.
"""

import numpy as np

from core.policy.base import DecodeBatch, Step
from core.policy.baselines.paced_budget import PacedBudget, tightest_gap_ns
from core.policy.baselines.shedding import infeasible
from core.policy.baselines.urgency import Budget, UrgencyPolicy
from core.policy.cost_model import CostModel
from core.policy.queues.place_queue import Place, PlaceQueue
from core.policy.settings import PolicySettings
from core.request import Request

NEVER_NS = 1 << 62
DEFAULT_ALPHA_NS = 1_000_000  # of deadline for each token left
DEFAULT_SHORTEST_STEP_NS = 50_000_000
RELEGATED, IN_TIME = 1, 0


class QoServePolicy(UrgencyPolicy):
    """The largest chunk is the step's token budget."""

    def __init__(
        self, settings: PolicySettings, model: CostModel, *, alpha_ns: int = DEFAULT_ALPHA_NS
    ) -> None:
        """`alpha_ns` is what a remaining token adds to a deadline."""
        super().__init__(settings)
        self._model = model
        self._alpha_ns = alpha_ns
        self._relegated = PlaceQueue(self.place)
        self._now_ns = 0

    def urgency(self, request: Request, remaining: int) -> Place:
        """Return (whether it is too late, deadline + α·remaining, arrival number)."""
        deadline_ns = request.ttft_deadline_ns or NEVER_NS
        late = RELEGATED if remaining and deadline_ns < self._now_ns else IN_TIME
        return (late, deadline_ns + self._alpha_ns * remaining, request.order)

    def place(self, request: Request) -> Place:
        """Return the same without the part that changes with time."""
        deadline_ns = request.ttft_deadline_ns or NEVER_NS
        return (IN_TIME, deadline_ns + self._alpha_ns * request.prompt_len, request.order)

    def remove(self, request: Request) -> None:
        """Forget a waiting `request`."""
        queue = self._relegated if request in self._relegated else self._queue
        queue.remove(request)

    def fill(self, step: Step) -> None:
        """Grant as long as the decodes have slack."""
        self._now_ns = step.now_ns
        super().fill(step)

    def budget(self, step: Step) -> Budget:
        """Return the least slack of a decode in `step`, but no less than the tightest gap."""
        decodes = step.decodes()
        shortest_ns = tightest_gap_ns(decodes) or DEFAULT_SHORTEST_STEP_NS
        limit_ns = max(least_slack_ns(decodes, step.now_ns), shortest_ns)
        return PacedBudget(step, decodes, self._model, limit_ns)

    def next_waiting(self, step: Step) -> Request | None:
        """Return the most urgent waiting prompt; a relegated one only if no other waits."""
        while (request := super().next_waiting(step)) is not None:
            if infeasible(request, self._model, step.now_ns) is None:
                return request
            self._queue.remove(request)
            self._relegated.add(request)
        return next(iter(self._relegated.first(1)), None)

    def check_integrity(self) -> None:
        """Assert that both queues are whole."""
        super().check_integrity()
        self._relegated.check_integrity()


def least_slack_ns(decodes: DecodeBatch, now_ns: int) -> int:
    """Return how long the tightest of `decodes` can wait for its next token, ns.

    One that is late already is beyond help and holds nobody up.
    """
    due_ns = decodes.ttft_deadline_ns + decodes.num_output_tokens * decodes.itl_cap_ns
    promised = (decodes.itl_cap_ns > 0) & (decodes.ttft_deadline_ns > 0)
    due_ns = due_ns[promised & (due_ns > now_ns)]
    return int(np.min(due_ns)) - now_ns if len(due_ns) else NEVER_NS
