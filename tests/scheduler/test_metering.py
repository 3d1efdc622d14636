"""What is counted of promises, sizes and times, by class and by tenant."""

import pytest

from core.policy.limits import Limits
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.tenancy.classes import ClassConfig, ClassesConfig, TrafficClass
from tests.support.scheduler.checked_engine import NS_PER_S, CheckedEngine, make_settings

FOREVER = SamplingParams(ignore_eos=True)
LIMITS = Limits(ClassesConfig(standard=ClassConfig(ttft_ms=1000), batch=ClassConfig()))
BATCH, STANDARD = TrafficClass.BATCH, TrafficClass.STANDARD


@pytest.fixture
def engine() -> CheckedEngine:
    """Return an engine with one sequence, whose class standard is promised a second."""
    made = CheckedEngine(make_settings(max_num_seqs=1, limits=LIMITS), num_blocks=100)
    made.start()
    return made


def submit(
    engine: CheckedEngine, request_id: int, traffic_class: TrafficClass, tenant: str = "a",
    **fields: int,
) -> Request:  # fmt: skip
    """Submit a request of 5 + 3 tokens."""
    request = engine.make_request(
        request_id, [request_id] * 5, 3, sampling=FOREVER, tenant=tenant,
        traffic_class=traffic_class, **fields,
    )  # fmt: skip
    return engine.submit(request)


def misses(engine: CheckedEngine) -> tuple[list[int], int]:
    """Return the deadline misses by class, and of tenant a."""
    metering = engine.metering
    by_tenant = metering.tenants.deadline_misses
    assert by_tenant.sum() == metering.classes.deadline_misses.sum()
    return metering.classes.deadline_misses.tolist(), int(by_tenant[metering.tenant_index("a")])


def test_a_first_token_in_time_breaks_no_promise(engine: CheckedEngine) -> None:
    """Nor does one of a class that is promised nothing, however late."""
    submit(engine, 1, STANDARD)
    engine.run()
    submit(engine, 2, BATCH)
    engine.clock.advance(10 * NS_PER_S)
    engine.run()
    assert misses(engine) == ([0, 0, 0, 0], 0)


def test_a_late_first_token_is_a_miss_once(engine: CheckedEngine) -> None:
    """Whatever comes after it."""
    submit(engine, 1, STANDARD)
    engine.clock.advance(2 * NS_PER_S)
    engine.run()
    assert misses(engine) == ([0, 1, 0, 0], 1)


def test_a_request_that_expires_without_a_token_is_a_miss(engine: CheckedEngine) -> None:
    """It was let in, and got nothing."""
    submit(engine, 1, BATCH)
    engine.step()
    late = submit(engine, 2, STANDARD, queue_deadline_ns=engine.clock.now_ns() + 1)
    engine.clock.advance(NS_PER_S)
    engine.core.on_events([], engine.clock.now_ns())
    assert late.status is RequestStatus.FINISHED_EXPIRED
    assert misses(engine) == ([0, 1, 0, 0], 1)


def test_an_aborted_request_misses_nothing(engine: CheckedEngine) -> None:
    """Its client left by itself."""
    submit(engine, 1, BATCH)
    engine.step()
    submit(engine, 2, STANDARD)
    engine.clock.advance(2 * NS_PER_S)
    engine.core.on_events([ev.Abort(2)], engine.clock.now_ns())
    assert misses(engine) == ([0, 0, 0, 0], 0)


def test_sizes_and_times_are_observed_once_a_served_request(engine: CheckedEngine) -> None:
    """A request that never started has none."""
    for number, traffic_class in ((1, STANDARD), (2, BATCH), (3, BATCH)):
        submit(engine, number, traffic_class, tenant=f"t{number}")
    engine.core.on_events([ev.Abort(3)], engine.clock.now_ns())
    engine.run()
    metering = engine.metering
    for histogram, total in (
        (metering.request_prompt_tokens, 10),
        (metering.request_generation_tokens, 6),
        (metering.request_max_tokens, 6),
    ):
        assert (histogram.count, int(histogram.sum)) == (2, total)
    for histogram in (metering.inference_time, metering.e2e_time, metering.time_per_token):
        assert histogram.count == 2
    assert metering.queue_time_by_tenant.count == metering.queue_time_by_class.count == 2


def test_tokens_of_classes_and_tenants_add_up(engine: CheckedEngine) -> None:
    """Each token is in one class and one tenant, and both are the whole."""
    for number, traffic_class in ((1, STANDARD), (2, BATCH)):
        submit(engine, number, traffic_class, tenant=f"t{number}")
    engine.run()
    metering = engine.metering
    assert metering.classes.generated_tokens.tolist() == [0, 3, 3, 0]
    assert metering.classes.prompt_tokens.tolist() == [0, 5, 5, 0]
    for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
        whole = getattr(metering, name)
        assert int(getattr(metering.classes, name).sum()) == whole
        assert int(getattr(metering.tenants, name).sum()) == whole
