"""How long a step may last for the decodes in it, and who sits it out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from core.config.scheduling import PolicyConfig
from core.policy.base import Blocked, DecodeBatch
from core.policy.calibration import FIRST_TAIL, CostModels
from core.policy.cost_model import CostBasis, StepWork
from core.policy.limits import Limits
from core.policy.pacing.pace import MARGIN_MAX, Pace
from core.policy.pacing.pauses import LONGEST_PAUSE_NS
from core.policy.queues.flows import Flows
from core.policy.settings import PolicySettings
from core.request import Request
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.scheduler.checked_engine import make_request

MS = 1_000_000
NOW_NS = 10_000 * MS
MACHINE = CostBasis(step_ns=10 * MS, token_ns=MS / 10, decode_ns=0.9 * MS)  # 1 ms a decode
MARGIN = 0.2
INTERACTIVE, BATCH = TrafficClass.INTERACTIVE, TrafficClass.BATCH


@dataclass(frozen=True, slots=True)
class Decode:
    """One decode of a test: its class, its cap and how long ago it got a token, ms."""

    traffic_class: TrafficClass = INTERACTIVE
    cap_ms: int = 60
    ago_ms: int = 0


@dataclass
class StepOfATest:
    """A step whose decodes and prompts a test has set."""

    batch: DecodeBatch
    now_ns: int = NOW_NS
    replica: int = 0
    number: int = 1
    tokens_left: int = 4096
    may_start_requests: bool = True
    under_way: list[Request] = field(default_factory=list)
    cached: int = 0
    deferred: list[int] = field(default_factory=list)

    def prefills(self) -> list[Request]:
        """Return the prompts under way."""
        return self.under_way

    def remaining(self, request: Request) -> int:
        """Return all tokens: none is computed."""
        return request.num_tokens

    def hit_tokens(self, request: Request) -> int:
        """Return what the cache holds."""
        return self.cached

    def defer(self, decodes: npt.NDArray[np.bool_]) -> None:
        """Note who sits the step out."""
        self.deferred = np.flatnonzero(decodes).tolist()


def step_of(decodes: Sequence[Decode], **fields: object) -> StepOfATest:
    """Return a step with these decodes, each behind 100 tokens."""
    count = len(decodes)
    batch = DecodeBatch(
        tenant_index=np.zeros(count, np.int32),
        traffic_class=np.array([d.traffic_class for d in decodes], np.int32),
        context_tokens=np.full(count, 100, np.int32),
        num_output_tokens=np.ones(count, np.int32),
        ttft_deadline_ns=np.zeros(count, np.int64),
        itl_cap_ns=np.array([d.cap_ms * MS for d in decodes], np.int64),
        last_token_ns=np.array([NOW_NS - d.ago_ms * MS for d in decodes], np.int64),
    )
    return StepOfATest(batch, **fields)  # type: ignore[arg-type]


def pace_of(
    model: CostBasis | None = MACHINE,
    classes: ClassesConfig | None = None,
    delivery_ms: int = 0,
) -> tuple[Pace, CostModels, Flows]:
    """Return a pace on a machine that is known exactly."""
    limits = Limits(classes or ClassesConfig())
    settings = PolicySettings(
        max_num_partial_prefills=4,
        kv_headroom_fraction=0.0,
        limits=limits,
        tuning=PolicyConfig(tile_tokens=16, delivery_ms=delivery_ms),
    )
    models, flows = CostModels(model), Flows()
    return Pace(settings, models, flows), models, flows


def most(step: StepOfATest, pace: Pace, num_tokens: int = 1000) -> tuple[int, Blocked]:
    """Return how many tokens of a fresh prompt the step takes, and what stopped it."""
    budget = pace.open(step, step.batch)  # type: ignore[arg-type]
    return budget.most(make_request(prompt_len=num_tokens)), budget.blocked


def test_the_tightest_gap_bounds_the_step() -> None:
    """60 ms / 1.2 = 50, less 10 for the step and 2 for both decodes: 380 tokens, 23 tiles."""
    pace, _, _ = pace_of()
    step = step_of([Decode(cap_ms=60), Decode(cap_ms=100)])
    assert most(step, pace) == (23 * 16, Blocked.ITL)
    assert step.deferred == []


def test_the_gap_counts_from_the_last_token() -> None:
    """Who has waited 30 ms has 30 left: 25 less 11 are 140 tokens, 8 tiles."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode(cap_ms=60, ago_ms=30)]), pace) == (8 * 16, Blocked.ITL)


