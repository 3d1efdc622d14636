"""What is in a plan, at both pipeline depths, and what becomes of a result."""

from dataclasses import replace

import numpy as np
import pytest

from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import PlanFlag, StepPlan
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings, reference_tokens

FOREVER = SamplingParams(ignore_eos=True)
SAMPLE, FEEDBACK = int(PlanFlag.SAMPLE), int(PlanFlag.FEEDBACK)


def make_engine(num_blocks: int = 100, **overrides: object) -> CheckedEngine:
    engine = CheckedEngine(make_settings(**overrides), num_blocks=num_blocks)
    engine.start()
    return engine


def submit(engine: CheckedEngine, request_id: int, prompt_len: int, max_tokens: int = 8) -> None:
    prompt = [10 + request_id] * prompt_len
    engine.submit(engine.make_request(request_id, prompt, max_tokens, sampling=FOREVER))


def shape(plan: StepPlan | None) -> list[tuple[int, int, int]]:
    """Return (new tokens, first position, flags) of each row."""
    assert plan is not None
    rows = plan.rows
    return list(
        zip(
            rows["num_new_tokens"].tolist(),
            rows["first_position"].tolist(),
            rows["flags"].tolist(),
            strict=True,
        )
    )


def test_a_long_prompt_is_computed_in_chunks_and_sampled_once() -> None:
    """Chunks fill the token budget; only the last one samples."""
    engine = make_engine(max_num_batched_tokens=16)
    submit(engine, 1, 40)
    plans = []
    for _ in range(3):
        plans += shape(engine.plan())
        engine.answer()
    assert plans == [(16, 0, 0), (16, 16, 0), (8, 32, SAMPLE)]


def test_decodes_come_first_and_prompts_fill_the_rest() -> None:
    """A step holds every decode, before the chunks that use what is left of the budget."""
    engine = make_engine(max_num_batched_tokens=16)
    submit(engine, 1, 4)
    submit(engine, 2, 4)
    engine.step()
    submit(engine, 3, 40)
    assert shape(engine.plan()) == [(1, 4, SAMPLE), (1, 4, SAMPLE), (14, 0, 0)]


def test_no_more_prompts_are_partly_computed_than_allowed() -> None:
    """Of many long prompts only max_num_partial_prefills are begun at the same time."""
    engine = make_engine(max_num_batched_tokens=32, max_num_partial_prefills=2)
    for i in range(5):
        submit(engine, i, 200, 1)
    engine.step()
    engine.step()
    computed = [view.num_computed_tokens for view in engine.core.requests(9)]
    assert sum(0 < n < 200 for n in computed) <= 2
    engine.run()
    assert engine.metering.finished[RequestStatus.FINISHED_LENGTH] == 5


def test_a_short_prompt_overtakes_a_long_one() -> None:
    """A short prompt behind a long one has its first token long before the long one ends."""
    engine = make_engine(max_num_batched_tokens=16)
    submit(engine, 1, 240, 1)
    submit(engine, 2, 8, 1)
    for _ in range(2):
        engine.step()
    assert engine.transcripts[2].status is RequestStatus.FINISHED_LENGTH
    assert engine.transcripts[1].finished is None


def test_the_next_step_is_planned_while_one_runs() -> None:
    """At depth 2 the second plan feeds the token of the first back on the device."""
    engine = make_engine(pipeline_depth=2)
    submit(engine, 1, 4)
    assert shape(engine.plan()) == [(4, 0, SAMPLE)]
    assert shape(engine.plan()) == [(1, 4, SAMPLE | FEEDBACK)]
    assert engine.plan() is None
    engine.answer()
    assert shape(engine.plan()) == [(1, 5, SAMPLE | FEEDBACK)]


def test_a_plan_names_steps_without_gaps() -> None:
    """Steps are numbered from 1 on, also over an executor's death."""
    engine = make_engine()
    submit(engine, 1, 4)
    steps = []
    for _ in range(2):
        plan = engine.plan()
        assert plan is not None
        steps.append((plan.step, plan.epoch))
        engine.answer()
    engine.kill()
    engine.start()
    plan = engine.plan()
    assert plan is not None
    assert [*steps, (plan.step, plan.epoch)] == [(1, 1), (2, 1), (3, 2)]


def test_a_replica_with_nothing_to_do_gets_no_plan() -> None:
    """Without requests, or without an executor, there is no plan."""
    engine = make_engine()
    assert engine.plan() is None
    submit(engine, 1, 4)
    engine.kill()
    assert engine.plan() is None


