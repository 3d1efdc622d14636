"""Who is refused early, as what, and who never is: the policy in virtual time on a round machine.

10 ms a step, 0.1 ms a prompt token, 1 ms a decode.
"""

from dataclasses import replace

import numpy as np
import pytest

from core.engine_core import policy_settings
from core.errors import RejectionReason
from core.policy.calibration import CalibratedCostModel
from core.policy.cost_model import CostBasis, StepWork
from core.policy.headrace import HeadracePolicy
from core.policy.limits import Limits
from core.policy.settings import PolicySettings
from core.request import Request, RequestStatus
from core.simulation.history import History
from core.simulation.metrics import request_times
from core.simulation.policies import prepare
from core.simulation.run import Simulation
from core.simulation.workload import START_NS, Promise, Workload
from core.tenancy.classes import ClassesConfig, TrafficClass
from core.tenancy.tenants import TenantConfig
from tests.support.loads.workloads import NS_PER_MS, make_workload, simulated_settings
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.BATCH
MAX_TOKENS = 4096  # of a step, as large as the policy thinks
PROMISES = {FAST: Promise(1.0, 0.05), SLOW: Promise(60.0, 0.4)}


class Watched(HeadracePolicy):
    """Remembers with which rejection each request ended."""

    def __init__(self, settings: PolicySettings, *, is_calibrated: bool = True) -> None:
        machine = simulated_settings().hardware
        super().__init__(settings, machine if is_calibrated else None)
        self.refused: dict[int, Request] = {}

    def ended(self, request: Request, now_ns: int) -> None:
        super().ended(request, now_ns)
        if request.rejection is not None:
            self.refused[request.request_id - 1] = request


def run(
    workload: Workload,
    limits: Limits | None = None,
    *,
    is_calibrated: bool = True,
    max_num_seqs: int = 64,
) -> tuple[History, Watched]:
    """Run to the end; return what happened, and who was refused."""
    limits = limits or Limits()
    simulated = simulated_settings(
        limits=limits, max_num_seqs=max_num_seqs, max_num_batched_tokens=MAX_TOKENS
    )
    settings, _ = prepare("headrace", simulated)
    policy = Watched(policy_settings(settings.engine), is_calibrated=is_calibrated)
    return Simulation(settings, workload, policy).run(), policy


def crowd(count: int, prompt: int = 2000, kind: TrafficClass = FAST) -> Workload:
    """Return `count` equal requests at time 0; two seconds of work are ten of 2,000 tokens."""
    rows = [(0.0, prompt, 1)] * count
    return make_workload(rows, classes=[kind] * count, promises=PROMISES)


def test_what_is_too_much_is_refused_at_once_and_the_rest_is_in_time() -> None:
    """Of twenty prompts of 0.19 s due in a second some can be served; most refusals come early. A
    tenth more than there is time for is tried all the same: five of 0.2 s would be.
    """
    history, policy = run(crowd(20, 1900))
    shed = history.status == RequestStatus.FINISHED_SHED
    assert 14 <= np.count_nonzero(shed) <= 17
    assert request_times(history).kept[~shed].all()
    assert np.median(history.finished_ns[shed]) <= START_NS + 300 * NS_PER_MS
    reasons = {request.rejection.reason for request in policy.refused.values() if request.rejection}
    assert reasons == {RejectionReason.SHED_PREDICTED}


def test_a_refusal_names_the_promise_and_when_to_come_back() -> None:
    """What it would take is more than what is left, and both are in the knob's unit."""
    _, policy = run(crowd(20))
    for request in policy.refused.values():
        rejection = request.rejection
        assert rejection is not None
        assert rejection.knob == "classes.interactive.ttft_ms"
        assert rejection.measured > rejection.threshold
        assert rejection.threshold <= 1000
        assert 100 <= rejection.retry_after_ms <= 60_000


def test_what_cannot_be_in_time_even_alone_is_infeasible() -> None:
    """3,900 of 12,000 tokens fit into a step of 400 ms: 1.2 s alone, due in a second."""
    workload = make_workload(
        [(0.0, 100, 1), (50.0, 3900 * 3, 1)], classes=[SLOW, FAST], promises=PROMISES
    )
    settings = simulated_settings(max_model_len=16384)
    chosen, policy = prepare("headrace", settings)
    history = Simulation(chosen, workload, policy).run()
    assert history.reason.tolist() == [0, RejectionReason.SHED_INFEASIBLE]
    assert history.finished_ns[1] <= START_NS + 60 * NS_PER_MS


def test_a_request_that_can_be_served_is_never_refused() -> None:
    """Prompts of 0.1 s every quarter of a second."""
    rows = [(250.0 * number, 1000, 5) for number in range(40)]
    history, policy = run(make_workload(rows, classes=[FAST] * 40, promises=PROMISES))
    assert policy.refused == {}
    assert request_times(history).kept.all()


@pytest.mark.parametrize("how", ["uncalibrated", "exempt", "unpromised"])
def test_who_is_not_refused(how: str) -> None:
    """Everybody without a cost model, a class that is not sheddable, a class without a promise."""
    classes = ClassesConfig()
    if how == "exempt":
        classes = replace(classes, interactive=replace(classes.interactive, sheddable=False))
    if how == "unpromised":
        classes = replace(classes, batch=replace(classes.batch, ttft_ms=0))
    workload = crowd(20, kind=SLOW if how == "unpromised" else FAST)
    if how == "unpromised":
        workload = workload.with_promises({})
    history, policy = run(workload, Limits(classes), is_calibrated=how != "uncalibrated")
    assert policy.refused == {}
    assert np.all(history.status == RequestStatus.FINISHED_STOPPED)


