"""Who will not miss the promised first token, whoever comes after.

Owns: the demand test at a request's arrival, who has passed it, and where those who come later may
stand. Never knows: how they are served.

    protected iff  Σ work that stands before it, and its own  ≤  R · (D − now − d)

R is a rate that the replicas seldom fall below, less the shares of the classes that go before its
own: with a shorter promise, or strictly first; d is a long step, the time by which those classes
may be ahead of their shares, and that for which its own may wait for company. Who comes later with
less time left, or with a longer prompt, would stand before it, out of what the others reckoned
with: where that makes one of them late by the same test, the place is behind it.

The order only rules inside the windows. A class that would leave its own is protected only within
its share. Where its own prompts, those under way among them, would take a tenant out of its window,
the others of its class may first be served until they have come near enough, those too that rest
and will be behind when they come back: that is work before it as well. A quarter of a window is
left for what the flow decodes meanwhile, which is charged, too.
"""

from bisect import bisect_left, insort

import numpy as np

from core.clock import NS_PER_MS, NS_PER_S
from core.policy.fairness.shares import Shares
from core.policy.lateness.deadlines import Demand
from core.policy.lateness.precedence import Precedence
from core.policy.lateness.prefill_rate import PrefillRate
from core.policy.lateness.under_way import UnderWay
from core.policy.limits import Limits
from core.policy.pacing.company import Company
from core.policy.queues.flows import Flows, due_ns
from core.policy.queues.place_queue import Place, PlaceQueue
from core.request import Request
from core.tenancy.classes import NUM_CLASSES, TrafficClass

LONGEST_STEP_NS = 500 * NS_PER_MS
RATE_SHARE = 0.7  # of the cautious rate: decodes beside prompts become more
WINDOW_SHARE = 0.75  # of a window: decodes are charged beside the prompts
MAX_LATER = 64  # protected ones that are looked at; who comes stands behind all others
UNKNOWN_NS = 1 << 62


