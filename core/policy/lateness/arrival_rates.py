"""Who would come if others went on coming as they did lately.

Owns: for each flow the prompts and tokens that came lately, in a moving average, and the promise of
the last one. Never knows: who waits, what is done with those that it makes up. These come evenly
spaced, as long as those were on the average; where they would be too many, one stands for several.
"""

from dataclasses import dataclass
from math import exp

from core.clock import NS_PER_S
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.fluid_replay import Queued
from core.policy.queues.flows import due_ns
from core.request import Request
from core.tenancy.classes import NUM_CLASSES

MEMORY_NS = 10 * NS_PER_S
YOUNGEST_NS = NS_PER_S  # before, nobody knows a rate
COMING_MAX = 512  # that are made up


@dataclass(slots=True)
class _Flow:
    """What came lately: older ones count exp(-age / MEMORY_NS)."""

    num_requests: float = 0.0
    num_tokens: float = 0.0
    seen_ns: int = 0
    until_start_ns: int = 0  # of the last one: from its arrival until it was to start
    promise_ns: int = 0  # and to its first token; 0 = none
    may_be_shed: bool = False  # if that cannot be kept

    def faded(self, now_ns: int) -> float:
        """Return what counts now of what counted when the last one came."""
        return exp(-(now_ns - self.seen_ns) / MEMORY_NS)


class ArrivalRates:
    """Those of all flows."""

    def __init__(self, exemptions: Exemptions) -> None:
        """Start with nobody seen; `exemptions` tell who may be refused."""
        self._exemptions = exemptions
        self._flows: dict[int, _Flow] = {}
        self._first_ns = 0  # when the first of all came

    def came(self, request: Request, now_ns: int) -> None:
        """Count a new request."""
        self._first_ns = self._first_ns or now_ns
        flow = self._flows.setdefault(request.flow, _Flow())
        faded = flow.faded(now_ns)
        flow.num_requests = flow.num_requests * faded + 1
        flow.num_tokens = flow.num_tokens * faded + request.num_tokens
        flow.seen_ns = now_ns
        flow.until_start_ns = due_ns(request) - request.arrival_ns
        flow.promise_ns = max(0, request.ttft_deadline_ns - request.arrival_ns)
        flow.may_be_shed = flow.promise_ns > 0 and self._exemptions.may_be_refused(request)

    def forget_tenant(self, index: int) -> None:
        """Let nobody of this tenant have come."""
        for traffic_class in range(NUM_CLASSES):
            self._flows.pop(index * NUM_CLASSES + traffic_class, None)

    def coming(self, now_ns: int, until_ns: int) -> dict[int, list[Queued]]:
        """Return those that would come until then, by flow, in the order in which they come."""
        expected = {index: self._expected(index, now_ns, until_ns) for index in self._flows}
        share = min(1.0, COMING_MAX / max(1.0, sum(expected.values())))
        counts = {index: round(share * number) for index, number in expected.items()}
        return {
            index: self._spaced(index, count, expected[index], now_ns, until_ns)
            for index, count in counts.items()
            if count
        }

    def _expected(self, index: int, now_ns: int, until_ns: int) -> float:
        flow = self._flows[index]
        age_ns = max(now_ns - self._first_ns, YOUNGEST_NS)
        seen_ns = MEMORY_NS * (1 - exp(-age_ns / MEMORY_NS))
        return flow.num_requests * flow.faded(now_ns) / seen_ns * (until_ns - now_ns)

    def _spaced(
        self, index: int, count: int, expected: float, now_ns: int, until_ns: int
    ) -> list[Queued]:
        flow = self._flows[index]
        num_tokens = round(flow.num_tokens / flow.num_requests * expected / count)
        gap_ns = (until_ns - now_ns) / count
        times_ns = [now_ns + int((number + 0.5) * gap_ns) for number in range(count)]
        return [
            Queued(
                request=None,
                num_tokens=num_tokens,
                start_by_ns=come_ns + flow.until_start_ns,
                deadline_ns=come_ns + flow.promise_ns if flow.promise_ns else 0,
                may_be_shed=flow.may_be_shed,
                come_ns=come_ns,
            )
            for come_ns in times_ns
        ]
