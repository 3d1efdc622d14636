"""When a waiting request will start: what the two plays tell, and that asking changes nothing."""

from collections.abc import Callable

import numpy as np
import pytest

from core.clock import NS_PER_S
from core.engine_core import policy_settings
from core.policy.base import UNFORESEEN, Forecast, WaitingRoom
from core.policy.headrace import HeadracePolicy
from core.policy.lateness.arrival_rates import ArrivalRates
from core.policy.lateness.exemptions import Exemptions
from core.policy.lateness.fluid_replay import FlowQueue, Queued, ReplaySettings
from core.policy.lateness.foresight import LATER, SOONER, Foresight
from core.policy.lateness.replay_input import ReplayInput
from core.policy.limits import Limits
from core.policy.queues.flows import Flows, due_ns
from core.request import Request
from core.simulation.history import History
from core.simulation.policies import prepare
from core.simulation.run import Simulation
from core.simulation.workload import Promise, Workload
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from tests.support.loads.workloads import make_workload, simulated_settings
from tests.support.scheduler.checked_engine import make_request

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.BATCH
NOW_NS = 100 * NS_PER_S
FAR = 1e9


class Room:
    """Nothing is cached, and nobody is refused."""

    def shed(self, *_: object) -> None:
        raise AssertionError("asking refuses nobody")

    def hit_tokens(self, request: Request) -> int:
        return 0