def test_tokens_on_their_way_take_time_of_a_gap() -> None:
    """Of 60 ms 3 are kept, of 15 a tenth: 47.5 less 11 are 365 tokens; 11.25 less 11 are 2."""
    pace, _, _ = pace_of(delivery_ms=3)
    assert most(step_of([Decode(cap_ms=60)]), pace) == (22 * 16, Blocked.ITL)
    assert most(step_of([Decode(cap_ms=15)]), pace, 3) == (0, Blocked.ITL)
    assert most(step_of([Decode(cap_ms=15)]), pace, 2) == (2, Blocked.NOTHING)


@pytest.mark.parametrize(
    ("prompt_len", "cached", "num_tokens"),
    [(10, 0, 9), (2, 0, 1), (1, 0, 1), (10, 7, 2), (10, 9, 1)],
)
def test_the_last_token_of_a_prompt_can_be_left_for_later(
    prompt_len: int, cached: int, num_tokens: int
) -> None:
    """Unless it is all that is left, or that the cache does not hold."""
    pace, _, _ = pace_of()
    step = step_of([], cached=cached)
    budget = pace.open(step, step.batch)  # type: ignore[arg-type]
    assert budget.most(make_request(prompt_len=prompt_len), but_last=True) == num_tokens


def test_the_room_of_a_step_is_the_least_of_its_limits() -> None:
    """The gaps of its decodes, and its tokens; an empty one lasts 10 ms."""
    pace, _, _ = pace_of()
    step = step_of([], tokens_left=200)
    assert pace.open(step, step.batch).room() == (30 * MS, 10 * MS)  # type: ignore[arg-type]
    step = step_of([Decode(cap_ms=60)])
    assert pace.open(step, step.batch).room() == (50 * MS, 10 * MS)  # type: ignore[arg-type]
    pace, _, _ = pace_of(None)
    assert pace.open(step, step.batch).room() == (0, 0)  # type: ignore[arg-type]


def test_what_is_left_of_a_prompt_needs_no_whole_tile() -> None:
    """A chunk that ends its prompt may have any length."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode(cap_ms=60)]), pace, 37) == (37, Blocked.NOTHING)


def test_grants_add_up_in_one_limit() -> None:
    """What was spent on one prompt is not there for the next."""
    pace, _, _ = pace_of()
    step = step_of([Decode(cap_ms=60)])
    budget = pace.open(step, step.batch)  # type: ignore[arg-type]
    first, second = make_request(1, 300), make_request(2, 300)
    assert budget.most(first) == 300
    budget.spend(first, 0, 300)
    assert budget.most(second) == 5 * 16
    assert budget.predicted_ns() == 41 * MS


def test_a_grant_is_a_quantum_at_the_most() -> None:
    """Also where nobody was promised a gap."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode(cap_ms=0)]), pace, 3000) == (512, Blocked.NOTHING)


def test_without_promise_or_model_tokens_alone_count() -> None:
    """The budget of the step is all that binds."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode(cap_ms=0)], tokens_left=100), pace) == (100, Blocked.NOTHING)
    unknown, _, _ = pace_of(None)
    step = step_of([Decode(cap_ms=1), Decode(BATCH, 0)], tokens_left=100)
    assert most(step, unknown) == (100, Blocked.NOTHING)
    assert step.deferred == []
    assert unknown.prediction(0) is None


def test_a_used_up_budget_is_told_from_a_gap() -> None:
    """The reason of a leftover is what would have to be lifted."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode()], tokens_left=0), pace) == (0, Blocked.TOKENS)


