"""KV memory under pressure: who starts, who gives memory back, and that everybody gets through."""

import pytest

from core.errors import RejectionReason
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings, reference_tokens

FOREVER = SamplingParams(ignore_eos=True)


def make_engine(num_blocks: int, **overrides: object) -> CheckedEngine:
    engine = CheckedEngine(make_settings(**overrides), num_blocks=num_blocks)
    engine.start()
    return engine


def submit(engine: CheckedEngine, request_id: int, prompt_len: int, max_tokens: int) -> Request:
    prompt = [10 + request_id] * prompt_len
    return engine.submit(engine.make_request(request_id, prompt, max_tokens, sampling=FOREVER))


def is_right(engine: CheckedEngine, request: Request) -> bool:
    prompt = request.token_ids[: request.prompt_len].tolist()
    expected, _ = reference_tokens(prompt, request.max_tokens, FOREVER, 50_000)
    return engine.transcript(request).token_ids == expected


def test_what_can_never_fit_is_refused_by_arithmetic() -> None:
    """Prompt + max_tokens beyond the pool is refused, exactly filling it is served."""
    engine = make_engine(5)
    exact, beyond = submit(engine, 1, 12, 8), submit(engine, 2, 12, 9)
    assert beyond.rejection is not None
    assert beyond.rejection.reason is RejectionReason.KV_NEVER_FITS
    assert (beyond.rejection.measured, beyond.rejection.threshold) == (6, 5)
    engine.run()
    assert is_right(engine, exact)


def test_a_request_starts_only_if_its_whole_prompt_fits() -> None:
    """A long prompt waits until blocks for all of it are there, not just for its first chunk."""
    engine = make_engine(10, max_num_batched_tokens=8)
    submit(engine, 1, 16, 8)
    engine.step()
    second = submit(engine, 2, 28, 1)
    engine.step()
    assert second.status is RequestStatus.WAITING
    engine.run()
    assert is_right(engine, second)


def test_headroom_stays_free_at_a_start() -> None:
    """With other requests running, a start leaves the configured share of the pool available."""
    engine = make_engine(10, kv_headroom_fraction=0.3)
    submit(engine, 1, 12, 4)
    second = submit(engine, 2, 20, 1)
    engine.step()
    assert second.status is RequestStatus.WAITING
    engine.run()
    assert is_right(engine, second)


def test_a_warm_cache_is_not_pressure() -> None:
    """Evictable blocks count as available: a pool full of cached content admits at once."""
    engine = make_engine(8)
    submit(engine, 1, 28, 4)
    engine.run()
    assert engine.core.statistics().replicas[0].pool.num_evictable > 0
    second = submit(engine, 2, 28, 4)
    engine.step()
    assert second.status is RequestStatus.RUNNING


@pytest.mark.parametrize("depth", [1, 2])
def test_the_latest_request_gives_its_memory_back(depth: int) -> None:
    """When decodes outgrow the pool the latest arrival is preempted, and still gets its tokens."""
    engine = make_engine(9, pipeline_depth=depth)
    first, second = submit(engine, 1, 12, 16), submit(engine, 2, 12, 16)
    engine.run()
    assert first.num_preemptions == 0
    assert second.num_preemptions == 1
    assert is_right(engine, first)
    assert is_right(engine, second)
    assert engine.metering.preemptions == 1


def test_memory_on_its_way_is_waited_for() -> None:
    """A decode in need waits for blocks that a cancelled neighbour's last plan still names."""
    engine = make_engine(9, pipeline_depth=2)
    first, second = submit(engine, 1, 12, 16), submit(engine, 2, 14, 16)
    while len(second.block_ids) < 5:
        assert engine.step()
    assert engine.core.statistics().replicas[0].pool.num_free == 0
    engine.plan()
    engine.tell(ev.Abort(2))
    engine.run()
    assert engine.metering.preemptions == 0
    assert is_right(engine, first)


def test_a_preempted_request_keeps_its_place() -> None:
    """A preempted request starts again before everything that arrived after it."""
    engine = make_engine(9)
    submit(engine, 1, 12, 16)
    second = submit(engine, 2, 12, 16)
    while second.status is not RequestStatus.PREEMPTED:
        engine.step()
    third = submit(engine, 3, 12, 4)
    while second.status is RequestStatus.PREEMPTED:
        assert third.status is RequestStatus.WAITING
        engine.step()
    engine.run()
    assert is_right(engine, third)


def test_recomputation_finds_what_is_still_cached() -> None:
    """The blocks of a preempted request stay findable; only the rest counts as recomputed."""
    engine = make_engine(9)
    submit(engine, 1, 12, 16)
    second = submit(engine, 2, 12, 16)
    engine.run()
    assert 0 < engine.metering.recomputed_tokens < second.prompt_len


def test_after_enough_preemptions_a_request_takes_all_it_can_need() -> None:
    """At max_preemptions a request is no victim any more: it starts with room for its end."""
    engine = make_engine(9, max_preemptions=1)
    submit(engine, 1, 12, 16)
    second = submit(engine, 2, 12, 16)
    while not (second.num_preemptions and second.status is RequestStatus.RUNNING):
        engine.step()
    assert len(second.block_ids) == 7
    engine.run()
    assert second.num_preemptions == 1


def test_without_preemption_everybody_reserves_all() -> None:
    """With max_preemptions 0 nobody is ever preempted, whatever the pressure."""
    engine = make_engine(9, max_preemptions=0)
    requests = [submit(engine, i, 5 + i, 16) for i in range(6)]
    engine.run()
    assert engine.metering.preemptions == 0
    assert all(is_right(engine, request) for request in requests)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "static"])
def test_a_pool_for_one_serves_many(policy: str, depth: int) -> None:
    """With barely more memory than one request needs, all of them end with their own tokens."""
    engine = make_engine(9, policy=policy, pipeline_depth=depth)
    requests = [submit(engine, i, 4 + i, 20) for i in range(10)]
    engine.run(max_steps=3000)
    assert all(is_right(engine, request) for request in requests)
    assert engine.core.statistics().replicas[0].pool.num_held == 0


def test_pressure_costs_little_throughput() -> None:
    """A pool that forces preemptions needs few more steps than one that does not."""
    steps = {}
    for num_blocks in (200, 60):
        engine = make_engine(num_blocks, max_num_batched_tokens=64, kv_headroom_fraction=0.05)
        requests = [submit(engine, i, 16, 32) for i in range(32)]
        steps[num_blocks] = engine.run()
        assert all(is_right(engine, request) for request in requests)
    assert steps[60] <= 1.34 * steps[200], steps


def test_urgent_work_takes_memory_under_the_priority_policy() -> None:
    """Under `priority` a higher request starts at the next step, on memory of lower ones."""
    engine = make_engine(10, policy="priority")
    low = engine.submit(engine.make_request(1, [11] * 30, 8, priority=5, sampling=FOREVER))
    engine.step()
    high = engine.submit(engine.make_request(2, [12] * 20, 4, priority=0, sampling=FOREVER))
    engine.step()
    assert high.status is RequestStatus.RUNNING
    assert low.status is RequestStatus.PREEMPTED
    engine.run()
    assert is_right(engine, low)
    assert is_right(engine, high)
