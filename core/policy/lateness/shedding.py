"""Refusing early what will be late: a promise that cannot be kept is better broken at once.

Owns: who is refused, when, and in which order; the start times by which requests wait. Never
knows: blocks, rows, clocks, who is exempt (`exemptions`), when the queue is played ahead
(`replays`). Without a cost model nothing is refused.

    when                  who                                              as
    at a step             late even with the machine to itself             SHED_INFEASIBLE
    at a step             first of its flow, and late even if served next  SHED_PREDICTED
    between steps         late in a replay of the queue                    SHED_PREDICTED

A replay refuses in a class once the predicted times to the first token of a tenth of those that
wait are above `policy.shed_enter` of the promise, until they are below `policy.shed_leave`;
protected requests stay. Requests that have begun before are never refused.
"""

import numpy as np

from core.clock import NS_PER_MS, NS_PER_S
from core.drain_rate import QUEUE_SHARE_TO_DRAIN, bounded_retry_ms
from core.errors import Rejection, RejectionReason
from core.policy.base import UNFORESEEN, Blocked, Forecast, Step, WaitingRoom
from core.policy.calibration import CostModels, fastest
from core.policy.cost_model import CostModel, StepWork, alone_ns
from core.policy.fairness.shares import Shares
from core.policy.lateness.arrival_rates import ArrivalRates
from core.policy.lateness.deadlines import LatestStarts
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.fluid_replay import Late, Verdicts
from core.policy.lateness.foresight import Foresight
from core.policy.lateness.length_floor import LengthFloor
from core.policy.lateness.prefill_rate import PrefillRate
from core.policy.lateness.protection import Protection
from core.policy.lateness.replay_input import ReplayInput
from core.policy.lateness.replays import Replays
from core.policy.lateness.under_way import UnderWay
from core.policy.queues.flows import NOBODY_NS, Flows, due_ns
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import NUM_CLASSES

FASTEST = 0.9  # of the time of a prompt alone: steps scatter
REST_NS = NS_PER_S  # without a step, after which nobody knows how long one takes
OWN_LIMITS = frozenset(
    {
        Blocked.ELSEWHERE,
        Blocked.DRAINING,
        Blocked.RESERVE,
        Blocked.CLASS_CAP,
        Blocked.CONCURRENCY,
        Blocked.RATE,
        Blocked.KV_QUOTA,
        Blocked.PAUSED,
        Blocked.INCOMPATIBLE,
    }
)  # what keeps some from more, however fast the machine is


