"""How long a step may last, so that no promised gap breaks.

Owns: the margin that is kept for the model's errors, the limit of each step (`gaps`) without the
decodes that sit it out (`pauses`), and what the model learns from steps that were planned here.
Never knows: whose turn it is (`contenders`), how a step is computed.

The margin is kept for the request, not for the gap: a request has tens of gaps and one late gap
breaks its promise, so it is `MARGIN_SIGMAS` times the scatter of the model, at least what the few
slowest steps exceed the prediction by, and at least `policy.itl_margin`. Whatever it is, prompts
have half of what the least one would leave them: else the first tokens would pay for the gaps.

A step whose decodes alone break a gap is counted as infeasible.
"""

from dataclasses import dataclass

from core.clock import NS_PER_MS
from core.policy.base import DecodeBatch, Prediction, Step
from core.policy.calibration import CostModels
from core.policy.cost_model import StepWork
from core.policy.limits import Limits
from core.policy.pacing.gaps import UNLIMITED_NS, Gaps, decode_work
from core.policy.pacing.pauses import Pauses, is_light
from core.policy.pacing.step_budget import StepBudget
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings

MARGIN_SIGMAS = 4.0
MARGIN_MAX = 1.0  # of the predicted time: steps are planned for half of a gap
STEPS_KEPT = 4  # of a replica, until their results come


@dataclass(slots=True)
class _Opened:
    """A step that was planned and not measured yet."""

    budget: StepBudget
    begin_ns: int


class Pace:
    """The pace of all replicas."""

    def __init__(self, settings: PolicySettings, models: CostModels, flows: Flows) -> None:
        """Without a model for a replica its steps are bounded by tokens alone."""
        self._settings = settings
        self._models = models
        self._pauses = Pauses(settings.limits, flows)
        self._opened: dict[int, dict[int, _Opened]] = {}  # by replica, by step number
        self._num_infeasible: dict[int, int] = {}
        self._delivery_ns = settings.tuning.delivery_ms * NS_PER_MS

    def configure(self, limits: Limits) -> None:
        """Take over which classes may be paused."""
        self._pauses.configure(limits)

    def open(self, step: Step, decodes: DecodeBatch) -> StepBudget:
        """Return what `step` takes besides its `decodes`; some may be deferred here."""
        model = self._models.of(step.replica)
        if model is None:
            return StepBudget(step, None, StepWork(), UNLIMITED_NS, self._settings)
        opened = self._opened.setdefault(step.replica, {})
        opened.pop(step.number, None)
        begin_ns = max([step.now_ns, *(_end_ns(each) for each in opened.values())])
        gaps = Gaps(decodes, begin_ns, self._delivery_ns, self.margin(step.replica))
        work, tightest_ns = decode_work(decodes), gaps.tightest_ns()
        decodes_ns, limit_ns = model.duration_ns(work), gaps.limit_ns(tightest_ns)
        if not is_light(model, decodes_ns, limit_ns):
            kept = self._pauses.kept(step, model, gaps, work)
            if not kept.all():
                step.defer(~kept)
                work, tightest_ns = decode_work(decodes, kept), gaps.tightest_ns(kept)
                decodes_ns, limit_ns = model.duration_ns(work), gaps.limit_ns(tightest_ns)
        widest_ns = gaps.limit_ns(tightest_ns, self._settings.tuning.itl_margin)
        limit_ns = max(limit_ns, (decodes_ns + widest_ns) // 2)
        is_feasible = decodes_ns <= tightest_ns
        if not is_feasible:
            self._num_infeasible[step.replica] = self._num_infeasible.get(step.replica, 0) + 1
        budget = StepBudget(step, model, work, limit_ns, self._settings, is_feasible=is_feasible)
        opened[step.number] = _Opened(budget, begin_ns)
        while len(opened) > STEPS_KEPT:
            opened.pop(next(iter(opened)))
        return budget

    def measured(self, replica: int, step: int, duration_ns: int) -> None:
        """Let the replica's model learn from a step."""
        opened = self._opened.get(replica, {}).pop(step, None)
        model = self._models.calibrated(replica)
        if opened is not None and model is not None:
            model.measured(opened.budget.work, duration_ns)

    def lose(self, replica: int) -> None:
        """Forget the plans of a replica that has lost them."""
        self._opened.pop(replica, None)

    def margin(self, replica: int) -> float:
        """Return the share of a step's predicted time that is kept free for the model's error."""
        model, least = self._models.calibrated(replica), self._settings.tuning.itl_margin
        if model is None:
            return least
        return max(least, min(max(MARGIN_SIGMAS * model.sigma, model.tail), MARGIN_MAX))

    def prediction(self, replica: int) -> Prediction | None:
        """Return how well steps are predicted, None if they are not."""
        num_infeasible = self._num_infeasible.get(replica, 0)
        opened = self._opened.get(replica, {}).values()
        expected_ns = max((each.budget.predicted_ns() for each in opened), default=0)
        if (model := self._models.calibrated(replica)) is not None:
            alone, mixed = model.decode_only, model.mixed
            return Prediction(
                (alone.factor, mixed.factor),
                (alone.sigma, mixed.sigma),
                num_infeasible,
                model.predicted_ns,
                model.measured_ns,
                expected_ns,
            )
        if self._models.of(replica) is None:
            return None
        return Prediction((1.0, 1.0), (0.0, 0.0), num_infeasible, expected_ns=expected_ns)


def _end_ns(opened: _Opened) -> int:
    return opened.begin_ns + opened.budget.predicted_ns()
