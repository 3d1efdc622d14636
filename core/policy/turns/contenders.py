"""Whose turn it is in a step: strict and reserved classes, then whoever is due first.

Owns: the choice between the heads of all flows, prompts under way and waiting ones. Never knows:
how many tokens fit, what a charge is, in which order heads of a class stand (`head_order`), what
closes a flow or a class (`closures`).

    1 strict     classes served before all others, within their caps
    2 reserved   classes that have not had their reserved share of the step and have no time left
    3 window     of all heads within both windows, of class and of tenant, the one that is due
                 first; where nothing is promised, that of the least served class and tenant; in a
                 class those go last that had requests refused lately, unless one was given the
                 word to be in time; of the classes those that wait for company
    4 extension  nobody within the windows can use the step: the least served one that can

At 1 and 2 tenants are within their windows too, as long as any is that can use the step. A reserve
acts for who has used RESERVE_AFTER of its promise, or was promised nothing: before, deadlines are
enough, and it would make others late for nothing. If it is known before that nothing can start, and
no prompt is under way, heads are tried by their deadlines, only to learn what blocks them.

What waits counts for V, blocked or not, unless a limit of its own keeps it from starting.

Prompts that gather (`company`) keep their last token until the turn passes to others. It is one
token: then it goes before all, windows or not.
"""

from collections import deque

import numpy as np

from core.policy.base import Blocked, Grant, Step
from core.policy.fairness.shares import Shares
from core.policy.pacing.company import Company
from core.policy.pacing.step_budget import StepRoom
from core.policy.queues.flows import NO_PROMISE_NS, NOBODY_NS, Flows, due_ns
from core.policy.turns.closures import Closures, Reasons
from core.policy.turns.head_order import HeadOrder, Mask, Times
from core.policy.turns.locality import Locality
from core.policy.turns.step_shares import CLASSES, StepTokens
from core.request import Request, RequestStatus
from core.tenancy.classes import NUM_CLASSES


