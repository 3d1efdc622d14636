"""What becomes of the queue if nobody else comes: the order of service played ahead of time.

Owns: the play. Never knows: steps, memory, what is done with the result. Prompts, those under way
among them, are served one after the other at one rate, in the order that shares and start times
give: first a class that has had less than its reserve; then of the classes within their window, of
their tenants within theirs, the head that must start first. Where one would not be done in time
even at a somewhat higher rate, one of its flow that would not be in time behind it either is left
out and takes no time: the longest so far (Moore and Hodgson 1968) of the quarter of lengths of
which the fewest were refused. More arrivals, or a lower rate, only make things worse: there is no
room for those that are left out, unless others give theirs up.

It may be told of some that are yet to come (`arrival_rates`): they wait from then on, and a flow or
a class that had nobody before has saved nothing up meanwhile but a window.

It is played in pieces of a few prompts, so that nothing waits for it.
"""

import heapq
from dataclasses import dataclass, field

from core.clock import NS_PER_S
from core.request import Request
from core.tenancy.classes import NUM_CLASSES

OPTIMISM = 1.1  # the rate may turn out higher by this factor


@dataclass(frozen=True, slots=True)
class Queued:
    """A request as the play sees it, that waits or is yet to come."""

    request: Request | None  # None: it is not known yet
    num_tokens: int  # to compute
    start_by_ns: int
    deadline_ns: int  # of the first token; 0 = none
    may_be_shed: bool
    quarter: int = 0  # of lengths
    come_ns: int = 0  # when it begins to wait


@dataclass(frozen=True, slots=True)
class Late:
    """A request that will not make it."""

    request: Request
    predicted_ns: int  # when its first token would come


