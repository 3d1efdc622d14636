"""Refusing early what will be late: a promise that cannot be kept is better broken at once.

Owns: who is refused, when, and in which order; the start times by which requests wait. Never
knows: blocks, rows, clocks. Without a cost model nothing is refused.

    when                  who                                              as
    at a step             late even with the machine to itself             SHED_INFEASIBLE
    at a step             first of its flow, and late even if served next  SHED_PREDICTED
    between steps         late in a replay of the queue                    SHED_PREDICTED

The replay begins at most once in REPLAY_MIN_NS, unless all that wait are protected, and is played
in pieces. It refuses in a class once
the predicted times to the first token of a tenth of those that wait are above `policy.shed_enter`
of the promise, until they are below `policy.shed_leave`; protected requests stay.

Never refused: classes that are not sheddable, requests that have started before, and by prediction
those of a tenant within a token-rate budget of its own, which is what it was promised, or of a
class with reserved sequences left where others wait for sequences.
"""

from math import exp

import numpy as np

from core.clock import NS_PER_MS, NS_PER_S
from core.errors import Rejection, RejectionReason
from core.policy.base import Blocked, Step, WaitingRoom
from core.policy.calibration import CostModels, fastest
from core.policy.cost_model import CostModel, StepWork
from core.policy.deadlines import LatestStarts
from core.policy.flows import NOBODY_NS, Flows, due_ns
from core.policy.fluid_replay import FlowQueue, FluidReplay, Late, Queued, ReplaySettings
from core.policy.length_floor import LengthFloor
from core.policy.limits import Limits
from core.policy.prefill_rate import PrefillRate
from core.policy.protection import Protection
from core.policy.settings import PolicySettings
from core.policy.shares import Shares
from core.policy.under_way import UnderWay
from core.request import Request
from core.tenancy import NUM_CLASSES, TrafficClass