class Contenders:
    """The heads of one step."""

    def __init__(
        self,
        step: Step,
        flows: Flows,
        shares: Shares,
        tokens: StepTokens,
        reasons: Reasons,
        locality: Locality,
    ) -> None:
        """Collect all heads; `reasons`, int8[flows], keep flows from starting anything."""
        self._step = step
        self._flows = flows
        self._shares = shares
        self._tokens = tokens
        self._locality = locality
        self._closures = Closures(tokens.shares, reasons)
        self._is_reserved = False  # the turn, so its tokens are bounded by the reserve
        self._waiting_for_company: tuple[int, ...] = ()  # classes that wait for company
        self._gathering: dict[int, int] = {}  # class: prompts due later keep their last token
        self._held: deque[Request] = deque()  # prompts under way of which one token is left
        self._released: Request | None = None  # of them, whose turn it is
        self._settled = -1  # the flow whose head is to be looked at before the next turn
        self._under_way: dict[int, list[Request]] = {}  # by flow, the one that goes next last
        for request in sorted(step.prefills(), key=due_ns, reverse=True):
            self._under_way.setdefault(request.flow, []).append(request)
        self._order = HeadOrder(self._due_ns(reasons), self._crowding(), shares, tokens.most)
        self._has_choice = step.may_start_requests or bool(self._under_way)
        if self._has_choice:
            self._order.open_windows()
        else:
            self._order.close(self._capped())

    def first_blocked(self) -> Blocked:
        """Return what blocked the first in turn that was blocked; NOTHING if nobody was."""
        for blocked in self._closures.blocked.values():
            return blocked
        if not self._flows.has_waiting():
            return Blocked.NOTHING
        return self.reason(int(self._flows.due_ns.argmin()))

    def flows_under_way(self) -> list[int]:
        """Return the flows that have prompts under way, but for those with only their last token
        left: these want nothing more yet.
        """
        return [flow for flow, requests in self._under_way.items() if requests]

    def reason(self, flow: int) -> Blocked:
        """Return what blocked the head of `flow`; NOTHING if it only had no turn, or has come
        since.
        """
        reason = self._closures.reason(flow)
        if reason is Blocked.NOTHING and flow % NUM_CLASSES in self._capped():
            return Blocked.CLASS_CAP
        return reason

    def wait_for(self, company: Company, room: StepRoom) -> None:
        """Let classes wait for company in a step with that `room`, and gather, as long as others
        can use it; while they wait they hold nobody back. All that have one token left of their
        prompts are set aside, those that do not gather to go first.
        """
        if not self._has_choice:
            return
        gathering = company.gathering(room, self._step.now_ns)
        if gathering:
            self._put_last(company.waiting(room, self._order.first_ns, self._step.now_ns))
            self._gather(gathering)
        for request in sorted(self._prompts(), key=due_ns):
            if self._step.remaining(request) == 1:
                self._hold(request)

    def _put_last(self, waiting: tuple[int, ...]) -> None:
        """Let classes wait in this step, unless one that decoded before is next of its flow."""
        waiting = tuple(c for c in waiting if not self._has_output(c))
        if waiting and self._order.put_last(waiting):
            self._waiting_for_company = waiting

    def _gather(self, gathering: dict[int, int]) -> None:
        """Let classes gather of which no prompt under way is due too soon, if others wait."""
        for request in self._prompts():
            if due_ns(request) <= gathering.get(request.traffic_class, 0):
                del gathering[request.traffic_class]
        if gathering and self._order.has_head(but=gathering):
            self._gathering = gathering

    def next(self) -> Request | None:
        """Return whose turn it is; its grant must be settled before the next."""
        request = self._next_released() or self._turn()
        if self._gathering and self._ends_gathering(request):
            self._gathering = {}
            request = self._next_released() or request
        return request

    def keeps_last(self, request: Request) -> bool:
        """Tell whether the last token of the prompt of `request` is to be left for later; not of
        one that was preempted while it decoded.
        """
        after_ns = self._gathering.get(request.traffic_class, NOBODY_NS)
        return after_ns < due_ns(request) < NO_PROMISE_NS and not request.num_output_tokens

    def _ends_gathering(self, request: Request | None) -> bool:
        """Tell whether the turn of `request` ends it: it is of another class while some are held,
        or cannot wait itself.
        """
        if request is None:
            return True
        is_concerned = bool(self._held) or request.traffic_class in self._gathering
        return is_concerned and not self.keeps_last(request)

    def _turn(self) -> Request | None:
        """Return whose turn it is, but for those that are held."""
        if self._is_over():
            return None
        if self._settled >= 0:
            self._update(self._settled)
            self._settled = -1
        while (flow := self._next_flow()) >= 0:
            request = self._head(flow)
            if request is not None:
                return self._nearest(request)
            self._update(flow)  # its head was preempted by this very step
        return None

    def most_tokens(self, request: Request) -> int:
        """Return how many tokens one grant may give to `request`."""
        tokens, traffic_class = self._tokens, request.traffic_class
        most = tokens.most[traffic_class]
        return min(most, tokens.reserved[traffic_class]) if self._is_reserved else most

    def needs_reserve(self, request: Request) -> bool:
        """Tell whether a waiting `request` may start behind a claim only in reserved memory."""
        return self._closures.needs_reserve(request)

    def settle(self, request: Request, grant: Grant) -> None:
        """Take in what came of a grant to `request`."""
        flow, is_blocked = request.flow, grant.blocked is not Blocked.NOTHING
        mine = self._under_way.get(flow, [])
        is_released = request is self._released
        was_under_way = is_released or request in mine[-1:]
        if is_blocked and was_under_way:
            self._closures.blocked.setdefault(flow, grant.blocked)
        elif is_blocked:
            self._block(request, grant.blocked)
        if is_released:
            self._held.remove(request)  # one of the first
            self._released = None
        elif was_under_way and (is_blocked or not self._step.remaining(request)):
            self._take_away(request)
        elif not was_under_way and not is_blocked and self._step.remaining(request):
            self._under_way.setdefault(flow, []).append(request)
        if not is_blocked and self.keeps_last(request) and self._step.remaining(request) == 1:
            self._hold(request)
        self._tokens.take(request.traffic_class, grant.num_tokens)
        self._settled = flow

    def _hold(self, request: Request) -> None:
        """Set a prompt under way aside."""
        self._take_away(request)
        self._held.append(request)
        self._update(request.flow)

    def _has_output(self, traffic_class: int) -> bool:
        """Tell whether one of a class was preempted while it decoded, and is next of its flow."""
        flows = self._order.flows_with_head(traffic_class)
        heads = (self._head(flow) for flow in flows)
        return any(head is not None and head.num_output_tokens for head in heads)

    def _take_away(self, request: Request) -> None:
        """Let a prompt under way have no turn any more."""
        group = self._under_way[request.flow]
        group.remove(request)
        if not group:
            del self._under_way[request.flow]

    def _prompts(self) -> list[Request]:
        """Return those under way."""
        return [request for group in self._under_way.values() for request in group]

    def _next_released(self) -> Request | None:
        """Return the first that was set aside and may have its last token now."""
        self._released = next((each for each in self._held if self._may_finish(each)), None)
        if self._released is not None:
            self._is_reserved = False
        return self._released

    def _may_finish(self, request: Request) -> bool:
        """Tell whether one that was set aside still runs, and need not wait within its class."""
        is_running = request.status is RequestStatus.RUNNING
        has_room = self._tokens.most[request.traffic_class] > 0
        return is_running and has_room and not self.keeps_last(request)

    def _is_over(self) -> bool:
        """Tell whether nothing can start any more, and no prompt is under way."""
        return not self._under_way and self._closures.has_closed_all

    def _crowding(self) -> Mask | None:
        """Return the flows that go last in their classes, bool[flows]; None if there are none."""
        crowding = self._flows.crowding(self._step.now_ns)
        if crowding is not None:
            crowding[[each.flow for each in self._prompts() if each in self._flows.sworn]] = False
        return crowding

    def _due_ns(self, reasons: Reasons) -> Times:
        """Return when the head of each flow is due, int64[flows]: NOBODY_NS without one."""
        due: Times = np.where(reasons, NOBODY_NS, self._flows.due_ns)
        for flow, requests in self._under_way.items():
            due[flow] = min(int(due[flow]), due_ns(requests[-1]))
        return due

    def _next_flow(self) -> int:
        """Return the flow whose turn it is, or -1."""
        if not self._has_choice:
            return self._order.any_earliest()
        flow = self._privileged()
        return flow if flow >= 0 else self._within_windows()

    def _privileged(self) -> int:
        """Return the flow whose turn it is among strict and reserved classes, or -1."""
        self._is_reserved = False
        flow = self._order.earliest(self._tokens.shares.strict)
        if flow < 0:
            reserving = [c for c in self._tokens.shares.reserving if self._has_reserve(c)]
            flow = self._order.earliest(reserving)
            self._is_reserved = flow >= 0
        return flow

    def _has_reserve(self, traffic_class: int) -> bool:
        """Tell whether a class is to have some of its reserve now."""
        left_ns = self._order.first_ns[traffic_class] - self._step.now_ns
        tokens = self._tokens
        return tokens.reserved[traffic_class] > 0 and tokens.shares.needs_reserve(
            traffic_class, left_ns
        )

    def _within_windows(self) -> int:
        """Return the flow whose turn it is among all classes, or -1."""
        within = self._shares.classes_within()
        flow = self._order.earliest([c for c in within if c not in self._waiting_for_company])
        if flow < 0 and self._waiting_for_company:
            flow = self._order.earliest(within)
        return flow if flow >= 0 else self._extend()

    def _extend(self) -> int:
        """Return the flow whose turn it is though nobody within the windows can use the step."""
        can_use = self._order.with_head(but=self._capped())
        if not len(can_use.nonzero()[0]):
            return -1
        self._order.open_windows()
        flow = self._order.earliest(self._shares.classes_within())
        return flow if flow >= 0 else self._shares.least_served(can_use)

    def _nearest(self, head: Request) -> Request:
        """Return who goes before a waiting `head`, with more of its prompt in the cache."""
        if head.status is RequestStatus.RUNNING:
            return head
        return self._locality.first(self._step, head)

    def _block(self, request: Request, blocked: Blocked) -> None:
        """A waiting head does not start: close its flow, or more than that."""
        if self._locality.blocked(self._step, request):
            return
        closed = self._closures.add(request, blocked)
        if closed and not self._is_over():
            self._order.close(closed)
            for flow in self._under_way:  # these go on
                self._update(flow)

    def _capped(self) -> list[int]:
        """Return the classes that have had the most they may have of the step."""
        return [c for c in CLASSES if self._tokens.most[c] <= 0]

    def _update(self, flow: int) -> None:
        """Look at the head of `flow` again."""
        head = self._head(flow)
        self._order.update(flow, NOBODY_NS if head is None else due_ns(head))

    def _head(self, flow: int) -> Request | None:
        under_way = self._under_way.get(flow)
        while under_way and under_way[-1].status is not RequestStatus.RUNNING:
            under_way.pop()
        waiting = None if self._closures.keep_out(flow) else self._flows.head(flow)
        if not under_way:
            return waiting
        if waiting is None or due_ns(under_way[-1]) <= due_ns(waiting):
            return under_way[-1]
        return waiting