@dataclass(slots=True)
class FlowQueue:
    """The first requests of a flow, and where it stands."""

    flow: int
    weight: float
    queue: list[Queued]
    lead_tokens: float = 0.0  # service ahead of the least served tenant of its class
    num_played: int = 0
    is_absent: bool = False  # the next one is yet to come
    served: list[Queued] = field(default_factory=list)  # those played that may still be left out

    @property
    def head(self) -> Queued:
        """The first that was not played."""
        return self.queue[self.num_played]

    @property
    def has_more(self) -> bool:
        """Whether not all were played."""
        return self.num_played < len(self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Rates and windows at the beginning of the play."""

    now_ns: int
    tokens_per_s: float
    class_weights: tuple[float, ...]
    class_leads: tuple[float, ...]  # service ahead of the least served class, tokens
    class_window_tokens: float
    class_reserves: tuple[float, ...]  # shares of the rate that classes get first
    tenant_window_tokens: float
    refusals: tuple[float, ...] = (0.0,)  # lately, by quarter of lengths: shares, for what may be
    refusal: float = 0.01  # what one more adds


@dataclass(slots=True)
class Verdicts:
    """What the play has shown."""

    late: list[Late] = field(default_factory=list)
    shares: dict[int, list[float]] = field(default_factory=dict)
    """By class: predicted times to the first token, as shares of the promise."""
    starts_ns: dict[Request, int] = field(default_factory=dict)
    """When those that are not late will begin."""


class _ClassPlay:
    """The flows of one class: those within the window by latest start, the others by lead.

    Leads only grow, and so does the least of them; a heap's stale entry is put right when it comes
    to the top.
    """

    def __init__(self, flows: list[FlowQueue], window: float) -> None:
        self._window = window
        self.flows = flows
        self._least: list[tuple[float, int]] = []
        self._within: list[tuple[int, int]] = []
        self._ahead: list[tuple[float, int]] = []
        self._absent = [(each.head.come_ns, index) for index, each in enumerate(flows)]
        for each in flows:
            each.is_absent = True
        heapq.heapify(self._absent)

    @property
    def next_come_ns(self) -> int | None:
        """When the next flow comes that has nobody waiting; None = there is none."""
        return self._absent[0][0] if self._absent else None

    @property
    def has_waiting(self) -> bool:
        """Whether any flow has somebody who waits."""
        return self._floor() is not None

    def let_in(self, now_ns: int) -> None:
        """Let those flows take part whose next one has come by now."""
        while self._absent and self._absent[0][0] <= now_ns:
            _, index = heapq.heappop(self._absent)
            flow, floor = self.flows[index], self._floor()
            if flow.head.come_ns and floor is not None:
                flow.lead_tokens = max(flow.lead_tokens, floor - self._window)
            flow.is_absent = False
            heapq.heappush(self._least, (flow.lead_tokens, index))
            heapq.heappush(self._ahead, (flow.lead_tokens, index))

    def first_start_ns(self) -> int | None:
        """Return the latest start of the flow that is next; None = nobody waits."""
        if (floor := self._floor()) is None:
            return None
        while self._ahead and self._ahead[0][0] <= floor + self._window:
            _, index = heapq.heappop(self._ahead)
            heapq.heappush(self._within, (self.flows[index].head.start_by_ns, index))
        return self._within[0][0]

    def take(self) -> int:
        """Take out the flow that is next, and return its index; `put_back` follows."""
        return heapq.heappop(self._within)[1]

    def put_back(self, index: int, now_ns: int) -> None:
        """Let the rest of a flow wait for its next turn, or until somebody has come."""
        flow = self.flows[index]
        if not flow.has_more:
            return
        flow.is_absent = flow.head.come_ns > now_ns
        if flow.is_absent:
            heapq.heappush(self._absent, (flow.head.come_ns, index))
        else:
            heapq.heappush(self._ahead, (flow.lead_tokens, index))

    def _floor(self) -> float | None:
        while self._least:
            lead, index = self._least[0]
            flow = self.flows[index]
            if not flow.has_more or flow.is_absent:
                heapq.heappop(self._least)
            elif flow.lead_tokens > lead:
                heapq.heapreplace(self._least, (flow.lead_tokens, index))
            else:
                return lead
        return None


class FluidReplay:
    """One play."""

    def __init__(self, settings: ReplaySettings, flows: list[FlowQueue]) -> None:
        """Begin; each of `flows` has somebody waiting."""
        self.verdicts = Verdicts()
        self._settings = settings
        self._elapsed_ns = 0
        self._leads = list(settings.class_leads)
        self._served = [0] * NUM_CLASSES
        self._refusals = list(settings.refusals)
        by_class: list[list[FlowQueue]] = [[] for _ in range(NUM_CLASSES)]
        for flow in flows:
            by_class[flow.flow % NUM_CLASSES].append(flow)
        self._classes = [_ClassPlay(each, settings.tenant_window_tokens) for each in by_class]
        for play in self._classes:
            play.let_in(settings.now_ns)
        self._are_all_here = all(play.next_come_ns is None for play in self._classes)

    def advance(self, num_requests: int) -> bool:
        """Play up to `num_requests` more; True = the end is reached."""
        for _ in range(num_requests):
            traffic_class = self._next_class()
            if traffic_class is None:
                return True
            self._play(traffic_class)
        return False

    def _next_class(self) -> int | None:
        """Return the class that is served next."""
        if not self._are_all_here:
            self._let_in()
        starts = [each.first_start_ns() for each in self._classes]
        waiting = [(c, start) for c, start in enumerate(starts) if start is not None]
        if not waiting:
            return None
        reserved = [(start, c) for c, start in waiting if self._is_below_reserve(c)]
        if reserved:
            return min(reserved)[1]
        limit = min(self._leads[c] for c, _ in waiting) + self._settings.class_window_tokens
        return min((start, c) for c, start in waiting if self._leads[c] <= limit)[1]

    def _let_in(self) -> None:
        """Let in who has come by now, or the next one, if nobody is there."""
        coming = [(ns, c) for c in range(NUM_CLASSES) if (ns := self._classes[c].next_come_ns)]
        if coming and not any(play.has_waiting for play in self._classes):
            self._elapsed_ns = max(self._elapsed_ns, min(coming)[0] - self._settings.now_ns)
        now_ns = self._settings.now_ns + self._elapsed_ns
        for come_ns, traffic_class in coming:
            if come_ns <= now_ns:
                self._wake(traffic_class)
                self._classes[traffic_class].let_in(now_ns)

    def _wake(self, traffic_class: int) -> None:
        """Let a class that had nobody waiting save nothing up."""
        if self._classes[traffic_class].has_waiting:
            return
        leads = [self._leads[c] for c in range(NUM_CLASSES) if self._classes[c].has_waiting]
        least = min(leads, default=self._leads[traffic_class])
        self._leads[traffic_class] = max(self._leads[traffic_class], least)

    def _is_below_reserve(self, traffic_class: int) -> bool:
        reserve = self._settings.class_reserves[traffic_class]
        due = reserve * self._settings.tokens_per_s * self._elapsed_ns / NS_PER_S
        return reserve > 0 and self._served[traffic_class] <= due

    def _play(self, traffic_class: int) -> None:
        """Serve the head of the flow that is next; if it is late leave one out."""
        play = self._classes[traffic_class]
        index = play.take()
        flow = play.flows[index]
        queued = flow.head
        flow.num_played += 1
        begin_ns = self._elapsed_ns
        self._note_share(queued, traffic_class, begin_ns + self._time_ns(queued.num_tokens))
        if queued.request is not None:
            self.verdicts.starts_ns[queued.request] = self._settings.now_ns + begin_ns
        self._count(flow, queued.num_tokens)
        if queued.may_be_shed:
            flow.served.append(queued)
            while flow.served and self._is_late(queued, self._elapsed_ns):
                left_out = self._leave_out(flow)
                if left_out is queued:
                    break
        play.put_back(index, self._settings.now_ns + self._elapsed_ns)

    def _leave_out(self, flow: FlowQueue) -> Queued:
        """Take the time of one that was served back, and return it."""
        end_ns = self._elapsed_ns
        late = [each for each in reversed(flow.served) if self._is_late(each, end_ns)]
        left_out = min(late, key=lambda each: (self._refusals[each.quarter], -each.num_tokens))
        flow.served.remove(left_out)
        self._refusals[left_out.quarter] += self._settings.refusal
        self._count(flow, -left_out.num_tokens)
        if left_out.request is not None:
            del self.verdicts.starts_ns[left_out.request]
            predicted_ns = self._settings.now_ns + end_ns
            self.verdicts.late.append(Late(left_out.request, predicted_ns))
        return left_out

    def _count(self, flow: FlowQueue, num_tokens: int) -> None:
        """Serve so many tokens of a flow, or take them back."""
        traffic_class = flow.flow % NUM_CLASSES
        self._elapsed_ns += self._time_ns(num_tokens)
        self._served[traffic_class] += num_tokens
        flow.lead_tokens += num_tokens / flow.weight
        self._leads[traffic_class] += num_tokens / self._settings.class_weights[traffic_class]

    def _is_late(self, queued: Queued, elapsed_ns: int) -> bool:
        at_best_ns = self._settings.now_ns + int(elapsed_ns / OPTIMISM)
        return 0 < queued.deadline_ns < at_best_ns

    def _note_share(self, queued: Queued, traffic_class: int, elapsed_ns: int) -> None:
        if queued.deadline_ns and queued.request is not None:
            arrival_ns = queued.request.arrival_ns
            promised_ns = max(1, queued.deadline_ns - arrival_ns)
            share = (self._settings.now_ns + elapsed_ns - arrival_ns) / promised_ns
            self.verdicts.shares.setdefault(traffic_class, []).append(share)

    def _time_ns(self, num_tokens: int) -> int:
        return int(num_tokens / self._settings.tokens_per_s * NS_PER_S)