class Shedding:
    """The refusals of one policy."""

    def __init__(
        self,
        settings: PolicySettings,
        flows: Flows,
        shares: Shares,
        models: CostModels,
        exemptions: Exemptions,
    ) -> None:
        """Start with nobody waiting."""
        self._rate = PrefillRate()
        self._floor = LengthFloor()
        self._under_way = UnderWay()
        self.protection = Protection(flows, shares, self._rate, self._under_way)
        self._settings = settings
        self._flows = flows
        self._shares = shares
        self._models = models
        self._exemptions = exemptions
        self._given = ReplayInput(
            flows=flows,
            shares=shares,
            rate=self._rate,
            under_way=self._under_way,
            protection=self.protection,
            exemptions=exemptions,
            floor=self._floor,
        )
        self._replays = Replays(self._given, self.protection)
        self._arrivals = ArrivalRates(exemptions)
        self._foresight = Foresight(self._given, self._arrivals)
        self._room: WaitingRoom | None = None  # as of the last look at the queue
        self._latest = LatestStarts()
        self._worked_ns: dict[int, int] = {}  # by replica: when it had something to compute last
        self._now_ns = 0
        self._waiting_tokens = 0
        self._is_shedding = [False] * NUM_CLASSES

    def start_by_ns(self, request: Request) -> int:
        """Return by when a new request is to start at the present rate, in the order of priorities
        of its flow, and so that nobody who is protected is late; 0 without promise and priorities.
        """
        if not request.ttft_deadline_ns:
            if request.has_begun:
                return 0  # as when it came
            own_ns = due_ns(request)
            placed_ns = self._flows.ordered_due_ns(request, own_ns)
            return 0 if placed_ns == own_ns else placed_ns
        rate = self._rate.fastest()
        needed_ns = request.num_tokens / rate * NS_PER_S if rate else 0.0
        wanted_ns = max(1, request.ttft_deadline_ns - int(self._floor.lead * needed_ns))
        wanted_ns = self._flows.ordered_due_ns(request, wanted_ns)
        return self.protection.place_ns(request, wanted_ns, self._time_of(request))

    def add(self, request: Request) -> None:
        """Take in a waiting request."""
        if not request.has_begun:
            self._arrivals.came(request, self._time_of(request))
        self._waiting_tokens += request.num_tokens
        if request.has_open_promise:
            self.protection.add(request, self._time_of(request))
            if self._exemptions.may_be_refused(request):
                least_ns = self._least_ns(request.num_tokens)
                self._latest.put(request, request.ttft_deadline_ns - least_ns)

    def remove(self, request: Request) -> None:
        """Forget a waiting request."""
        self._waiting_tokens -= request.num_tokens
        if request.has_open_promise:
            self.protection.remove(request)
            self._latest.discard(request)

    def started(self, request: Request) -> None:
        """Count a prompt that is served."""
        if not request.has_begun:
            self._floor.served(request.num_tokens)
            self._given.started(request, self._now_ns)
            self._exemptions.started(request, self._now_ns)

    def forget_tenant(self, index: int) -> None:
        """Let the next tenant of this index have sent nothing."""
        self._arrivals.forget_tenant(index)

    def lose(self, replica: int) -> None:
        """Forget the rate of a replica that was lost."""
        self._rate.lose(replica)
        if not self._rate.total():
            self._replays.stop()
        self._under_way.lose(replica)
        self._exemptions.lose(replica)

    def at_step(self, step: Step) -> None:
        """Refuse what is late for certain, before the step is filled."""
        self._now_ns = now_ns = step.now_ns
        model = self._models.of(step.replica)
        if model is None:
            return
        if not self._rate.of(step.replica):
            self._rate.guess(step.replica, self._modelled_rate(model))
        self._rate.begin(step.replica, now_ns)
        self._under_way.look_at(step)
        for request in self._latest.pop_before(now_ns):
            self._refuse_if_infeasible(step, request)
        if now_ns - self._worked_ns.get(step.replica, -REST_NS) >= REST_NS:
            return  # whoever is next shows how fast steps are now: a slow past locks nobody out
        for flow in self._late_flows(now_ns):
            self._refuse_late_heads(step, flow)

    def filled(self, step: Step, num_tokens: int, short_of: Blocked) -> None:
        """Take in that a step was filled, with `num_tokens` of prompts, and what it was short of:
        where that is a limit of those that wait, it tells nothing of how fast prompts are.
        """
        self._exemptions.filled(step.replica, short_of)
        if num_tokens or step.num_running:
            self._worked_ns[step.replica] = step.now_ns
        if step.replica in self._under_way:
            self._under_way.look_at(step)  # what it started waits no more
        left_some = self._flows.has_waiting() or bool(step.prefills())
        left_some = left_some and short_of not in OWN_LIMITS
        self._rate.planned(step.replica, step.now_ns, num_tokens, left_some=left_some)

    def tend(self, room: WaitingRoom, now_ns: int) -> None:
        """Play a piece of the replay, and refuse whom it has shown to be late."""
        self._room, self._now_ns = room, max(self._now_ns, now_ns)
        now_ns = self._now_ns
        if self._replays.is_under_way:
            verdicts = self._replays.advance(room, now_ns)
            if verdicts is not None:
                self._judge(verdicts)
                self._refuse(room, verdicts, now_ns)
        elif self._wants_replay:
            self._replays.begin(now_ns)

    def forecast(self, request: Request) -> Forecast:
        """Return when a waiting `request` will probably start."""
        if self._room is None or not self._rate.total():
            return UNFORESEEN
        return self._foresight.of(request, self._room, self._now_ns)

    def next_timer_ns(self) -> int | None:
        """Return when the replay wants to go on, or to begin."""
        if self._replays.is_under_way or self._wants_replay:
            return self._replays.next_timer_ns()
        return None

    @property
    def _wants_replay(self) -> bool:
        return self._rate.total() > 0 and len(self.protection.protected) < len(self._latest)

    def _least_ns(self, num_tokens: int) -> int:
        """Return the least time for a prompt, alone on the fastest replica as fast as it has ever
        been; 0 = nobody can tell.
        """
        models = [self._models.of(replica) for replica in self._under_way.replicas]
        size = self._settings.max_num_batched_tokens
        times = [alone_ns(fastest(each), num_tokens, size) for each in models if each is not None]
        return int(FASTEST * min(times, default=0))

    def _modelled_rate(self, model: CostModel) -> float:
        size = self._settings.max_num_batched_tokens
        step_ns = model.duration_ns(StepWork().with_prefill(size, 0))
        return size * NS_PER_S / max(1, step_ns)

    def _time_of(self, request: Request) -> int:
        """Return when `request` begins to wait."""
        return max(self._now_ns, request.arrival_ns)

    def _soonest_ns(self, until_ns: int) -> int:
        """Return when one that stands at `until_ns` in the order can begin, from now."""
        if not self._under_way.has_any():
            return 0
        rate = self._rate
        known = [each for each in self._under_way.replicas if rate.of(each)]
        times = [self._under_way.tokens_of(each, until_ns) / rate.of(each) for each in known]
        return int(min(times, default=0.0) * NS_PER_S)

    def _late_flows(self, now_ns: int) -> list[int]:
        """Return the flows whose heads may be too late to begin in time. They can begin behind the
        prompts under way that are due before them; to leave out later ones twice is enough.
        """
        end_ns, late = NOBODY_NS, list[int]()
        for _ in range(3):
            before_ns, end_ns = end_ns, now_ns + self._soonest_ns(end_ns)
            late = (self._flows.due_ns < end_ns).nonzero()[0].tolist()
            if not late or end_ns in (before_ns, now_ns):
                break  # so it stays
        return late

    def _refuse_if_infeasible(self, step: Step, request: Request) -> None:
        least_ns = self._least_ns(max(1, request.num_tokens - step.hit_tokens(request)))
        left_ns = request.ttft_deadline_ns - step.now_ns
        if least_ns <= left_ns:
            again_ns = max(request.ttft_deadline_ns - least_ns, step.now_ns)
            self._latest.put(request, again_ns)
            return
        hopeless = least_ns > request.ttft_deadline_ns - request.arrival_ns
        retry_ms = 0 if hopeless else self._retry_after_ms(0)
        reason = RejectionReason.SHED_INFEASIBLE
        self._floor.refused(request.num_tokens)
        step.shed(request, _rejection(reason, request, retry_ms, least_ns, left_ns))

    def _refuse_late_heads(self, step: Step, flow: int) -> None:
        """Refuse the heads of a flow that would be late even if they were served next."""
        while (request := self._flows.head(flow)) is not None:
            is_predicted = self._exemptions.may_be_predicted(request, step.now_ns)
            if not request.has_open_promise or not is_predicted:
                return
            num_tokens = request.num_tokens - step.hit_tokens(request)
            own_ns = int(num_tokens / self._rate.fastest() * NS_PER_S)
            needed_ns = self._soonest_ns(due_ns(request)) + own_ns
            left_ns = request.ttft_deadline_ns - step.now_ns
            if needed_ns <= left_ns:
                return
            step.shed(request, self._predicted(request, needed_ns, left_ns))

    def _judge(self, verdicts: Verdicts) -> None:
        """Enter or leave shedding, by class."""
        tuning = self._settings.tuning
        for traffic_class in range(NUM_CLASSES):
            found = verdicts.shares.get(traffic_class)
            worst = float(np.quantile(found, 0.9)) if found else 0.0
            limit = tuning.shed_leave if self._is_shedding[traffic_class] else tuning.shed_enter
            self._is_shedding[traffic_class] = worst > limit

    def _refuse(self, room: WaitingRoom, verdicts: Verdicts, now_ns: int) -> None:
        """Refuse those of classes that shed: the lowest class and the most over-share first."""
        for each in sorted(verdicts.late, key=self._refusal_order):
            request = each.request
            if request in self._latest and self._is_shedding[request.traffic_class]:
                needed_ns, left_ns = each.predicted_ns - now_ns, request.ttft_deadline_ns - now_ns
                room.shed(request, self._predicted(request, needed_ns, left_ns), now_ns)

    def _refusal_order(self, late: Late) -> tuple[int, int]:
        request = late.request
        return (-request.traffic_class, -self._shares.over_share(request.flow))

    def _predicted(self, request: Request, needed_ns: int, left_ns: int) -> Rejection:
        """Count and word a refusal of what would be late behind others."""
        self._floor.refused(request.num_tokens)
        retry_ms = self._retry_after_ms(needed_ns - left_ns)
        return _rejection(RejectionReason.SHED_PREDICTED, request, retry_ms, needed_ns, left_ns)

    def _retry_after_ms(self, late_ns: int) -> int:
        """Return when a like request would have been in time, or the queue is shorter."""
        drain_s = self._waiting_tokens / QUEUE_SHARE_TO_DRAIN / max(1.0, self._rate.total())
        return bounded_retry_ms(max(late_ns // NS_PER_MS, int(1000 * drain_s)))


def _rejection(
    reason: RejectionReason, request: Request, retry_ms: int, needed_ns: int, left_ns: int
) -> Rejection:
    knob = f"classes.{request.traffic_class.label}.ttft_ms"
    left_ms = max(0, left_ns) / NS_PER_MS
    return Rejection(reason, retry_ms, knob, needed_ns / NS_PER_MS, left_ms)
