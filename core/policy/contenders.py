"""Whose turn it is in a step: class, then tenant, then request.

Owns: the heads of all flows in one step, prompts under way and waiting ones, and the choice between
them. Never knows: how many tokens fit, what a charge is.

    1 strict     classes served before all others, within their caps
    2 reserved   classes that have not had their reserved share of the step
    3 window     of all heads within both windows, of class and of tenant, the one that is due first
    4 extension  nobody within the windows can use the step: the least served one that can

At 1 and 2 tenants are within their windows too, as long as any is that can use the step. A waiting
head that is blocked stops its own flow. One that lacks memory has a claim on what becomes free:
nothing else starts in this step but what can be preempted for it. Without a free row nothing
starts. What waits counts for V, blocked or not, unless a limit of its own keeps it from starting.
"""

from math import ceil

import numpy as np
import numpy.typing as npt

from core.policy.base import Blocked, DecodeBatch, Grant, Step
from core.policy.flows import NOBODY_NS, Flows, due_ns
from core.policy.limits import Limits
from core.policy.shares import Shares
from core.request import Request, RequestStatus
from core.tenancy import NUM_CLASSES, TrafficClass

CLOSING = frozenset({Blocked.SEQUENCES, Blocked.DRAINING})
CLAIMING = frozenset({Blocked.MEMORY, Blocked.HEADROOM})
Reasons = npt.NDArray[np.int8]  # `Blocked` of each flow


class ClassTokens:
    """What a step holds for each class: at the most, and before any other."""

    def __init__(self, limits: Limits, decodes: DecodeBatch, capacity: int) -> None:
        """Share out a step of `capacity` tokens, of which the `decodes` have theirs."""
        used = np.bincount(decodes.traffic_class, minlength=NUM_CLASSES).tolist()
        configs = [limits.of(each) for each in TrafficClass]
        self.strict = [c for c, config in enumerate(configs) if config.strict_first]
        self.most = [
            capacity if config.max_step_fraction == 1 else
            max(1, int(config.max_step_fraction * capacity)) - count
            for config, count in zip(configs, used, strict=True)
        ]  # fmt: skip
        self.reserved = [
            ceil(config.reserved_step_fraction * capacity) - count
            for config, count in zip(configs, used, strict=True)
        ]
        self._is_capped = [config.max_step_fraction < 1 for config in configs]

    def take(self, traffic_class: int, num_tokens: int) -> None:
        """Take in that the class was granted `num_tokens`."""
        self.reserved[traffic_class] -= num_tokens
        if self._is_capped[traffic_class]:
            self.most[traffic_class] -= num_tokens


