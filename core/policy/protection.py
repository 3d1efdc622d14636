"""Who will not miss the promised first token, whoever comes after.

Owns: the demand test at a request's arrival, and who has passed it. Never knows: how it is served.

    protected iff  Σ work due until D  ≤  R · (D − now − d)      for its deadline D, and for later
                                                                 ones of its class that it delays

R is a rate that the replicas seldom fall below, less the shares of the classes with shorter
promises, whose requests still to come are due earlier; d is a long step, the time by which those
classes may be ahead of their shares, and that for which its own may wait for company. Earliest
deadline first meets every deadline if any order does (Dertouzos 1974), but it only rules inside the
windows: a flow that its own prompts would take out of its window, those under way among them, is
protected only within the rate of its share, less what it is ahead. A quarter of a window is left
for what the flow decodes meanwhile, which is charged as well.
"""

from core.clock import NS_PER_MS, NS_PER_S
from core.policy.company import Company
from core.policy.deadlines import Demand
from core.policy.flows import Flows
from core.policy.limits import Limits
from core.policy.place_queue import Place, PlaceQueue
from core.policy.prefill_rate import PrefillRate
from core.policy.shares import Shares
from core.request import Request
from core.tenancy import NUM_CLASSES, TrafficClass

LONGEST_STEP_NS = 500 * NS_PER_MS
RATE_SHARE = 0.7  # of the cautious rate: decodes beside prompts become more
WINDOW_SHARE = 0.75  # of a window: decodes are charged beside the prompts
MAX_LATER = 64  # deadlines looked at; with more of them nobody is protected
UNKNOWN_NS = 1 << 62


class Protection:
    """The protected among those that wait."""

    def __init__(self, flows: Flows, shares: Shares, rate: PrefillRate) -> None:
        """Start with nobody waiting."""
        self.protected: set[Request] = set()
        self._flows = flows
        self._shares = shares
        self._rate = rate
        self._demands = [Demand() for _ in TrafficClass]
        self._flow_tokens: dict[int, int] = {}  # of all that wait with a deadline
        self._weights: list[float] = []  # of tenants; known until one comes or limits change
        self._weights_of: tuple[Limits, int, int] | None = None
        self._promise_ns = [UNKNOWN_NS] * NUM_CLASSES  # the last seen of each class
        self._company_ns = [0] * NUM_CLASSES  # for which each may wait for company
        self._by_deadline = PlaceQueue(_deadline)  # the protected

    def configure(self, company: Company) -> None:
        """Take over how long classes may wait for company."""
        self._company_ns = [company.longest_ns(each) for each in TrafficClass]

    def add(self, request: Request, now_ns: int, tokens_ahead: int, tokens_begun: int = 0) -> None:
        """Take in a waiting request with a deadline; of prompts under way `tokens_ahead` stand
        before it, and `tokens_begun` are of its own flow.
        """
        traffic_class, flow = request.traffic_class, request.flow
        self._promise_ns[traffic_class] = request.ttft_deadline_ns - request.arrival_ns
        self._demands[traffic_class].add(request.ttft_deadline_ns, request.num_tokens)
        self._flow_tokens[flow] = self._flow_tokens.get(flow, 0) + request.num_tokens
        if self._holds(request, now_ns, tokens_ahead, tokens_begun):
            self.protected.add(request)
            self._flows.num_protected[flow] += 1
            self._by_deadline.add(request)

    def remove(self, request: Request) -> None:
        """Forget it."""
        if request in self.protected:
            self.protected.remove(request)
            self._flows.num_protected[request.flow] -= 1
            self._by_deadline.remove(request)
        self._demands[request.traffic_class].remove(request.ttft_deadline_ns, request.num_tokens)
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
        known, version = self._weights_of, (limits, len(names), names.count(""))
        if known is None or known[0] is not limits or known[1:] != version[1:]:
            self._weights = [limits.tenant(name).weight for name in names]
            self._weights_of = version
        return self._weights

    def shortest_promise_ns(self) -> int:
        """Return the shortest time to the first token that was promised lately."""
        return min(self._promise_ns)

    def _holds(self, request: Request, now_ns: int, tokens_ahead: int, tokens_begun: int) -> bool:
        """Apply the demand test."""
        rate = RATE_SHARE * self._rate.cautious()
        share, delay_ns = self._left_by_shorter(request.traffic_class)
        begin_ns = now_ns + LONGEST_STEP_NS + delay_ns + self._company_ns[request.traffic_class]
        demand = self._demands[request.traffic_class]
        deadlines = [(request.ttft_deadline_ns, demand.due_by(request.ttft_deadline_ns))]
        if demand.num_later(request.ttft_deadline_ns) > MAX_LATER:
            return False
        deadlines += demand.later(request.ttft_deadline_ns, MAX_LATER)
        for deadline_ns, own_class in deadlines:
            due = tokens_ahead + own_class + self._due_of_others(request, deadline_ns)
            if due > rate * share * (deadline_ns - begin_ns) / NS_PER_S:
                return False
        left_s = (request.ttft_deadline_ns - begin_ns) / NS_PER_S
        class_tokens, own_tokens = deadlines[0][1] + tokens_ahead, tokens_begun
        own_tokens += self._flow_tokens[request.flow]
        return self._is_within_share(request, class_tokens, own_tokens, rate * left_s)

    def _left_by_shorter(self, traffic_class: int) -> tuple[float, int]:
        """Return what classes with shorter promises leave, and how long they may be ahead."""
        promised = self._promise_ns[traffic_class]
        promises = zip(TrafficClass, self._promise_ns, strict=True)
        shorter = [self._class_share(each) for each, other in promises if other < promised]
        if not shorter:
            return 1.0, 0
        tokens = self._shares.class_window / max(1.0, self._shares.book.prices.prefill_token)
        ahead_s = tokens / max(1.0, self._rate.total())
        return max(0.0, 1 - sum(shorter)), int(ahead_s * NS_PER_S)

    def _class_share(self, traffic_class: TrafficClass) -> float:
        """Return what a class can have of the rate at the least."""
        limits = self._shares.limits
        weights = [limits.of(each).weight for each in TrafficClass]
        own = limits.of(traffic_class)
        return max(own.weight / sum(weights), own.reserved_step_fraction)

    def _due_of_others(self, request: Request, deadline_ns: int) -> int:
        own = self._demands[request.traffic_class]
        return sum(each.due_by(deadline_ns) for each in self._demands if each is not own)

    def _is_within_share(
        self, request: Request, class_tokens: int, own_tokens: int, possible: float
    ) -> bool:
        """Tell whether class and tenant stay in their windows, or need no more than their shares;
        `possible` tokens can be computed until the deadline.
        """
        shares, price = self._shares, self._shares.book.prices.prefill_token
        weights = [shares.limits.of(each).weight for each in TrafficClass]
        own = weights[request.traffic_class]
        most = max(
            WINDOW_SHARE * shares.class_window,
            possible * price * self._class_share(request.traffic_class) * max(weights) / own,
        )
        lead = int(shares.class_leads()[request.traffic_class])
        if lead + class_tokens * price * max(weights) / own > most:
            return False
        tenants = self.tenant_weights()
        units_per_token = price * max(tenants) / tenants[request.tenant_index]
        of_share = possible * price * max(tenants) / sum(tenants)
        most = max(WINDOW_SHARE * shares.tenant_window, of_share)
        return shares.over_share(request.flow) + own_tokens * units_per_token <= most


def _deadline(request: Request) -> Place:
    return (request.ttft_deadline_ns, request.order)