def test_cached_tokens_are_context_not_work() -> None:
    """600 of 700 tokens are there already; the rest fits."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode(cap_ms=60)], cached=600), pace, 700) == (100, Blocked.NOTHING)


def test_pausable_decodes_make_room_for_a_promised_gap() -> None:
    """Of 50 batch decodes 39 fit into 50 ms beside the interactive one; the others were served
    later.
    """
    pace, _, _ = pace_of()
    step = step_of([Decode(BATCH, 0, ago_ms=i) for i in range(50)] + [Decode(cap_ms=60)])
    most(step, pace)
    assert step.deferred == list(range(11))


def test_who_would_be_late_in_the_next_step_is_not_paused() -> None:
    """A pausable class has promises too; they are kept one step ahead."""
    pace, _, _ = pace_of()
    due = [Decode(BATCH, 400, ago_ms=300) for _ in range(45)]
    step = step_of([*due, *[Decode(BATCH, 400) for _ in range(5)], Decode(cap_ms=60)])
    most(step, pace)
    assert step.deferred == [45, 46, 47, 48, 49]


def test_a_pause_is_bounded() -> None:
    """Without a promise of its own a decode is in the step again before the longest pause ends."""
    pace, _, _ = pace_of()
    longest_ms = LONGEST_PAUSE_NS // MS
    waited = [Decode(BATCH, 0, ago_ms=longest_ms - 100) for _ in range(60)]
    step = step_of([*waited, Decode(cap_ms=60)])
    most(step, pace)
    assert step.deferred == []


def test_an_urgent_prompt_takes_the_room_of_pausable_decodes() -> None:
    """In steps of 50 ms beside 20 decodes it would be late, without them it is not."""
    pace, _, flows = pace_of()
    decodes = [Decode(BATCH, 0) for _ in range(20)] + [Decode(cap_ms=60)]
    prompt = make_request(prompt_len=900, traffic_class=INTERACTIVE)
    prompt.ttft_deadline_ns = NOW_NS + 1000 * MS
    flows.know(prompt)
    flows.add(prompt)
    relaxed, hurried = step_of(decodes), step_of(decodes)
    most(relaxed, pace)
    assert relaxed.deferred == []
    flows.remove(prompt)
    prompt.ttft_deadline_ns = NOW_NS + 170 * MS
    flows.add(prompt)
    most(hurried, pace)
    assert hurried.deferred == list(range(20))


def test_nobody_is_paused_for_next_to_nothing() -> None:
    """Three batch decodes take 3 of 50 ms; the prompt is late with or without them."""
    pace, _, flows = pace_of()
    prompt = make_request(prompt_len=900, traffic_class=INTERACTIVE)
    prompt.ttft_deadline_ns = NOW_NS + MS
    flows.know(prompt)
    flows.add(prompt)
    step = step_of([Decode(BATCH, 0) for _ in range(3)] + [Decode(cap_ms=60)])
    most(step, pace)
    assert step.deferred == []


def test_a_batch_prompt_is_not_urgent() -> None:
    """Nobody is paused for a class that can be paused itself."""
    pace, _, flows = pace_of()
    prompt = make_request(prompt_len=900, traffic_class=BATCH)
    prompt.ttft_deadline_ns = NOW_NS + MS
    flows.know(prompt)
    flows.add(prompt)
    step = step_of([Decode(BATCH, 0) for _ in range(20)] + [Decode(cap_ms=60)])
    most(step, pace)
    assert step.deferred == []


def test_what_may_be_paused_is_configuration() -> None:
    """And can change at run time."""
    pace, _, _ = pace_of()
    classes = ClassesConfig(batch=ClassConfig(pausable=False))
    pace.configure(Limits(classes))
    step = step_of([Decode(BATCH, 0) for _ in range(60)] + [Decode(cap_ms=60)])
    most(step, pace)
    assert step.deferred == []


def test_a_step_that_cannot_keep_a_gap_is_counted_and_takes_one_tile() -> None:
    """70 decodes take 80 ms; prompts go on slowly, or they would wait as long as that lasts."""
    pace, _, _ = pace_of()
    step = step_of([Decode(cap_ms=60) for _ in range(70)])
    budget = pace.open(step, step.batch)  # type: ignore[arg-type]
    request = make_request(prompt_len=1000)
    assert budget.most(request) == 16
    budget.spend(request, 0, 16)
    assert budget.most(make_request(2, 1000)) == 0
    found = pace.prediction(0)
    assert found is not None
    assert found.infeasible_steps == 1


def test_decodes_that_just_fit_leave_nothing_and_are_not_infeasible() -> None:
    """Between the margin and the gap nobody starts, and nothing is late."""
    pace, _, _ = pace_of()
    assert most(step_of([Decode(cap_ms=60) for _ in range(45)]), pace) == (0, Blocked.ITL)
    found = pace.prediction(0)
    assert found is not None
    assert found.infeasible_steps == 0


def test_a_step_begins_when_the_one_before_it_ends() -> None:
    """With two plans in flight, who is not in the first waits for both."""
    pace, _, _ = pace_of()
    first = step_of([Decode(cap_ms=0) for _ in range(5)])
    most(first, pace)  # 15 ms, of which nothing has passed
    second = step_of([Decode(cap_ms=60)], number=2)
    assert most(second, pace) == (16 * 16, Blocked.ITL)
    pace.measured(0, 1, 15 * MS)
    assert most(step_of([Decode(cap_ms=60)], number=3), pace)[0] < 16 * 16
    pace.lose(0)
    assert most(step_of([Decode(cap_ms=60)], number=3), pace) == (24 * 16, Blocked.ITL)


def test_steps_teach_the_model_of_their_replica() -> None:
    """Twice as slow as measured at the start, and the limit halves the chunk; not elsewhere."""
    pace, models, _ = pace_of(None)
    for replica in (0, 1):
        models.calibrate(replica, MACHINE)
    for number in range(1, 300):
        step = step_of([Decode(cap_ms=60)], number=number)
        budget = pace.open(step, step.batch)  # type: ignore[arg-type]
        budget.spend(make_request(prompt_len=100), 0, 100)
        pace.measured(0, number, 2 * MACHINE.duration_ns(budget.work))
    slow = most(step_of([Decode(cap_ms=60)], number=300), pace)[0]
    assert slow == pytest.approx((60 / (1 + pace.margin(0)) / 2 - 11) * 10, abs=16)
    other = most(step_of([Decode(cap_ms=60)], replica=1), pace)[0]
    assert other == pytest.approx((60 / (1 + FIRST_TAIL) - 11) * 10, abs=16)
    found = pace.prediction(0)
    assert found is not None
    assert found.factors[1] == pytest.approx(2.0, rel=0.01)


def test_the_margin_grows_with_the_scatter() -> None:
    """Four times the scatter of the model, at least what is configured, and bounded; at first a
    guess.
    """
    pace, models, _ = pace_of(None)
    models.calibrate(0, MACHINE)
    random = np.random.default_rng(0)
    work = StepWork().with_prefill(100, 0)
    assert pace.margin(0) == pytest.approx(FIRST_TAIL)
    margins = []
    for sigma in (0.01, 0.1, 0.4):
        model = models.calibrated(0)
        assert model is not None
        for noise in random.lognormal(0, sigma, 10_000):
            model.measured(work, round(MACHINE.duration_ns(work) * noise))
        margins.append(pace.margin(0))
    assert margins == [MARGIN, pytest.approx(0.4, rel=0.25), MARGIN_MAX]


def test_however_steps_scatter_prompts_keep_half_of_what_the_least_margin_leaves() -> None:
    """One decode takes 11 ms; of the 39 that prompts may have at least 19.5 stay, not 19."""
    pace, models, _ = pace_of(None)
    models.calibrate(0, MACHINE)
    model = models.calibrated(0)
    assert model is not None
    model.mixed.tail = 0.0
    usual = most(step_of([Decode(cap_ms=60)]), pace)[0]
    pace.lose(0)
    model.mixed.tail = 9.0
    assert pace.margin(0) == MARGIN_MAX
    half = most(step_of([Decode(cap_ms=60)], number=2), pace)[0]
    assert half == pytest.approx(usual / 2, abs=16)


def test_what_is_expected_of_the_steps_in_flight_is_told_until_they_are_measured() -> None:
    """The longest of them counts, with all that was put into it; of no step nothing is expected."""
    pace, models, _ = pace_of()
    models.calibrate(0, MACHINE)
    assert expected_ns(pace) == 0
    first, second = step_of([Decode()], number=1), step_of([], number=2)
    pace.open(first, first.batch)  # type: ignore[arg-type]
    budget = pace.open(second, second.batch)  # type: ignore[arg-type]
    budget.spend(make_request(1, prompt_len=100), 0, 100)
    assert expected_ns(pace) == budget.predicted_ns() > 15 * MS
    pace.measured(0, 2, 20 * MS)
    assert 0 < expected_ns(pace) < 15 * MS
    pace.measured(0, 1, 11 * MS)
    assert expected_ns(pace) == 0


def expected_ns(pace: Pace) -> int:
    """Return what is expected of the steps in flight of the first replica."""
    prediction = pace.prediction(0)
    assert prediction is not None
    return prediction.expected_ns
