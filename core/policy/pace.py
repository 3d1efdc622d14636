"""How long a step may last, so that no promised gap breaks, and how many prompt tokens that is.

Owns: the time limit of a step, which decodes sit it out, and the margin that is kept for the
model's errors. Never knows: whose turn it is (`contenders`), how a step is computed.

    slack(r)  = last token(r) + cap(r) − way(r) − begin  for each decode with a promised gap
    limit     = min over the decodes in the step of slack(r) / (1 + margin)
    n         = the largest multiple of the tile with predicted(batch + n) ≤ limit

The promise is a cap on every gap, so slack is counted from the token that was delivered last. If a
step ends within the slack of each decode in it no gap is late, whatever happened before: a late
step costs that one gap and nothing afterwards. Counting along a schedule instead (first token +
cap · tokens so far) fails on both sides. It banks the time of short steps, and a decode that has
sat out a step would spend it in one gap above the cap; and after a late step it takes the next
gaps, which can be kept, for lost. Time left of the promised first token is not banked either.

A client sees tokens later than the step that made them ends, by a time that varies, and a step
begins later than it is planned. `policy.delivery_ms` of each gap is kept for both ways, and no more
than a tenth of it.

The margin is kept for the request, not for the gap: a request has tens of gaps and one late gap
breaks its promise, so it is `MARGIN_SIGMAS` times the scatter of the model, at least what the few
slowest steps exceed the prediction by, and at least `policy.itl_margin`.

Decodes of pausable classes may sit a step out (1) if it could not keep the gaps of the others with
them, or (2) if a prompt of a class that cannot be paused would be late at this pace and they take
an eighth of the step or more. One that would itself be late in the step after the next is never
left out; without a cap of its own it counts as capped at `LONGEST_PAUSE_NS`. So none waits longer
than that, plus a step.

A step whose decodes alone break a gap is counted as infeasible. It takes a tile of prompt all the
same: the gap is late already, and prompts would wait for as long as the overload lasts.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS, NS_PER_S
from core.policy.base import Blocked, DecodeBatch, Prediction, Step
from core.policy.calibration import CostModels
from core.policy.cost_model import CostModel, StepWork, largest_chunk
from core.policy.flows import NO_PROMISE_NS, Flows, due_ns
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy import NUM_CLASSES, TrafficClass

MARGIN_SIGMAS = 4.0
MARGIN_MAX = 0.6
LONGEST_PAUSE_NS = 2 * NS_PER_S
UNLIMITED_NS = 1 << 62
PATIENT_NS = UNLIMITED_NS - LONGEST_PAUSE_NS
WORTH_A_PAUSE = 8  # a pause for an urgent prompt gains at least this part of the step
DELIVERY_PART = 10  # of a promised gap is kept for the way of its token at the most
STEPS_KEPT = 4  # of a replica, until their results come

Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Urgent:
    """The prompt that is due first among classes that cannot be paused."""

    due_ns: int
    num_tokens: int  # left to compute
    context: int


class StepBudget:
    """What one step still takes."""

    def __init__(
        self,
        step: Step,
        model: CostModel | None,
        work: StepWork,
        limit_ns: int,
        settings: PolicySettings,
        *,
        is_feasible: bool = True,
    ) -> None:
        """Begin with the decodes, `work`; no `model`: tokens alone count."""
        self.work = work
        self.blocked = Blocked.NOTHING  # why the last answer was less than was left
        self._step = step
        self._model = model
        self._limit_ns = limit_ns
        self._tile = settings.tuning.tile_tokens
        self._quantum = settings.tuning.quantum_tokens
        self._is_feasible = is_feasible

    def most(self, request: Request) -> int:
        """Return how many tokens of `request` fit now, a quantum at the most."""
        remaining = self._step.remaining(request)
        context = request.num_tokens - remaining
        if request.row < 0 and (cached := self._step.hit_tokens(request)):
            context, remaining = cached, max(1, remaining - cached)
        wanted = min(remaining, self._step.tokens_left, self._quantum)
        self.blocked = Blocked.NOTHING if wanted else Blocked.TOKENS
        fitting = self._fitting(context, wanted)
        if fitting < wanted:
            self.blocked = Blocked.ITL
        return fitting

    def spend(self, request: Request, context: int, num_tokens: int) -> None:
        """Take in that `num_tokens` behind `context` tokens of `request` are in the step."""
        if num_tokens:
            ends = context + num_tokens == request.num_tokens
            self.work = self.work.with_prefill(num_tokens, context, ends=ends)

    def predicted_ns(self) -> int:
        """Return how long the step will last, 0 without a model."""
        return 0 if self._model is None else self._model.duration_ns(self.work)

    def longest_ns(self) -> int:
        """Return how long the step can become, 0 without a model."""
        if self._model is None:
            return 0
        full = self.work.with_prefill(self._step.tokens_left, 0)
        return min(self._limit_ns, self._model.duration_ns(full))

    def _fitting(self, context: int, wanted: int) -> int:
        if self._model is None or self._limit_ns == UNLIMITED_NS or not wanted:
            return wanted
        if not self._is_feasible:
            return 0 if self.work.num_prefill_tokens else min(wanted, self._tile)
        return largest_chunk(self._model, self.work, context, wanted, self._limit_ns, self._tile)


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
        self._flows = flows
        self._opened: dict[int, dict[int, _Opened]] = {}  # by replica, by step number
        self._num_infeasible: dict[int, int] = {}
        self._delivery_ns = settings.tuning.delivery_ms * NS_PER_MS
        self._is_pausable = _pausable_classes(settings.limits)

    def configure(self, limits: Limits) -> None:
        """Take over which classes may be paused."""
        self._is_pausable = _pausable_classes(limits)

    def open(self, step: Step, decodes: DecodeBatch) -> StepBudget:
        """Return what `step` takes besides its `decodes`; some may be deferred here."""
        model = self._models.of(step.replica)
        if model is None:
            return StepBudget(step, None, StepWork(), UNLIMITED_NS, self._settings)
        opened = self._opened.setdefault(step.replica, {})
        opened.pop(step.number, None)
        begin_ns = max([step.now_ns, *(_end_ns(each) for each in opened.values())])
        slack, work = slack_ns(decodes, begin_ns, self._delivery_ns), decode_work(decodes)
        tightest_ns = int(np.minimum.reduce(slack, initial=UNLIMITED_NS))
        margin, decodes_ns = self.margin(step.replica), model.duration_ns(work)
        limit_ns = _within(tightest_ns, margin)
        if not _is_light(model, decodes_ns, limit_ns):
            kept = self._kept(step, model, decodes, slack, work, begin_ns)
            if not kept.all():
                step.defer(~kept)
                work = decode_work(decodes, kept)
                tightest_ns = int(slack.min(where=kept, initial=UNLIMITED_NS))
                limit_ns = _within(tightest_ns, margin)
                decodes_ns = model.duration_ns(work)
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

    def _kept(
        self,
        step: Step,
        model: CostModel,
        decodes: DecodeBatch,
        slack: Times,
        work: StepWork,
        begin_ns: int,
    ) -> Mask:
        """Return which decodes are in the step, bool[n]."""
        pausable = self._is_pausable[decodes.traffic_class]
        everyone = np.ones(len(slack), np.bool_)
        tightest_ns = int(slack.min(where=~pausable, initial=UNLIMITED_NS))
        if _is_unlimited(tightest_ns) or not pausable.any():
            return everyone
        all_ns = model.duration_ns(work)
        patience = np.where(slack > UNLIMITED_NS // 2, slack - PATIENT_NS, slack)
        optional = pausable & (patience > 2 * max(tightest_ns, all_ns))
        limit_ns = _within(tightest_ns, self.margin(step.replica))
        if all_ns > limit_ns:
            return _as_many_as_fit(model, decodes, patience, optional, limit_ns)
        gain_ns = all_ns - model.duration_ns(decode_work(decodes, ~optional))
        if gain_ns * WORTH_A_PAUSE < limit_ns:
            return everyone
        urgent = self._urgent(step)
        if urgent is not None and _is_late(model, work, urgent, limit_ns, begin_ns):
            return ~optional
        return everyone

    def _urgent(self, step: Step) -> Urgent | None:
        """Return the prompt that is due first among classes that cannot be paused."""
        prompts = [r for r in step.prefills() if not self._is_pausable[r.traffic_class]]
        if step.may_start_requests:
            due = self._flows.due_ns.reshape(-1, NUM_CLASSES)[:, ~self._is_pausable]
            if due.size and due.min() < NO_PROMISE_NS:
                tenant, column = divmod(int(due.argmin()), due.shape[1])
                traffic_class = int(np.flatnonzero(~self._is_pausable)[column])
                head = self._flows.head(tenant * NUM_CLASSES + traffic_class)
                prompts += [] if head is None else [head]
        first = min(prompts, key=due_ns, default=None)
        if first is None or due_ns(first) >= NO_PROMISE_NS:
            return None
        remaining = step.remaining(first)
        return Urgent(due_ns(first), remaining, first.num_tokens - remaining)


def slack_ns(decodes: DecodeBatch, begin_ns: int, delivery_ns: int) -> Times:
    """Return how long a step that begins then may last for each decode, int64[n]; without a cap as
    long as it likes, less what it has waited.
    """
    waited = begin_ns - decodes.last_token_ns
    np.maximum(waited, 0, out=waited)
    waited[decodes.last_token_ns == 0] = 0
    slack: Times = decodes.itl_cap_ns - waited
    slack -= np.minimum(decodes.itl_cap_ns // DELIVERY_PART, delivery_ns)
    slack[decodes.itl_cap_ns == 0] += UNLIMITED_NS
    return slack


def decode_work(decodes: DecodeBatch, kept: Mask | None = None) -> StepWork:
    """Return the sums of the decodes in `kept`, bool[n], or of all."""
    contexts = decodes.context_tokens if kept is None else decodes.context_tokens[kept]
    count = len(contexts)
    return StepWork(
        num_decodes=count, decode_context=int(np.add.reduce(contexts)), num_outputs=count
    )


def _as_many_as_fit(
    model: CostModel, decodes: DecodeBatch, slack: Times, optional: Mask, limit_ns: int
) -> Mask:
    """Return `optional` decodes, those that waited longest first, as long as the step fits, and all
    others.
    """
    kept = np.logical_not(optional)
    order = np.flatnonzero(optional)
    order = order[np.argsort(slack[order], kind="stable")]
    base = decode_work(decodes, kept)
    contexts = np.concatenate([[0], np.cumsum(decodes.context_tokens[order], dtype=np.int64)])
    low, high = 0, len(order)
    while low < high:
        middle = (low + high + 1) // 2
        count = base.num_decodes + middle
        work = StepWork(
            num_decodes=count,
            decode_context=base.decode_context + int(contexts[middle]),
            num_outputs=count,
        )
        if model.duration_ns(work) <= limit_ns:
            low = middle
        else:
            high = middle - 1
    kept[order[:low]] = True
    return kept


def _is_late(
    model: CostModel, work: StepWork, urgent: Urgent, limit_ns: int, begin_ns: int
) -> bool:
    """Tell whether the urgent prompt is late if steps go on to take as little of it as this one."""
    chunk = largest_chunk(model, work, urgent.context, urgent.num_tokens, limit_ns)
    num_steps = ceil(urgent.num_tokens / max(1, chunk))
    return begin_ns + num_steps * limit_ns > urgent.due_ns


def _is_light(model: CostModel, decodes_ns: int, limit_ns: int) -> bool:
    """Tell whether decodes fit into a step so easily that it is not worth a pause."""
    gain_ns = decodes_ns - model.duration_ns(StepWork())
    return decodes_ns <= limit_ns and gain_ns * WORTH_A_PAUSE < limit_ns


def _is_unlimited(time_ns: int) -> bool:
    return time_ns > UNLIMITED_NS // 2


def _within(slack: int, margin: float) -> int:
    return UNLIMITED_NS if _is_unlimited(slack) else int(slack / (1 + margin))


def _end_ns(opened: _Opened) -> int:
    return opened.begin_ns + opened.budget.predicted_ns()


def _pausable_classes(limits: Limits) -> Mask:
    return np.array([limits.of(each).pausable for each in TrafficClass], np.bool_)
