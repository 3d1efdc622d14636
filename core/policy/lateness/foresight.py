"""When a waiting request will start, for who asks.

Owns: the two plays of the queue between which the truth lies as a rule, and what is told of them.
Never knows: who is refused: nobody is because somebody has asked. They are played when somebody
asks, and hold for FRESH_NS.

    quiet      nobody else comes
    crowded    others go on coming as they did lately; who is not served then is refused, or starts
               as late as it may

Told is the middle of both waits, by their ratio, and how soon and how late it may be: those before
it may be refused, or the machine be faster when others have gone; or still more may come. With
SOONER and LATER, four of five starts at twice the load that is carried lay between
(`scripts/bench/predictions`).
"""

from dataclasses import replace
from math import sqrt

from core.clock import NS_PER_MS, NS_PER_S
from core.policy.base import UNFORESEEN, Forecast, WaitingRoom
from core.policy.lateness.arrival_rates import ArrivalRates
from core.policy.lateness.fluid_replay import FlowQueue, FluidReplay, ReplaySettings
from core.policy.lateness.replay_input import ReplayInput
from core.policy.queues.flows import due_ns
from core.request import Request

FRESH_NS = 100 * NS_PER_MS
AHEAD_MIN_NS = 60 * NS_PER_S  # to look, if no promise reaches that far
AHEAD_MAX_NS = 1800 * NS_PER_S
SOONER = 0.6  # of the wait if nobody else comes
LATER = 1.2  # of the wait if others go on coming
ALL_REQUESTS = 1 << 20  # in one piece


class Foresight:
    """That of one policy."""

    def __init__(self, given: ReplayInput, arrivals: ArrivalRates) -> None:
        """Start without any play; what is given is looked at when somebody asks."""
        self._given = given
        self._arrivals = arrivals
        self._now_ns = -FRESH_NS
        self._quiet_ns: dict[int, int] = {}  # starts by request id
        self._crowded_ns: dict[int, int] = {}

    def of(self, request: Request, room: WaitingRoom, now_ns: int) -> Forecast:
        """Return what is known of a waiting `request`."""
        if now_ns - self._now_ns >= FRESH_NS:
            self._play(room, now_ns)
        quiet_ns = self._quiet_ns.get(request.request_id, 0)
        if quiet_ns <= now_ns:
            return UNFORESEEN
        soonest_ns = now_ns + int(SOONER * (quiet_ns - now_ns))
        crowded_ns = self._crowded_ns.get(request.request_id, 0)
        latest_ns = self._latest_ns(request, crowded_ns)
        if not latest_ns:
            return Forecast(quiet_ns, soonest_ns)
        waits_ns = (quiet_ns - now_ns, max(latest_ns, quiet_ns) - now_ns)
        return Forecast(
            start_ns=now_ns + int(sqrt(waits_ns[0] * waits_ns[1])),
            soonest_ns=soonest_ns,
            latest_ns=now_ns + int(LATER * waits_ns[1]),
            is_doubtful=not crowded_ns,
        )

    def _latest_ns(self, request: Request, crowded_ns: int) -> int:
        """Return when it starts if others go on coming, 0 = nobody can tell: who was promised a
        first token has begun when it must, or is refused.
        """
        if not request.ttft_deadline_ns:
            return crowded_ns
        return min(crowded_ns or due_ns(request), due_ns(request))

    def _play(self, room: WaitingRoom, now_ns: int) -> None:
        """Play both."""
        given = self._given
        queues = (given.read_flow(room, flow, now_ns) for flow in given.flows())
        quiet = [each for each in queues if each.queue]
        until_ns = _horizon_ns(quiet, now_ns)
        crowded = self._with_coming(quiet, now_ns, until_ns)
        settings = given.settings(now_ns)
        self._now_ns = now_ns
        self._quiet_ns = _starts_ns(settings, quiet)
        strict = replace(settings, class_reserves=given.strict_reserves())
        starts_ns = _starts_ns(strict, crowded)
        self._crowded_ns = {each: ns for each, ns in starts_ns.items() if ns < until_ns}

    def _with_coming(self, flows: list[FlowQueue], now_ns: int, until_ns: int) -> list[FlowQueue]:
        """Return the same flows, and others, with those that would come until then."""
        coming = self._arrivals.coming(now_ns, until_ns)
        waiting = {each.flow: each.queue for each in flows}
        return [
            self._given.flow_with(flow, waiting.get(flow, []) + coming.get(flow, []))
            for flow in sorted({*waiting, *coming})
        ]


def _horizon_ns(flows: list[FlowQueue], now_ns: int) -> int:
    """Return how far to look: until all that wait have started or are late."""
    last_ns = max((each.deadline_ns for flow in flows for each in flow.queue), default=0)
    return min(max(last_ns, now_ns + AHEAD_MIN_NS), now_ns + AHEAD_MAX_NS)


def _starts_ns(settings: ReplaySettings, flows: list[FlowQueue]) -> dict[int, int]:
    """Play to the end; return when each request starts that does, by its id."""
    replay = FluidReplay(settings, flows)
    while not replay.advance(ALL_REQUESTS):
        pass
    return {request.request_id: ns for request, ns in replay.verdicts.starts_ns.items()}
