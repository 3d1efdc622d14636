"""When the queue is played ahead, in pieces between steps, and from what.

Owns: the pace of the replays (`fluid_replay`), what they are told of the flows, the classes and
their windows, and the start times that the last one has shown. Never knows: what is done with its
verdicts.

A replay begins at most once in REPLAY_MIN_NS, unless all that wait are protected. First the queues
are read, a few flows a piece, then they are played, a few requests a piece, so that nothing waits
for it. A class is given first what it has reserved, or the share of the prompts that it had lately.
"""

from math import exp

import numpy as np

from core.clock import NS_PER_MS, NS_PER_S
from core.policy.base import WaitingRoom
from core.policy.fairness.shares import Shares
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.fluid_replay import (
    FlowQueue,
    FluidReplay,
    Queued,
    ReplaySettings,
    Verdicts,
)
from core.policy.lateness.length_floor import LengthFloor
from core.policy.lateness.prefill_rate import PrefillRate
from core.policy.lateness.protection import Protection
from core.policy.lateness.under_way import UnderWay
from core.policy.queues.flows import Flows, due_ns
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, TrafficClass

REPLAY_MIN_NS = 100 * NS_PER_MS
REPLAY_MAX_NS = 1000 * NS_PER_MS
REPLAYS_IN_A_PROMISE = 20  # of the shortest promise seen
PIECE_NS = NS_PER_MS  # between two pieces
PIECE_FLOWS = 2  # whose queues are read in a piece
PIECE_REQUESTS = 64  # that are played in a piece
REPLAY_REQUESTS = 1024  # that a replay looks at, about
QUEUE_DEPTH = 64  # and of a flow at the most
CLASS_MEMORY_NS = 5 * NS_PER_S


class Replays:
    """Those of one policy."""

    def __init__(
        self,
        *,
        flows: Flows,
        shares: Shares,
        rate: PrefillRate,
        under_way: UnderWay,
        protection: Protection,
        exemptions: Exemptions,
        floor: LengthFloor,
    ) -> None:
        """Start without any; all that is given is looked at when a replay begins."""
        self._flows = flows
        self._shares = shares
        self._rate = rate
        self._under_way = under_way
        self._protection = protection
        self._exemptions = exemptions
        self._floor = floor
        self._class_tokens = np.zeros(NUM_CLASSES)  # started lately
        self._counted_ns = 0  # when they were counted
        self._begin_ns = 0  # when the next may begin
        self._piece_ns = 0
        self._unread: list[int] = []  # flows whose queues the replay has yet to read
        self._read: list[FlowQueue] = []
        self._replay: FluidReplay | None = None
        self._starts_ns: dict[Request, int] = {}  # as the last replay predicts them

    @property
    def is_under_way(self) -> bool:
        """Whether one has begun and not ended."""
        return bool(self._unread or self._read or self._replay)

    def started(self, request: Request, now_ns: int) -> None:
        """Count the prompts that its class has lately."""
        self._class_tokens *= exp(-(now_ns - self._counted_ns) / CLASS_MEMORY_NS)
        self._class_tokens[request.traffic_class] += request.num_tokens
        self._counted_ns = now_ns

    def begin(self, now_ns: int) -> None:
        """Begin a replay, if it is time for one."""
        if now_ns < self._begin_ns:
            return
        shortest_ns = self._protection.shortest_promise_ns() // REPLAYS_IN_A_PROMISE
        self._begin_ns = now_ns + min(max(shortest_ns, REPLAY_MIN_NS), REPLAY_MAX_NS)
        self._piece_ns = now_ns + PIECE_NS
        flows = {each.request.flow for each in self._under_way}
        flows.update(np.flatnonzero(self._flows.num_waiting > 0).tolist())
        self._unread = sorted(flows)

    def advance(self, room: WaitingRoom, now_ns: int) -> Verdicts | None:
        """Go on by a piece, if it is time for one; return what the replay has shown at its end."""
        if now_ns < self._piece_ns:
            return None
        self._piece_ns = now_ns + PIECE_NS
        if self._unread:
            chosen, self._unread = self._unread[:PIECE_FLOWS], self._unread[PIECE_FLOWS:]
            queues = (self._read_flow(room, flow, now_ns) for flow in chosen)
            self._read += [each for each in queues if each.queue]
        elif self._replay is None:
            self._replay = FluidReplay(self._settings(now_ns), self._read)
            self._read = []
        elif self._replay.advance(PIECE_REQUESTS):
            verdicts, self._replay = self._replay.verdicts, None
            self._starts_ns = verdicts.starts_ns
            return verdicts
        return None

    def start_ns(self, request: Request) -> int:
        """Return when a waiting `request` starts by the last replay; 0: it did not look so far."""
        return self._starts_ns.get(request, 0)

    def next_timer_ns(self) -> int:
        """Return when the replay wants to go on, or to begin."""
        return self._piece_ns if self.is_under_way else self._begin_ns

    def _read_flow(self, room: WaitingRoom, flow: int, now_ns: int) -> FlowQueue:
        weights = self._protection.tenant_weights()
        depth = min(QUEUE_DEPTH, max(1, REPLAY_REQUESTS // len(weights)))
        waiting = [self._queued(room, each, now_ns) for each in self._flows.first(flow, depth)]
        lead = self._shares.over_share(flow) / self._shares.book.prices.prefill_token
        return FlowQueue(
            flow=flow,
            weight=weights[flow // NUM_CLASSES] / max(weights),
            queue=sorted(self._begun_of(flow) + waiting, key=_start),
            lead_tokens=lead,
        )

    def _begun_of(self, flow: int) -> list[Queued]:
        """Return the prompts of a flow that are under way; nothing more is asked of them."""
        return [
            Queued(each.request, each.num_tokens, each.due_ns, 0, may_be_shed=False)
            for each in self._under_way.of_flow(flow)
        ]

    def _queued(self, room: WaitingRoom, request: Request, now_ns: int) -> Queued:
        is_protected = request in self._protection.protected
        return Queued(
            request=request,
            num_tokens=request.num_tokens - room.hit_tokens(request),
            start_by_ns=due_ns(request),
            deadline_ns=request.ttft_deadline_ns if request.has_open_promise else 0,
            may_be_shed=not is_protected and self._exemptions.may_be_predicted(request, now_ns),
            quarter=self._floor.quarter(request.num_tokens),
        )

    def _settings(self, now_ns: int) -> ReplaySettings:
        shares, price = self._shares, self._shares.book.prices.prefill_token
        weights = np.array([shares.limits.of(each).weight for each in TrafficClass])
        return ReplaySettings(
            now_ns=now_ns,
            tokens_per_s=self._rate.total(),
            class_weights=tuple((weights / weights.max()).tolist()),
            class_leads=tuple((shares.class_leads() / price).tolist()),
            class_window_tokens=shares.class_window / price,
            class_reserves=tuple(self._reserve(each) for each in TrafficClass),
            tenant_window_tokens=shares.tenant_window / price,
            refusals=self._floor.refusals(),
        )

    def _reserve(self, traffic_class: TrafficClass) -> float:
        """Return the share of the rate that a class gets first: what it has reserved, or what it
        had lately.
        """
        limits = self._shares.limits.of(traffic_class)
        if limits.strict_first:
            return 1.0
        lately = self._class_tokens[traffic_class] / max(1.0, self._class_tokens.sum())
        return max(limits.reserved_step_fraction, float(lately))


def _start(queued: Queued) -> int:
    return queued.start_by_ns