REPLAY_MIN_NS = 100 * NS_PER_MS
REPLAY_MAX_NS = 1000 * NS_PER_MS
REPLAYS_IN_A_PROMISE = 20  # of the shortest promise seen
PIECE_NS = NS_PER_MS  # between two pieces
PIECE_FLOWS = 2  # whose queues are read in a piece
PIECE_REQUESTS = 64  # that are played in a piece
REPLAY_REQUESTS = 1024  # that a replay looks at, about
QUEUE_DEPTH = 64  # and of a flow at the most
FASTEST = 0.9  # of the time of a prompt alone: steps scatter
CLASS_MEMORY_NS = 5 * NS_PER_S
MINUTE_NS = 60 * NS_PER_S
REST_NS = NS_PER_S  # without a step, after which nobody knows how long one takes
MIN_RETRY_MS = 100
MAX_RETRY_MS = 60_000
QUEUE_SHARE_TO_DRAIN = 10  # come back when a tenth of the queue has left
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
        self, settings: PolicySettings, flows: Flows, shares: Shares, models: CostModels
    ) -> None:
        """Start with nobody waiting."""
        self.rate = PrefillRate()
        self.floor = LengthFloor()
        self._under_way = UnderWay()
        self.protection = Protection(flows, shares, self.rate, self._under_way)
        self._settings = settings
        self._flows = flows
        self._shares = shares
        self._models = models
        self._limits = settings.limits
        self._latest = LatestStarts()
        self._used_tokens: dict[int, tuple[float, int]] = {}  # by tenant: in a minute, until when
        self._short_of: dict[int, Blocked] = {}  # by replica: what kept its last step from more
        self._worked_ns: dict[int, int] = {}  # by replica: when it had something to compute last
        self._now_ns = 0
        self._class_tokens = np.zeros(NUM_CLASSES)  # started lately
        self._counted_ns = 0  # when they were counted
        self._waiting_tokens = 0
        self._is_shedding = [False] * NUM_CLASSES
        self._replay_ns = 0  # when the next may begin
        self._piece_ns = 0
        self._unread: list[int] = []  # flows whose queues the replay has yet to read
        self._read: list[FlowQueue] = []
        self._replay: FluidReplay | None = None
        self._starts_ns: dict[Request, int] = {}  # as the last replay predicts them

    def configure(self, limits: Limits) -> None:
        """Take over which classes may be refused."""
        self._limits = limits

    def start_by_ns(self, request: Request) -> int:
        """Return by when a new request is to start at the present rate, and so that nobody who is
        protected is late; 0 without a promise.
        """
        if not request.ttft_deadline_ns:
            return 0
        rate = self.rate.fastest()
        needed_ns = request.num_tokens / rate * NS_PER_S if rate else 0.0
        wanted_ns = max(1, request.ttft_deadline_ns - int(self.floor.lead * needed_ns))
        return self.protection.place_ns(request, wanted_ns, self._time_of(request))

    def add(self, request: Request) -> None:
        """Take in a waiting request."""
        self._waiting_tokens += request.num_tokens
        if _has_promise(request):
            self.protection.add(request, self._time_of(request))
            if self._is_sheddable(request):
                alone_ns = self._alone_ns(request.num_tokens)
                self._latest.put(request, request.ttft_deadline_ns - alone_ns)

    def remove(self, request: Request) -> None:
        """Forget a waiting request."""
        self._waiting_tokens -= request.num_tokens
        if _has_promise(request):
            self.protection.remove(request)
            self._latest.discard(request)

    def started(self, request: Request) -> None:
        """Count what its tenant uses of its budget."""
        if request.first_start_ns == 0 and request.num_output_tokens == 0:
            self.floor.served(request.num_tokens)
            self._class_tokens *= exp(-(self._now_ns - self._counted_ns) / CLASS_MEMORY_NS)
            self._class_tokens[request.traffic_class] += request.num_tokens
            self._counted_ns = self._now_ns
            used = self._used(request.tenant_index) + request.num_tokens
            self._used_tokens[request.tenant_index] = (used, self._now_ns)

    def lose(self, replica: int) -> None:
        """Forget the rate of a replica that was lost."""
        self.rate.lose(replica)
        self._under_way.lose(replica)
        self._short_of.pop(replica, None)

    def at_step(self, step: Step) -> None:
        """Refuse what is late for certain, before the step is filled."""
        self._now_ns = now_ns = step.now_ns
        model = self._models.of(step.replica)
        if model is None:
            return
        if not self.rate.of(step.replica):
            self.rate.guess(step.replica, self._modelled_rate(model))
        self.rate.begin(step.replica, now_ns)
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
        self._short_of[step.replica] = short_of
        if num_tokens or step.num_running:
            self._worked_ns[step.replica] = step.now_ns
        if step.replica in self._under_way:
            self._under_way.look_at(step)  # what it started waits no more
        left_some = self._flows.has_waiting() or bool(step.prefills())
        left_some = left_some and short_of not in OWN_LIMITS
        self.rate.planned(step.replica, step.now_ns, num_tokens, left_some=left_some)

    def tend(self, room: WaitingRoom, now_ns: int) -> None:
        """Play a piece of the replay, and refuse whom it has shown to be late."""
        self._now_ns = max(self._now_ns, now_ns)
        if not self._is_under_way:
            self._begin_replay(now_ns)
        elif now_ns >= self._piece_ns:
            self._piece_ns = now_ns + PIECE_NS
            self._advance_replay(room, now_ns)

    def predicted_start_ns(self, request: Request) -> int:
        """Return when a waiting `request` will probably start, 0 if nobody can tell: the last
        replay did not look so far, or was wrong.
        """
        start_ns = self._starts_ns.get(request, 0)
        return start_ns if start_ns > self._now_ns else 0

    def next_timer_ns(self) -> int | None:
        """Return when the replay wants to go on, or to begin."""
        if self._is_under_way:
            return self._piece_ns
        return self._replay_ns if self._wants_replay else None

    def _is_sheddable(self, request: Request) -> bool:
        return self._limits.of(request.traffic_class).sheddable

    def _alone_ns(self, num_tokens: int) -> int:
        """Return the least time for a prompt on the fastest replica; 0 = nobody can tell."""
        models = [self._models.of(replica) for replica in self._under_way.replicas]
        times = [self._alone_on(each, num_tokens) for each in models if each is not None]
        return int(FASTEST * min(times, default=0))

    def _alone_on(self, model: CostModel, num_tokens: int) -> int:
        """Return the time in steps that hold nothing else, as large as they may be, on a machine
        as fast as it has ever been; it grows linearly from the first to the last of them.
        """
        model = fastest(model)
        size = min(num_tokens, self._settings.max_num_batched_tokens)
        num_full, rest = divmod(num_tokens, size)
        first_ns = model.duration_ns(StepWork().with_prefill(size, 0))
        last_ns = model.duration_ns(StepWork().with_prefill(size, (num_full - 1) * size))
        total_ns = num_full * (first_ns + last_ns) // 2
        if rest:
            total_ns += model.duration_ns(StepWork().with_prefill(rest, num_full * size))
        return total_ns

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
        rate = self.rate
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
        alone_ns = self._alone_ns(max(1, request.num_tokens - step.hit_tokens(request)))
        left_ns = request.ttft_deadline_ns - step.now_ns
        if alone_ns <= left_ns:
            again_ns = max(request.ttft_deadline_ns - alone_ns, step.now_ns)
            self._latest.put(request, again_ns)
            return
        hopeless = alone_ns > request.ttft_deadline_ns - request.arrival_ns
        retry_ms = 0 if hopeless else self._retry_after_ms(0)
        reason = RejectionReason.SHED_INFEASIBLE
        self.floor.refused(request.num_tokens)
        step.shed(request, _rejection(reason, request, retry_ms, alone_ns, left_ns))

    def _refuse_late_heads(self, step: Step, flow: int) -> None:
        """Refuse the heads of a flow that would be late even if they were served next."""
        while (request := self._flows.head(flow)) is not None:
            if not _has_promise(request) or not self._may_be_predicted(request):
                return
            num_tokens = request.num_tokens - step.hit_tokens(request)
            own_ns = int(num_tokens / self.rate.fastest() * NS_PER_S)
            needed_ns = self._soonest_ns(due_ns(request)) + own_ns
            left_ns = request.ttft_deadline_ns - step.now_ns
            if needed_ns <= left_ns:
                return
            retry_ms = self._retry_after_ms(needed_ns - left_ns)
            reason = RejectionReason.SHED_PREDICTED
            self.floor.refused(request.num_tokens)
            step.shed(request, _rejection(reason, request, retry_ms, needed_ns, left_ns))

    def _may_be_predicted(self, request: Request) -> bool:
        budget = self._limits.tenant(request.tenant).tokens_per_minute
        is_reserved = budget > 0 and self._used(request.tenant_index) < budget
        is_reserved = is_reserved or self._has_sequences_left(request.traffic_class)
        return self._is_sheddable(request) and not is_reserved

    def _has_sequences_left(self, traffic_class: int) -> bool:
        """Tell whether others wait for sequences of which a class has reserved some that it does
        not use: the rate at which they start is not its own.
        """
        if Blocked.SEQUENCES not in self._short_of.values():
            return False
        reserved = self._limits.of(TrafficClass(traffic_class)).reserved_seqs
        return int(self._flows.num_running[traffic_class::NUM_CLASSES].sum()) < reserved

    def _used(self, tenant_index: int) -> float:
        """Return the prompt tokens that a tenant has started in about the last minute."""
        used, until_ns = self._used_tokens.get(tenant_index, (0.0, 0))
        return used * exp(-(self._now_ns - until_ns) / MINUTE_NS)

    def _retry_after_ms(self, late_ns: int) -> int:
        """Return when a like request would have been in time, or the queue is shorter."""
        drain_s = self._waiting_tokens / QUEUE_SHARE_TO_DRAIN / max(1.0, self.rate.total())
        return min(MAX_RETRY_MS, max(MIN_RETRY_MS, late_ns // NS_PER_MS, int(1000 * drain_s)))

    @property
    def _is_under_way(self) -> bool:
        return bool(self._unread or self._read or self._replay)

    @property
    def _wants_replay(self) -> bool:
        return self.rate.total() > 0 and len(self.protection.protected) < len(self._latest)

    def _begin_replay(self, now_ns: int) -> None:
        if now_ns >= self._replay_ns and self._wants_replay:
            shortest_ns = self.protection.shortest_promise_ns() // REPLAYS_IN_A_PROMISE
            self._replay_ns = now_ns + min(max(shortest_ns, REPLAY_MIN_NS), REPLAY_MAX_NS)
            self._piece_ns = now_ns + PIECE_NS
            flows = {each.request.flow for each in self._under_way}
            flows.update(np.flatnonzero(self._flows.num_waiting > 0).tolist())
            self._unread = sorted(flows)

    def _advance_replay(self, room: WaitingRoom, now_ns: int) -> None:
        if self._unread:
            chosen, self._unread = self._unread[:PIECE_FLOWS], self._unread[PIECE_FLOWS:]
            queues = (self._read_flow(room, flow) for flow in chosen)
            self._read += [each for each in queues if each.queue]
        elif self._replay is None:
            self._replay = FluidReplay(self._replay_settings(now_ns), self._read)
            self._read = []
        elif self._replay.advance(PIECE_REQUESTS):
            verdicts, self._replay = self._replay.verdicts, None
            self._starts_ns = verdicts.starts_ns
            self._judge(verdicts.shares)
            self._refuse(room, verdicts.late, now_ns)

    def _read_flow(self, room: WaitingRoom, flow: int) -> FlowQueue:
        tenant = flow // NUM_CLASSES
        weights = self.protection.tenant_weights()
        depth = min(QUEUE_DEPTH, max(1, REPLAY_REQUESTS // len(weights)))
        waiting = [self._queued(room, each) for each in self._flows.first(flow, depth)]
        lead = self._shares.over_share(flow) / self._shares.book.prices.prefill_token
        return FlowQueue(
            flow=flow,
            weight=weights[tenant] / max(weights),
            queue=sorted(self._begun_of(flow) + waiting, key=_start),
            lead_tokens=lead,
        )

    def _begun_of(self, flow: int) -> list[Queued]:
        """Return the prompts of a flow that are under way; nothing more is asked of them."""
        return [
            Queued(each.request, each.num_tokens, each.due_ns, 0, may_be_shed=False)
            for each in self._under_way.of_flow(flow)
        ]

    def _queued(self, room: WaitingRoom, request: Request) -> Queued:
        protected = request in self.protection.protected
        return Queued(
            request=request,
            num_tokens=request.num_tokens - room.hit_tokens(request),
            start_by_ns=due_ns(request),
            deadline_ns=request.ttft_deadline_ns if _has_promise(request) else 0,
            may_be_shed=not protected and self._may_be_predicted(request),
            quarter=self.floor.quarter(request.num_tokens),
        )

    def _replay_settings(self, now_ns: int) -> ReplaySettings:
        shares, price = self._shares, self._shares.book.prices.prefill_token
        weights = np.array([self._limits.of(each).weight for each in TrafficClass])
        return ReplaySettings(
            now_ns=now_ns,
            tokens_per_s=self.rate.total(),
            class_weights=tuple((weights / weights.max()).tolist()),
            class_leads=tuple((shares.class_leads() / price).tolist()),
            class_window_tokens=shares.class_window / price,
            class_reserves=tuple(self._reserve(each) for each in TrafficClass),
            tenant_window_tokens=shares.tenant_window / price,
            refusals=self.floor.refusals(),
        )

    def _reserve(self, traffic_class: TrafficClass) -> float:
        """Return the share of the rate that a class gets first: what it has reserved, or what it
        had lately.
        """
        limits = self._limits.of(traffic_class)
        if limits.strict_first:
            return 1.0
        lately = self._class_tokens[traffic_class] / max(1.0, self._class_tokens.sum())
        return max(limits.reserved_step_fraction, float(lately))

    def _judge(self, shares: dict[int, list[float]]) -> None:
        """Enter or leave shedding, by class."""
        tuning = self._settings.tuning
        for traffic_class in range(NUM_CLASSES):
            found = shares.get(traffic_class)
            worst = float(np.quantile(found, 0.9)) if found else 0.0
            limit = tuning.shed_leave if self._is_shedding[traffic_class] else tuning.shed_enter
            self._is_shedding[traffic_class] = worst > limit

    def _refuse(self, room: WaitingRoom, late: list[Late], now_ns: int) -> None:
        """Refuse those of classes that shed: the lowest class and the most over-share first."""
        for each in sorted(late, key=self._refusal_order):
            request = each.request
            if request in self._latest and self._is_shedding[request.traffic_class]:
                needed_ns, left_ns = each.predicted_ns - now_ns, request.ttft_deadline_ns - now_ns
                retry_ms = self._retry_after_ms(needed_ns - left_ns)
                reason = RejectionReason.SHED_PREDICTED
                rejection = _rejection(reason, request, retry_ms, needed_ns, left_ns)
                self.floor.refused(request.num_tokens)
                room.shed(request, rejection, now_ns)

    def _refusal_order(self, late: Late) -> tuple[int, int]:
        request = late.request
        return (-request.traffic_class, -self._shares.over_share(request.flow))


def _has_promise(request: Request) -> bool:
    """Tell whether the first token was promised and is still to come."""
    has_begun = request.first_start_ns > 0 or request.num_output_tokens > 0
    return request.ttft_deadline_ns > 0 and not has_begun


def _start(queued: Queued) -> int:
    return queued.start_by_ns


def _rejection(
    reason: RejectionReason, request: Request, retry_ms: int, needed_ns: int, left_ns: int
) -> Rejection:
    knob = f"classes.{request.traffic_class.label}.ttft_ms"
    left_ms = max(0, left_ns) / NS_PER_MS
    return Rejection(reason, retry_ms, knob, needed_ns / NS_PER_MS, left_ms)
