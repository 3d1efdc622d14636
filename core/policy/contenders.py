"""Whose turn it is in a step: class, then tenant, then request.

Owns: the heads of all flows in one step, prompts under way and waiting ones, and the choice between
them. Never knows: how many tokens fit, what a charge is.

    1 strict     classes served before all others, within their caps
    2 reserved   classes that have not had their reserved share of the step and have no time left
    3 window     of all heads within both windows, of class and of tenant, the one that is due
                 first; where nothing is promised, that of the least served class and tenant; in a
                 class those go last that had requests refused lately, unless one was given the
                 word to be in time; of the classes those that wait for company
    4 extension  nobody within the windows can use the step: the least served one that can

At 1 and 2 tenants are within their windows too, as long as any is that can use the step. A reserve
acts for who has used RESERVE_AFTER of its promise, or was promised nothing: before, deadlines are
enough, and it would make others late for nothing. A waiting head that is blocked stops its own
flow. One that lacks memory has a claim on what becomes free: nothing else starts in this step but
what can be preempted for it, or has memory reserved. Without a free row nothing starts, and after a
few heads that are too long for what is left of the step nobody else is tried. If it is known before
that nothing can start, and no prompt is under way, heads are tried by their deadlines, only to
learn what blocks them.

What waits counts for V, blocked or not, unless a limit of its own keeps it from starting.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.policy.base import Blocked, Grant, Step
from core.policy.company import Company
from core.policy.flows import NO_PROMISE_NS, NOBODY_NS, Flows, due_ns
from core.policy.locality import Locality
from core.policy.shares import Shares
from core.policy.step_shares import CLASSES, ClassTokens, StepShares
from core.request import Request, RequestStatus
from core.tenancy import NUM_CLASSES

CLOSING = frozenset({Blocked.SEQUENCES, Blocked.DRAINING})
TRIES = 4
CROWDING_LATER_NS = 1 << 60  # added to due times: after all that are promised, before others
CLAIMING = frozenset({Blocked.MEMORY, Blocked.HEADROOM})
OF_CLASS = frozenset({Blocked.CLASS_CAP, Blocked.RESERVE, Blocked.CLAIM})
_EACH_CLASS = np.arange(NUM_CLASSES)
Mask = npt.NDArray[np.bool_]
Times = npt.NDArray[np.int64]
Reasons = npt.NDArray[np.int8]  # `Blocked` of each flow


class Contenders:
    """The heads of one step."""

    def __init__(
        self,
        step: Step,
        flows: Flows,
        shares: Shares,
        guardrails: StepShares,
        tokens: ClassTokens,
        reasons: Reasons | None = None,
        locality: Locality | None = None,
    ) -> None:
        """Collect all heads; `reasons`, int8[flows], keep flows from starting anything."""
        self.blocked: dict[int, Blocked] = {}  # by flow, in the order of turns
        self.claim: Request | None = None
        self._step = step
        self._flows = flows
        self._shares = shares
        self._guardrails = guardrails
        self._tokens = tokens
        self._reasons = reasons
        self._locality = locality
        self._backfilling: list[int] = []  # classes that can be dropped for the claim
        self._shut: set[int] = set()  # flows that start nothing more
        self._closed: dict[int, Blocked] = {}  # classes that do not, and why
        self._is_reserved = False
        self._passed_over: tuple[int, ...] = ()  # classes that wait for company
        self._num_too_long = 0  # heads that do not fit whole when none may be computed in part
        self._changed: list[int] = []  # flows whose heads are to be looked at before the next turn
        self._under_way: dict[int, list[Request]] = {}
        for request in sorted(step.prefills(), key=due_ns, reverse=True):
            self._under_way.setdefault(request.flow, []).append(request)
        self._crowding = self._crowding_flows()
        self._due = self._heads()
        self._first = [-1] * NUM_CLASSES  # by class: the flow whose head is due first, and when,
        self._first_due_ns = [NOBODY_NS] * NUM_CLASSES
        self._first_ns = [NOBODY_NS] * NUM_CLASSES  # in the order of classes; NOBODY_NS: no turn
        self._has_choice = step.may_start_requests or bool(self._under_way)
        if self._has_choice:
            self._serviceable = self._due < NOBODY_NS
            self._open_windows()
        else:
            for traffic_class in self._capped():
                self._due[traffic_class::NUM_CLASSES] = NOBODY_NS
            self._keys = self._due.reshape(-1, NUM_CLASSES).copy()

    def first_blocked(self) -> Blocked:
        """Return what blocked the first in turn that was blocked; NOTHING if nobody was."""
        for blocked in self.blocked.values():
            return blocked
        if not self._flows.has_waiting():
            return Blocked.NOTHING
        return self.reason(int(self._flows.due_ns.argmin()))

    def flows_under_way(self) -> list[int]:
        """Return the flows that have prompts under way."""
        return [flow for flow, requests in self._under_way.items() if requests]

    def reason(self, flow: int) -> Blocked:
        """Return what blocked the head of `flow`; NOTHING if it only had no turn, or has come
        since.
        """
        if flow in self.blocked:
            return self.blocked[flow]
        reasons = self._reasons
        if reasons is not None and flow < len(reasons) and reasons[flow] > 0:
            return Blocked(int(reasons[flow]))
        if flow % NUM_CLASSES in self._closed:
            return self._closed[flow % NUM_CLASSES]
        return Blocked.CLASS_CAP if flow % NUM_CLASSES in self._capped() else Blocked.NOTHING

    def pass_over(self, company: Company, step_ns: int) -> None:
        """Let classes wait for company in a step that can last `step_ns`; meanwhile they hold
        nobody back.
        """
        waiting = company.passed_over(step_ns, self._first_ns, self._step.now_ns)
        if not waiting or not self._has_choice:
            return
        others = self._serviceable.copy()
        for traffic_class in waiting:
            others[traffic_class::NUM_CLASSES] = False
        if others.any():
            self._passed_over, self._serviceable = waiting, others
            self._open_windows()

    def next(self) -> Request | None:
        """Return whose turn it is; its grant must be settled before the next."""
        if not len(self._due) or self._is_over():
            return None
        while self._changed:
            self._update(self._changed.pop())
        while (flow := self._next_flow()) >= 0:
            request = self._head(flow)
            if request is not None:
                return self._nearest(request)
            self._update(flow)  # its head was preempted by this very step
        return None

    def most_tokens(self, request: Request) -> int:
        """Return how many tokens one grant may give to `request`."""
        most = self._tokens.most[request.traffic_class]
        return (
            min(most, self._tokens.reserved[request.traffic_class]) if self._is_reserved else most
        )

    def needs_reserve(self, request: Request) -> bool:
        """Tell whether a waiting `request` may start behind a claim only in reserved memory."""
        return self.claim is not None and request.traffic_class not in self._backfilling

    def settle(self, request: Request, grant: Grant) -> None:
        """Take in what came of a grant to `request`."""
        flow, traffic_class = request.flow, int(request.traffic_class)
        mine = self._under_way.get(flow)
        if mine and mine[-1] is request:
            if grant.blocked is not Blocked.NOTHING:
                self.blocked.setdefault(flow, grant.blocked)
                mine.pop()
            elif self._step.remaining(request) == 0:
                mine.pop()
            if not mine:
                del self._under_way[flow]
        elif grant.blocked is not Blocked.NOTHING:
            self._block(request, grant.blocked)
        elif self._step.remaining(request):
            self._under_way.setdefault(flow, []).append(request)
        self._tokens.take(traffic_class, grant.num_tokens)
        self._changed.append(flow)

    def _is_over(self) -> bool:
        """Tell whether nothing can start any more, and no prompt is under way."""
        return not self._under_way and len(self._closed) == NUM_CLASSES

    def _crowding_flows(self) -> Mask | None:
        """Return the flows that go last in their classes, bool[flows]; None if there are none."""
        crowding = self._flows.crowding(self._step.now_ns)
        if crowding is not None:
            prompts = (request for group in self._under_way.values() for request in group)
            crowding[[each.flow for each in prompts if each in self._flows.sworn]] = False
        return crowding

    def _heads(self) -> Times:
        """Return when the head of each flow is due, int64[flows]: NOBODY_NS without one."""
        due = self._flows.due_ns
        due = due.copy() if self._reasons is None else np.where(self._reasons, NOBODY_NS, due)
        for flow, requests in self._under_way.items():
            due[flow] = min(int(due[flow]), due_ns(requests[-1]))
        return due

    def _open_windows(self) -> None:
        """Work out V, and the due times of the heads that are within the window of their tenant."""
        self._shares.advance(self._serviceable)
        if not np.count_nonzero(self._serviceable):
            self._keys = self._due.reshape(-1, NUM_CLASSES).copy()
            return
        keys = self._due
        unpromised = (keys >= NO_PROMISE_NS) & (keys < NOBODY_NS)
        if np.count_nonzero(unpromised):
            keys = np.where(unpromised, NO_PROMISE_NS + self._shares.leads(), keys)
        if self._crowding is not None:
            later = self._crowding & (keys < NO_PROMISE_NS)
            keys = np.where(later, keys + CROWDING_LATER_NS, keys)
        keys = keys.reshape(-1, NUM_CLASSES)
        self._keys = np.where(self._shares.tenants_within(), keys, NOBODY_NS)
        first = self._keys.argmin(axis=0)
        keys_ns = self._keys[first, _EACH_CLASS].tolist()
        for traffic_class, tenant in enumerate(first.tolist()):
            self._note_first(traffic_class, tenant, keys_ns[traffic_class])

    def _next_flow(self) -> int:
        """Return the flow whose turn it is, or -1."""
        if not self._has_choice:
            flow = int(self._due.argmin())
            return flow if self._due[flow] < NOBODY_NS else -1
        flow = self._privileged()
        return flow if flow >= 0 else self._within_windows()

    def _privileged(self) -> int:
        """Return the flow whose turn it is among strict and reserved classes, or -1."""
        self._is_reserved = False
        flow = self._earliest(self._guardrails.strict)
        if flow < 0:
            flow = self._earliest([c for c in self._guardrails.reserving if self._has_reserve(c)])
            self._is_reserved = flow >= 0
        return flow

    def _has_reserve(self, traffic_class: int) -> bool:
        """Tell whether a class is to have some of its reserve now."""
        left_ns = self._first_ns[traffic_class] - self._step.now_ns
        return self._tokens.reserved[traffic_class] > 0 and self._guardrails.needs_reserve(
            traffic_class, left_ns
        )

    def _within_windows(self) -> int:
        """Return the flow whose turn it is among all classes, or -1."""
        within = self._shares.classes_within()
        flow = self._earliest([c for c in within if c not in self._passed_over])
        if flow < 0 and self._passed_over:
            flow = self._earliest(within)
        if flow >= 0:
            return flow
        has_head = self._due < NOBODY_NS
        for traffic_class in self._capped():
            has_head[traffic_class::NUM_CLASSES] = False
        if not np.count_nonzero(has_head):
            return -1
        self._open_windows()
        flow = self._earliest(self._shares.classes_within())
        return flow if flow >= 0 else self._shares.least_served(has_head)

    def _earliest(self, classes: Sequence[int]) -> int:
        """Return the flow of `classes` within its window whose head is due first, or -1."""
        first_ns, most = self._first_ns, self._tokens.most
        keys = [
            (first_ns[c], self._first_due_ns[c], self._first[c])
            for c in classes
            if first_ns[c] < NOBODY_NS and most[c] > 0
        ]
        return min(keys)[2] if keys else -1

    def _find_first(self, traffic_class: int) -> None:
        """Look for the head of a class that is due first, of tenants within their windows."""
        keys = self._keys[:, traffic_class]
        tenant = int(keys.argmin())
        self._note_first(traffic_class, tenant, int(keys[tenant]))

    def _note_first(self, traffic_class: int, tenant: int, key_ns: int) -> None:
        """Take in whose head is due first in a class, at `key_ns` in the order of its tenants."""
        flow = self._first[traffic_class] = tenant * NUM_CLASSES + traffic_class
        first_ns = NOBODY_NS
        if key_ns < NOBODY_NS:
            first_ns = self._first_due_ns[traffic_class] = int(self._due[flow])
        if NO_PROMISE_NS <= first_ns < NOBODY_NS:
            first_ns = NO_PROMISE_NS + max(0, self._shares.class_lead(traffic_class))
        self._first_ns[traffic_class] = first_ns

    def _nearest(self, head: Request) -> Request:
        """Return who goes before a waiting `head`, with more of its prompt in the cache."""
        if self._locality is None or head.status is RequestStatus.RUNNING:
            return head
        return self._locality.first(self._step, head)

    def _block(self, request: Request, blocked: Blocked) -> None:
        """A waiting head does not start: close its flow, or more than that."""
        if self._locality is not None and self._locality.blocked(self._step, request):
            return
        self.blocked[request.flow] = blocked
        self._shut.add(request.flow)
        if blocked in CLOSING:
            self._close(CLASSES, blocked)
        elif blocked is Blocked.PARTIAL_PREFILLS:
            self._num_too_long += 1
            if self._num_too_long == TRIES:
                self._close(CLASSES, blocked)
        elif blocked in OF_CLASS:
            self._close((int(request.traffic_class),), blocked)
        elif blocked in CLAIMING and self.claim is None:
            self._give_claim(request)

    def _give_claim(self, request: Request) -> None:
        self.claim, mine = request, int(request.traffic_class)
        self._backfilling = self._guardrails.can_be_dropped_for(mine)
        open_classes = {*self._backfilling, *self._guardrails.have_memory()} - {mine}
        self._close([c for c in CLASSES if c not in open_classes], Blocked.CLAIM)

    def _capped(self) -> list[int]:
        """Return the classes that have had the most they may have of the step."""
        return [c for c in CLASSES if self._tokens.most[c] <= 0]

    def _close(self, classes: Sequence[int], why: Blocked) -> None:
        """Let nothing of `classes` start; prompts under way go on."""
        self._closed.update(dict.fromkeys(classes, why))
        if self._is_over():
            return
        for traffic_class in classes:
            self._due[traffic_class::NUM_CLASSES] = NOBODY_NS
            self._keys[:, traffic_class] = NOBODY_NS
            self._first_ns[traffic_class] = NOBODY_NS
        for flow in self._under_way:
            self._update(flow)

    def _update(self, flow: int) -> None:
        """Look at the head of `flow` again."""
        head = self._head(flow)
        due = NOBODY_NS if head is None else due_ns(head)
        self._due[flow] = due
        tenant, traffic_class = divmod(flow, NUM_CLASSES)
        within = self._shares.is_within(flow)
        self._keys[tenant, traffic_class] = self._key(flow) if within else NOBODY_NS
        self._find_first(traffic_class)

    def _key(self, flow: int) -> int:
        """Return by what the head of `flow` is ordered among tenants of its class."""
        due = int(self._due[flow])
        if due < NO_PROMISE_NS:
            is_crowding = self._crowding is not None and self._crowding[flow]
            return due + CROWDING_LATER_NS if is_crowding else due
        return due if due == NOBODY_NS else NO_PROMISE_NS + self._shares.over_share(flow)

    def _head(self, flow: int) -> Request | None:
        under_way = self._under_way.get(flow)
        while under_way and under_way[-1].status is not RequestStatus.RUNNING:
            under_way.pop()
        is_open = flow % NUM_CLASSES not in self._closed and flow not in self._shut
        waiting = self._flows.head(flow) if is_open and not self._is_kept_out(flow) else None
        if not under_way:
            return waiting
        if waiting is None or due_ns(under_way[-1]) <= due_ns(waiting):
            return under_way[-1]
        return waiting

    def _is_kept_out(self, flow: int) -> bool:
        return self._reasons is not None and self._reasons[flow] > 0