def test_results_of_another_epoch_or_step_are_ignored() -> None:
    """A late, repeated or foreign result changes nothing and is counted."""
    engine = make_engine()
    submit(engine, 1, 4)
    plan = engine.plan()
    executor = engine.executors[0]
    assert plan is not None
    assert executor is not None
    result = executor.execute(plan, 0)
    now_ns = engine.clock.now_ns()
    assert not engine.core.on_result(replace(result, epoch=9), now_ns)
    assert not engine.core.on_result(replace(result, step=7), now_ns)
    assert engine.core.on_result(result, now_ns)
    assert not engine.core.on_result(result, now_ns)
    assert engine.metering.ignored_results == 3
    assert engine.metering.steps == 1
    engine.collect()
    assert len(engine.transcripts[1].token_ids) == 1


def test_rows_of_a_result_that_are_no_rows_are_ignored() -> None:
    """A row number out of range or a foreign generation cannot reach anybody's state."""
    engine = make_engine()
    submit(engine, 1, 4)
    plan = engine.plan()
    executor = engine.executors[0]
    assert plan is not None
    assert executor is not None
    result = executor.execute(plan, 0)
    rows = np.concatenate([result.rows] * 3)
    rows["row"][0], rows["row"][1], rows["generation"][2] = -1, 10_000, 99
    engine.core.on_result(replace(result, rows=np.concatenate([rows, result.rows])), 5)
    engine.collect()
    engine.core.check_integrity()
    assert len(engine.transcripts[1].token_ids) == 1


def test_a_lost_result_is_made_good() -> None:
    """If the result of a step never comes but a later one does, its tokens are computed again."""
    engine = make_engine(pipeline_depth=2)
    submit(engine, 1, 4)
    engine.step()
    engine.plan()
    engine.plan()
    lost, _ = engine.unanswered[0].popleft()
    executor = engine.executors[0]
    assert executor is not None
    executor.execute(lost, 0)
    engine.run()
    expected, _ = reference_tokens([11] * 4, 8, FOREVER, 50_000)
    assert engine.transcripts[1].token_ids == expected


def test_a_row_is_not_reused_while_a_plan_names_it() -> None:
    """At depth 2 the row of a request that ended stays as it is until its overrun step is acked."""
    engine = make_engine(pipeline_depth=2, max_num_seqs=1)
    submit(engine, 1, 4, 30)
    engine.plan()
    engine.plan()
    engine.tell(ev.Abort(1))
    submit(engine, 2, 4)
    before = engine.rows[0].copy()
    engine.answer()
    plan = engine.plan()
    assert plan is not None
    row = int(plan.rows["row"][0])
    untouched = [i for i in range(len(before)) if i != row]
    assert np.array_equal(engine.rows[0][untouched], before[untouched])
    assert engine.rows[0]["request_id"][row] == 2
    assert before["request_id"][row] != 1


def test_only_acknowledged_blocks_are_found() -> None:
    """While a chunk is in flight an equal prompt finds the chunks before it and no more."""
    engine = make_engine(pipeline_depth=2, max_num_batched_tokens=16)
    prompt = list(range(10, 90))
    engine.submit(engine.make_request(1, prompt, 1))
    engine.plan()
    engine.plan()
    engine.answer()
    same = engine.submit(engine.make_request(2, prompt[:36], 1))
    engine.plan()
    assert same.status is RequestStatus.RUNNING
    assert same.num_cached_tokens == 16


def test_a_preempted_decode_gives_its_token_of_the_step_back() -> None:
    """What a decode would have computed goes to the request it was preempted for."""
    engine = make_engine(6, policy="priority", max_num_seqs=2, max_num_batched_tokens=2)
    engine.submit(engine.make_request(1, [10, 11], 16, priority=5, sampling=FOREVER))
    while len(engine.transcripts[1].token_ids) < 12:
        engine.step()
    engine.submit(engine.make_request(2, [12] * 12, 4, priority=0, sampling=FOREVER))
    assert shape(engine.plan()) == [(2, 0, 0)]


def test_times_and_steps_are_metered() -> None:
    """Queue, prefill, decode and end-to-end times are observed once for each request."""
    engine = make_engine()
    submit(engine, 1, 4, 3)
    num_steps = engine.run()
    metering = engine.metering
    assert metering.steps == num_steps == int(metering.step_time.counts.sum())
    parts = (metering.queue_time_by_class, metering.prefill_time, metering.decode_time)
    assert [histogram.count for histogram in (*parts, metering.e2e_time)] == [1, 1, 1, 1]
    assert sum(histogram.sum for histogram in parts) == pytest.approx(metering.e2e_time.sum)
    assert int(metering.tenants.generated_tokens.sum()) == metering.generated_tokens == 3