class Contenders:
    """The heads of one step."""

    def __init__(
        self,
        step: Step,
        flows: Flows,
        shares: Shares,
        tokens: ClassTokens,
        reasons: Reasons | None = None,
    ) -> None:
        """Collect all heads; `reasons`, int8[flows], keep flows from starting anything."""
        self.blocked: dict[int, Blocked] = {}  # by flow, in the order of turns
        self.claim: Request | None = None
        self._step = step
        self._flows = flows
        self._shares = shares
        self._tokens = tokens
        self._may_start = True
        self._is_reserved = False
        self._reasons = np.zeros(len(flows), np.int8) if reasons is None else reasons
        self._shut = self._reasons > 0
        self._under_way: dict[int, list[Request]] = {}
        for request in sorted(step.prefills(), key=due_ns, reverse=True):
            self._under_way.setdefault(request.flow, []).append(request)
        self._serviceable = (flows.num_waiting > 0) & ~self._shut
        self._serviceable[list(self._under_way)] = True
        self._collect()
        self._open_windows()

    @property
    def is_empty(self) -> bool:
        """Whether nobody can use the step."""
        return not any(self._num_heads)

    def first_blocked(self) -> Blocked:
        """Return what blocked the first in turn that was blocked; NOTHING if nobody was."""
        for blocked in self.blocked.values():
            return blocked
        due = np.where(self._reasons > 0, self._flows.due_ns, NOBODY_NS)
        return self.reason(int(due.argmin())) if len(due) else Blocked.NOTHING

    def reason(self, flow: int) -> Blocked:
        """Return what blocked the head of `flow`; NOTHING if it had no turn."""
        return self.blocked.get(flow) or Blocked(int(self._reasons[flow]))

    def next(self) -> Request | None:
        """Return whose turn it is; its grant must be settled before the next."""
        flow = -1
        if not self.is_empty:
            flow = self._privileged()
        if flow < 0 and not self.is_empty:
            flow = self._within_windows()
        return None if flow < 0 else self._head(flow)

    def most_tokens(self, request: Request) -> int:
        """Return how many tokens one grant may give to `request`."""
        traffic_class = int(request.traffic_class)
        most, reserved = self._tokens.most[traffic_class], self._tokens.reserved[traffic_class]
        return min(most, reserved) if reserved > 0 and self._is_reserved else most

    def settle(self, request: Request, grant: Grant) -> None:
        """Take in what came of a grant to `request`."""
        flow = request.flow
        mine = self._under_way.get(flow)
        if mine and mine[-1] is request:
            if grant.blocked is not Blocked.NOTHING or self._step.remaining(request) == 0:
                mine.pop()
        elif grant.blocked is not Blocked.NOTHING:
            self._block(request, grant.blocked)
        elif self._step.remaining(request):
            self._under_way.setdefault(flow, []).append(request)
        if grant.num_tokens:
            self._tokens.take(int(request.traffic_class), grant.num_tokens)
            if self._tokens.most[request.traffic_class] <= 0:
                self._cap(int(request.traffic_class))
        self._update(flow)

    def _collect(self) -> None:
        """Work out when the head of each flow is due, int64[flows]: NOBODY_NS without one."""
        self._due = np.full(len(self._flows), NOBODY_NS)
        if self._may_start:
            np.copyto(self._due, self._flows.due_ns, where=~self._shut)
        for flow, requests in self._under_way.items():
            if requests:
                self._due[flow] = min(int(self._due[flow]), due_ns(requests[-1]))
        table = self._due.reshape(-1, NUM_CLASSES)
        self._num_heads: list[int] = (table < NOBODY_NS).sum(axis=0).tolist()
        for traffic_class, most in enumerate(self._tokens.most):
            if most <= 0 and self._num_heads[traffic_class]:
                self._cap(traffic_class)

    def _open_windows(self) -> None:
        """Work out V, and the due times of the heads within the window of their tenant."""
        self._shares.advance(self._serviceable)
        due = self._due.reshape(-1, NUM_CLASSES)
        self._keys = np.where(self._shares.tenants_within(), due, NOBODY_NS)
        self._classes_within = self._shares.classes_within()

    def _privileged(self) -> int:
        """Return the flow whose turn it is among strict and reserved classes, or -1."""
        self._is_reserved = False
        flow = self._earliest([c for c in self._tokens.strict if self._num_heads[c]])
        if flow < 0:
            reserved = [c for c in TrafficClass if self._tokens.reserved[c] > 0]
            flow = self._earliest([c for c in reserved if self._num_heads[c]])
            self._is_reserved = flow >= 0
        return flow

    def _within_windows(self) -> int:
        """Return the flow whose turn it is among all classes."""
        flow = self._earliest(self._open_classes())
        if flow < 0:
            self._open_windows()
            flow = self._earliest(self._open_classes())
        return flow if flow >= 0 else self._shares.least_served(self._due < NOBODY_NS)

    def _open_classes(self) -> list[int]:
        return [c for c in range(NUM_CLASSES) if self._classes_within[c] and self._num_heads[c]]

    def _earliest(self, classes: list[int]) -> int:
        """Return the flow of `classes` within its window whose head is due first, or -1."""
        first_ns, first = NOBODY_NS, -1
        for traffic_class in classes:
            keys = self._keys[:, traffic_class]
            tenant = int(keys.argmin())
            if keys[tenant] < first_ns:
                first_ns, first = int(keys[tenant]), tenant * NUM_CLASSES + traffic_class
        return first

    def _block(self, request: Request, blocked: Blocked) -> None:
        """A waiting head does not start: close its flow, or more than that."""
        self.blocked[request.flow] = blocked
        self._shut[request.flow] = True
        if blocked in CLOSING:
            self._may_start = False
        elif blocked in CLAIMING and self.claim is None:
            self._give_claim(request)
        else:
            return
        self._collect()
        self._open_windows()

    def _give_claim(self, request: Request) -> None:
        self.claim = request
        limits = self._shares.limits
        can_be_dropped = [limits.of(each).preemptible for each in TrafficClass]
        if can_be_dropped[request.traffic_class]:
            self._may_start = False
        self._shut.reshape(-1, NUM_CLASSES)[:, ~np.array(can_be_dropped)] = True

    def _cap(self, traffic_class: int) -> None:
        """The class has had its share of the step."""
        due = self._due.reshape(-1, NUM_CLASSES)[:, traffic_class]
        for tenant in np.flatnonzero(due < NOBODY_NS).tolist():
            self.blocked.setdefault(tenant * NUM_CLASSES + traffic_class, Blocked.CLASS_CAP)
        due[:] = NOBODY_NS
        self._num_heads[traffic_class] = 0

    def _update(self, flow: int) -> None:
        """Look at the head of `flow` again."""
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        head = self._head(flow) if self._tokens.most[traffic_class] > 0 else None
        was_here = int(self._due[flow]) < NOBODY_NS
        due = NOBODY_NS if head is None else due_ns(head)
        self._due[flow] = due
        self._num_heads[traffic_class] += (due < NOBODY_NS) - was_here
        within = self._shares.is_within(flow)
        self._keys[tenant, traffic_class] = due if within else NOBODY_NS
        self._classes_within[traffic_class] = self._shares.is_class_within(traffic_class)

    def _head(self, flow: int) -> Request | None:
        under_way = self._under_way.get(flow)
        while under_way and under_way[-1].status is not RequestStatus.RUNNING:
            under_way.pop()  # preempted by this very step
        may_start = self._may_start and not self._shut[flow]
        waiting = self._flows.head(flow) if may_start else None
        if not under_way:
            return waiting
        if waiting is None or due_ns(under_way[-1]) <= due_ns(waiting):
            return under_way[-1]
        return waiting