class Protection:
    """The protected among those that wait."""

    def __init__(
        self, flows: Flows, shares: Shares, rate: PrefillRate, under_way: UnderWay
    ) -> None:
        """Start with nobody waiting."""
        self.protected: set[Request] = set()
        self._flows = flows
        self._shares = shares
        self._rate = rate
        self._under_way = under_way
        self._precedence = Precedence(shares.limits)
        self._of_all = Demand()  # what waits with a deadline
        self._of_class = [Demand() for _ in TrafficClass]
        self._flow_tokens: dict[int, int] = {}
        self._weights: list[float] = []  # of tenants; known until one comes or limits change
        self._weights_of: tuple[Limits, int] | None = None
        self._seen_ns = [UNKNOWN_NS] * NUM_CLASSES  # the last promise seen of each class
        self._company_ns = [0] * NUM_CLASSES  # for which each may wait for company
        self._by_deadline = PlaceQueue(_deadline)  # the protected
        self._places: list[list[tuple[int, int, Request]]] = [[] for _ in TrafficClass]  # the same

    def configure(self, company: Company) -> None:
        """Take over which classes go before others, and how long they may wait for company."""
        self._precedence = Precedence(self._shares.limits)
        self._company_ns = [company.longest_ns(each) for each in TrafficClass]

    def place_ns(self, request: Request, wanted_ns: int, now_ns: int) -> int:
        """Return where a new `request` may stand in the order, `wanted_ns` or later: so that nobody
        who is protected is late for it.
        """
        place_ns = wanted_ns
        for traffic_class in TrafficClass:
            if not self._precedence.goes_before(request.traffic_class, traffic_class):
                place_ns = self._behind(traffic_class, request, place_ns, now_ns)
        return place_ns

    def add(self, request: Request, now_ns: int) -> None:
        """Take in a waiting request with a deadline."""
        traffic_class, flow = request.traffic_class, request.flow
        self._seen_ns[traffic_class] = request.ttft_deadline_ns - request.arrival_ns
        self._of_all.add(due_ns(request), request.num_tokens)
        self._of_class[traffic_class].add(due_ns(request), request.num_tokens)
        self._flow_tokens[flow] = self._flow_tokens.get(flow, 0) + request.num_tokens
        if self._holds(request, now_ns):
            self.protect(request)

    def protect(self, request: Request) -> None:
        """Give a waiting request the word that nobody who comes will make it late."""
        self.protected.add(request)
        self._flows.num_protected[request.flow] += 1
        self._by_deadline.add(request)
        insort(self._places[request.traffic_class], _place(request))

    def remove(self, request: Request) -> None:
        """Forget it."""
        if request in self.protected:
            self.protected.remove(request)
            self._flows.num_protected[request.flow] -= 1
            self._by_deadline.remove(request)
            places = self._places[request.traffic_class]
            del places[bisect_left(places, _place(request))]
        self._of_all.add(due_ns(request), -request.num_tokens)
        self._of_class[request.traffic_class].add(due_ns(request), -request.num_tokens)
        self._flow_tokens[request.flow] -= request.num_tokens
        if not self._flow_tokens[request.flow]:
            del self._flow_tokens[request.flow]

    def earliest_ns(self) -> int:
        """Return the earliest deadline of a protected request, UNKNOWN_NS if there is none."""
        first = self._by_deadline.peek()
        return UNKNOWN_NS if first is None else first.ttft_deadline_ns

    def tenant_weights(self) -> list[float]:
        """Return the weights of all tenants seen, by index."""
        names, limits = self._flows.tenant_names, self._shares.limits
        known, version = self._weights_of, (limits, self._flows.num_tenants_seen)
        if known is None or known[0] is not limits or known[1] != version[1]:
            self._weights = [limits.tenant(name).weight for name in names]
            self._weights_of = version
        return self._weights

    def shortest_promise_ns(self) -> int:
        """Return the shortest time to the first token that was promised lately."""
        return min(self._seen_ns)

    def _holds(self, request: Request, now_ns: int) -> bool:
        """Apply the demand test."""
        place_ns, own_class = due_ns(request), request.traffic_class
        share, begin_ns = self._left_to(own_class, now_ns)
        possible = self._tokens_between(begin_ns, request.ttft_deadline_ns)
        due = self._tokens_until(place_ns)
        if due > share * possible:
            return False
        class_tokens = self._of_class[own_class].due_by(place_ns)
        class_tokens += self._under_way.tokens_until(place_ns)
        own_tokens = self._own_tokens(request)
        if not self._is_class_within(own_class, class_tokens, possible):
            return False
        return due + self._made_up_for(request, own_tokens) <= share * possible

    def _behind(
        self, traffic_class: TrafficClass, request: Request, wanted_ns: int, now_ns: int
    ) -> int:
        """Return `wanted_ns`, or the place behind the last protected one of a class that would be
        late with a new `request` before it; one of its own flow also if that takes its tenant out
        of the window.
        """
        places = self._places[traffic_class]
        first = bisect_left(places, (wanted_ns,))
        looked_at = max(first, len(places) - MAX_LATER)
        share, begin_ns = self._left_to(traffic_class, now_ns)
        behind, made_up_for = places[looked_at:], 0.0
        if any(later.flow == request.flow for _, _, later in behind):
            made_up_for = self._made_up_for(request, self._own_tokens(request) + request.num_tokens)
        for place_ns, _, later in reversed(behind):
            others = made_up_for if later.flow == request.flow else 0.0
            due = self._tokens_until(place_ns) + request.num_tokens + others
            if due > share * self._tokens_between(begin_ns, later.ttft_deadline_ns):
                return place_ns + 1
        return wanted_ns if looked_at == first else places[looked_at - 1][0] + 1

    def _own_tokens(self, request: Request) -> int:
        """Return the tokens of the flow of `request`, under way or waiting."""
        under_way = sum(each.num_tokens for each in self._under_way.of_flow(request.flow))
        return self._flow_tokens.get(request.flow, 0) + under_way

    def _tokens_until(self, place_ns: int) -> int:
        """Return the tokens that stand up to a place in the order, under way or waiting."""
        return self._under_way.tokens_until(place_ns) + self._of_all.due_by(place_ns)

    def _tokens_between(self, begin_ns: int, end_ns: int) -> float:
        """Return how many tokens can be computed meanwhile; it may be negative."""
        return RATE_SHARE * self._rate.cautious() * (end_ns - begin_ns) / NS_PER_S

    def _left_to(self, traffic_class: TrafficClass, now_ns: int) -> tuple[float, int]:
        """Return the share of the rate that others leave to a class, and from when on at the latest
        it has that.
        """
        begin_ns = now_ns + LONGEST_STEP_NS + self._company_ns[traffic_class]
        if self._precedence.waits_for_windows[traffic_class]:
            tokens = self._shares.class_window / max(1.0, self._shares.book.prices.prefill_token)
            begin_ns += int(tokens / max(1.0, self._rate.total()) * NS_PER_S)
        return self._precedence.left[traffic_class], begin_ns

    def _is_class_within(
        self, traffic_class: TrafficClass, class_tokens: int, possible: float
    ) -> bool:
        """Tell whether a class stays in its window, or needs no more than its share; `possible`
        tokens can be computed until the deadline.
        """
        shares, price = self._shares, self._shares.book.prices.prefill_token
        weights = [shares.limits.of(each).weight for each in TrafficClass]
        own = weights[traffic_class]
        most = max(
            WINDOW_SHARE * shares.class_window,
            possible * price * self._precedence.share(traffic_class) * max(weights) / own,
        )
        lead = shares.class_lead(traffic_class)
        return lead + class_tokens * price * max(weights) / own <= most

    def _made_up_for(self, request: Request, own_tokens: int) -> float:
        """Return how many tokens the other tenants of its class can be served first because its own
        would be out of its window: up to that lead all may catch up, wherever they are now.
        """
        shares, weights = self._shares, np.array(self.tenant_weights())
        units = shares.book.prices.prefill_token * weights.max() / weights  # of a token
        lead = shares.over_share(request.flow) + own_tokens * units[request.tenant_index]
        behind = shares.behind(request.traffic_class)
        missing = np.maximum(lead - WINDOW_SHARE * shares.tenant_window + behind, 0.0) / units
        missing[request.tenant_index] = 0.0
        return float(missing.sum())


def _deadline(request: Request) -> Place:
    return (request.ttft_deadline_ns, request.order)


def _place(request: Request) -> tuple[int, int, Request]:
    return (due_ns(request), request.order, request)
