"""What a play of the queue is told: who waits in which order, the rate, shares and windows.

Owns: what each class had of the prompts lately. Never knows: when the queue is played, what comes
of it. A class is given first what it has reserved, or the share of the prompts that it had lately:
so much of it will come again, though nobody of it waits.
"""

from math import exp

import numpy as np

from core.clock import NS_PER_S
from core.policy.base import WaitingRoom
from core.policy.fairness.shares import Shares
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.fluid_replay import FlowQueue, Queued, ReplaySettings
from core.policy.lateness.length_floor import LengthFloor
from core.policy.lateness.prefill_rate import PrefillRate
from core.policy.lateness.protection import Protection
from core.policy.lateness.under_way import UnderWay
from core.policy.queues.flows import Flows, due_ns
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, TrafficClass

REPLAY_REQUESTS = 1024  # that a replay looks at, about
QUEUE_DEPTH = 64  # and of a flow at the most
CLASS_MEMORY_NS = 5 * NS_PER_S


class ReplayInput:
    """That of one policy."""

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
        """Start with nothing served; all that is given is looked at when a play begins."""
        self._flows = flows
        self._shares = shares
        self._rate = rate
        self._under_way = under_way
        self._protection = protection
        self._exemptions = exemptions
        self._floor = floor
        self._class_tokens = np.zeros(NUM_CLASSES)  # started lately
        self._counted_ns = 0  # when they were counted

    def started(self, request: Request, now_ns: int) -> None:
        """Count the prompts that its class has lately."""
        self._class_tokens *= exp(-(now_ns - self._counted_ns) / CLASS_MEMORY_NS)
        self._class_tokens[request.traffic_class] += request.num_tokens
        self._counted_ns = now_ns

    def flows(self) -> list[int]:
        """Return the flows that have somebody waiting or under way."""
        flows = {each.request.flow for each in self._under_way}
        flows.update(np.flatnonzero(self._flows.num_waiting > 0).tolist())
        return sorted(flows)

    def read_flow(self, room: WaitingRoom, flow: int, now_ns: int) -> FlowQueue:
        """Return the first requests of a flow, those under way among them."""
        depth = min(QUEUE_DEPTH, max(1, REPLAY_REQUESTS // len(self._flows.tenant_names)))
        waiting = [self._queued(room, each, now_ns) for each in self._flows.first(flow, depth)]
        return self.flow_with(flow, self._begun_of(flow) + waiting)

    def flow_with(self, flow: int, requests: list[Queued]) -> FlowQueue:
        """Return a flow where it stands now, with any requests."""
        weights = self._protection.tenant_weights()
        return FlowQueue(
            flow=flow,
            weight=weights[flow // NUM_CLASSES] / max(weights),
            queue=sorted(requests, key=_start),
            lead_tokens=self._shares.over_share(flow) / self._shares.book.prices.prefill_token,
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

    def settings(self, now_ns: int) -> ReplaySettings:
        """Return rates, shares and windows as they are."""
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

    def strict_reserves(self) -> tuple[float, ...]:
        """Return the same for plays that are told who comes: only who is strictly first gets all of
        the rate, by class.
        """
        return tuple(float(self._shares.limits.of(each).strict_first) for each in TrafficClass)

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