class QueueOf(ReplayInput):
    """The queue of one class, 1,000 tokens a second."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.num_reads = 0

    def flows(self) -> list[int]:
        return [int(SLOW)]

    def read_flow(self, room: WaitingRoom, flow: int, now_ns: int) -> FlowQueue:
        self.num_reads += 1
        queue = [
            Queued(each, each.num_tokens, due_ns(each), each.ttft_deadline_ns, may_be_shed=True)
            for each in self.requests
        ]
        return self.flow_with(flow, queue)

    def flow_with(self, flow: int, requests: list[Queued]) -> FlowQueue:
        return FlowQueue(flow, 1.0, sorted(requests, key=lambda each: each.start_by_ns))

    def settings(self, now_ns: int) -> ReplaySettings:
        return ReplaySettings(
            now_ns=now_ns,
            tokens_per_s=1000.0,
            class_weights=(1.0,) * NUM_CLASSES,
            class_leads=(0.0,) * NUM_CLASSES,
            class_window_tokens=FAR,
            class_reserves=(0.0,) * NUM_CLASSES,
            tenant_window_tokens=FAR,
        )

    def strict_reserves(self) -> tuple[float, ...]:
        return (0.0,) * NUM_CLASSES


def waiting(number: int, *, ttft_s: float = 0.0) -> Request:
    """Return a prompt of a second."""
    request = make_request(number, 1000, arrival_ns=NOW_NS + number, traffic_class=SLOW)
    if ttft_s:
        request.ttft_deadline_ns = NOW_NS + int(ttft_s * NS_PER_S)
        request.start_by_ns = request.ttft_deadline_ns - NS_PER_S
    return request


def arrivals(per_second: int, kind: TrafficClass = FAST) -> ArrivalRates:
    """Return a past in which so many prompts of a tenth of a second came, due in a second."""
    rates = ArrivalRates(Exemptions(Limits(), Flows()))
    for number in range(40 * per_second):
        now_ns = NOW_NS - 40 * NS_PER_S + number * NS_PER_S // per_second
        request = make_request(1000 + number, 100, arrival_ns=now_ns, traffic_class=kind)
        request.start_by_ns = request.ttft_deadline_ns = now_ns + NS_PER_S
        rates.came(request, now_ns)
    return rates


def told(queue: list[Request], rates: ArrivalRates) -> list[Forecast]:
    """Return what is told of all of a queue."""
    foresight = Foresight(QueueOf(queue), rates)
    return [foresight.of(each, Room(), NOW_NS) for each in queue]


def waits_s(forecast: Forecast) -> tuple[float, float, float]:
    """Return what is told as waits: soonest, start, latest."""
    moments = (forecast.soonest_ns, forecast.start_ns, forecast.latest_ns)
    soonest, start, latest = ((each - NOW_NS) / NS_PER_S for each in moments)
    return soonest, start, latest


def test_where_nobody_comes_the_queue_alone_tells() -> None:
    """Each starts when those before it are done, about so."""
    queue = [waiting(n, ttft_s=50.0 + n) for n in range(5)]
    for n, forecast in enumerate(told(queue, arrivals(0))[1:], 1):
        assert waits_s(forecast) == pytest.approx((SOONER * n, n, LATER * n))
        assert not forecast.is_doubtful


def test_who_is_overtaken_by_those_who_come_is_told_so() -> None:
    """Half of the machine goes to others that are due before: twice the wait, or √2 of it."""
    queue = [waiting(n, ttft_s=50.0 + n) for n in range(5)]
    soonest, start, latest = waits_s(told(queue, arrivals(5))[4])
    assert soonest == SOONER * 4
    assert latest == pytest.approx(LATER * 8, rel=0.2)
    assert start == pytest.approx(4 * 2**0.5, rel=0.1)


def test_of_who_would_be_refused_if_others_went_on_coming_it_is_doubted() -> None:
    """They take all of the machine: who has to start in five seconds starts by then, or never."""
    queue = [waiting(n, ttft_s=6.0) for n in range(3)]
    forecast = told(queue, arrivals(30))[2]
    assert forecast.is_doubtful
    assert waits_s(forecast) == pytest.approx((SOONER * 2, 10**0.5, LATER * 5))


def test_of_who_was_promised_nothing_nobody_tells_how_late_it_may_be() -> None:
    """As long as others take all of the machine."""
    queue = [waiting(n) for n in range(3)]
    forecast = told(queue, arrivals(30))[2]
    assert forecast == Forecast(NOW_NS + 2 * NS_PER_S, NOW_NS + int(SOONER * 2 * NS_PER_S))


def test_who_is_not_in_the_play_is_told_nothing() -> None:
    """It has come since, or is left out, or stands too far behind."""
    foresight = Foresight(QueueOf([waiting(0)]), arrivals(0))
    assert foresight.of(waiting(1), Room(), NOW_NS) is UNFORESEEN


def test_one_play_answers_many_questions() -> None:
    """It holds for a tenth of a second."""
    queue = QueueOf([waiting(n) for n in range(3)])
    foresight = Foresight(queue, arrivals(0))
    for elapsed_s in (0.0, 0.05, 0.09):
        foresight.of(queue.requests[2], Room(), NOW_NS + int(elapsed_s * NS_PER_S))
    assert queue.num_reads == 1
    foresight.of(queue.requests[2], Room(), NOW_NS + NS_PER_S)
    assert queue.num_reads == 2


def test_who_has_to_wait_for_its_budget_is_not_told_an_earlier_start() -> None:
    """All moments that are told are moved, and one that is not stays untold."""
    assert Forecast(10, 5, 30).not_before(20) == Forecast(20, 20, 30)
    assert UNFORESEEN.not_before(20) == Forecast(20, 20, 0)


class Asked(HeadracePolicy):
    """Asked about all that wait at every look, or never."""

    is_asked = True

    def watch(self) -> None:
        """Begin to remember what was said last of each before it started."""
        self.present: dict[Request, Forecast] = {}
        self.last_told: list[tuple[Request, Forecast]] = []

    def add(self, request: Request) -> None:
        super().add(request)
        self.present[request] = UNFORESEEN

    def remove(self, request: Request) -> None:
        super().remove(request)
        self.last_told.append((request, self.present.pop(request)))

    def tend(self, room: WaitingRoom, now_ns: int) -> None:
        super().tend(room, now_ns)
        for request in self.present if self.is_asked else ():
            wait = self.why(request)
            self.present[request] = wait.forecast if wait else UNFORESEEN


def run(workload: Workload, *, is_asked: bool = True) -> tuple[History, Asked]:
    """Run to the end."""
    simulated = simulated_settings(max_num_batched_tokens=4096)
    settings, _ = prepare("headrace", simulated)
    policy = Asked(policy_settings(settings.engine), settings.hardware)
    policy.is_asked = is_asked
    policy.watch()
    return Simulation(settings, workload, policy).run(), policy


def crowd(arrival_of: Callable[[int], float], count: int) -> Workload:
    """Return prompts of 800 tokens, promised a first token within a second."""
    rows = [(arrival_of(n), 800, 1) for n in range(count)]
    return make_workload(rows, classes=[FAST] * count, promises={FAST: Promise(1.0, 0.05)})


def test_an_engine_tells_its_requests_when_they_start() -> None:
    """About as many come as can be served: nine of ten start no further from what was told than
    a full step takes, since all that fit into a step start at once.
    """
    _, policy = run(crowd(lambda n: 75.0 * n, 100))
    errors_ns = [
        abs(forecast.start_ns - request.first_start_ns)
        for request, forecast in policy.last_told
        if forecast.start_ns and request.first_start_ns
    ]
    assert len(errors_ns) >= 20
    assert np.quantile(errors_ns, 0.9) < 0.42 * NS_PER_S, errors_ns


def test_asking_changes_nothing() -> None:
    """A crowd of which many are refused is served to the nanosecond as if nobody had asked."""
    (asked, policy), (left_alone, _) = (
        run(crowd(lambda n: 30.0 * n, 150), is_asked=is_asked) for is_asked in (True, False)
    )
    assert any(forecast.start_ns for _, forecast in policy.last_told)
    assert (asked.status != asked.status[0]).any()
    np.testing.assert_array_equal(asked.finished_ns, left_alone.finished_ns)
    np.testing.assert_array_equal(asked.step_end_ns, left_alone.step_end_ns)