def test_a_tenant_within_its_budget_is_not_refused_by_prediction() -> None:
    """Of two tenants one has a token-rate budget: only the other one's prompts are refused."""
    tenants = {"t1": TenantConfig(name="t1", tokens_per_minute=10**6)}
    rows = [(0.0, 2000, 1)] * 20
    workload = make_workload(rows, tenants=[0, 1] * 10, classes=[FAST] * 20, promises=PROMISES)
    history, _ = run(workload, Limits(tenants=tenants))
    predicted = history.reason == RejectionReason.SHED_PREDICTED
    assert predicted[::2].any()
    assert not predicted[1::2].any()
    assert set(history.reason[1::2].tolist()) <= {0, RejectionReason.SHED_INFEASIBLE}


def test_the_lower_class_is_refused_first() -> None:
    """Both classes want all there is and are due alike: interactive weighs eight times as much."""
    alike = {FAST: Promise(3.0, 0.05), SLOW: Promise(3.0, 0.4)}
    rows = [(100.0 * number, 1800, 1) for number in range(200)]
    workload = make_workload(rows, classes=[FAST, SLOW] * 100, promises=alike)
    history, _ = run(workload)
    shed = history.status == RequestStatus.FINISHED_SHED
    assert np.count_nonzero(shed[1::2]) > 2 * np.count_nonzero(shed[::2])


def test_long_prompts_do_not_pay_for_short_ones() -> None:
    """In an overload of two kinds of prompts, ten times as long, both are refused alike."""
    random = np.random.default_rng(3)
    count = 600
    arrivals = np.cumsum(random.exponential(60.0, count)).tolist()
    prompts = random.choice([200, 2000], count).tolist()
    rows = list(zip(arrivals, prompts, [2] * count, strict=True))
    history, _ = run(make_workload(rows, classes=[FAST] * count, promises=PROMISES))
    shed, long = history.status == RequestStatus.FINISHED_SHED, np.array(prompts) == 2000
    rates = shed[long].mean(), shed[~long].mean()
    assert min(rates) > 0.1
    assert max(rates) <= 2 * min(rates), rates


def test_a_slow_past_locks_nobody_out() -> None:
    """After steps that lasted eight times too long, and a pause, all are served again."""
    workload = make_workload(
        [(2000.0 * i, 2000, 1) for i in range(8)], classes=[FAST] * 8, promises=PROMISES
    )
    basis = CostBasis(10e6, 1e5, 0.0, 0.0, 9e5)
    settings, policy = prepare("headrace", replace(simulated_settings(), basis=basis))
    simulation = Simulation(settings, workload, policy)
    model = policy.cost_model(0)
    assert isinstance(model, CalibratedCostModel)
    work = StepWork().with_prefill(512, 0)
    for _ in range(500):
        model.measured(work, 8 * basis.duration_ns(work))
    assert model.mixed.factor > 7
    assert request_times(simulation.run()).kept.all()


@pytest.mark.parametrize("limit", ["concurrency", "sequences"])
def test_a_neighbour_that_may_not_start_is_no_sign_of_a_slow_machine(limit: str) -> None:
    """One request of batch decodes for half a minute while the next waits for a limit of its own;
    a short prompt comes in between and is served.
    """
    tenants = {"t0": TenantConfig(name="t0", max_concurrency=1)} if limit == "concurrency" else {}
    classes = ClassesConfig()
    if limit == "sequences":
        classes = replace(classes, batch=replace(classes.batch, max_seqs=1))
    rows = [(0.0, 100, 2500), (0.0, 100, 10), (20_000.0, 100, 2)]
    workload = make_workload(
        rows, tenants=[0, 0, 1], classes=[SLOW, SLOW, FAST], promises={FAST: PROMISES[FAST]}
    )
    history, policy = run(workload, Limits(classes, tenants=tenants))
    assert policy.refused == {}
    assert request_times(history).kept[2]


def test_reserved_sequences_are_not_predicted_away() -> None:
    """Batch has all sequences for minutes and more of it waits: who has one reserved gets it."""
    classes = ClassesConfig()
    classes = replace(classes, interactive=replace(classes.interactive, reserved_seqs=1))
    rows = [(0.0, 100, 2500)] * 3 + [(20_000.0, 100, 2)]
    workload = make_workload(
        rows, tenants=[0, 0, 0, 1], classes=[SLOW] * 3 + [FAST], promises={FAST: PROMISES[FAST]}
    )
    history, policy = run(workload, Limits(classes), max_num_seqs=2)
    assert policy.refused == {}
    assert request_times(history).kept[3]


@pytest.mark.parametrize("pieces", range(4))
def test_an_executor_that_is_lost_ends_the_replay_that_is_under_way(pieces: int) -> None:
    """Nobody knows any more how fast prompts are computed; whoever waits goes on waiting."""
    classes = ClassesConfig()
    classes = replace(classes, interactive=replace(classes.interactive, max_seqs=0))
    settings = make_settings(
        policy="headrace", limits=Limits(classes=classes), max_num_batched_tokens=32
    )
    policy = HeadracePolicy(policy_settings(settings), CostBasis(2e6, 1e6, 0.0, 0.0, 0.0))
    engine = CheckedEngine(settings, policy=policy)
    engine.start()
    for number in range(1, 41):
        prompt = list(range(10, 110))
        engine.submit(
            engine.make_request(number, prompt, 20, tenant=f"t{number}", traffic_class=FAST)
        )
    while not policy._shedding._replays.is_under_way:
        engine.step()
    for _ in range(pieces):
        engine.clock.advance(NS_PER_MS)
        engine.tell()
    engine.kill()
    engine.start()
    for _ in range(50):
        engine.clock.advance(NS_PER_MS)
        engine.tell()
    assert policy._flows.num_waiting.sum() == 40
