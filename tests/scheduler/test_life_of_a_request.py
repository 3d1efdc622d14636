"""From submission to release: what a tokenizer is told, and the usage it is told."""

import numpy as np
import pytest

from core.errors import RejectionReason
from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import RESULT_ROW, OutputKind, PlanFlag, ResultError, StepResult
from core.simulation.modelled_executor import NextToken
from tests.support.scheduler.checked_engine import (
    EOS,
    CheckedEngine,
    make_settings,
    reference_tokens,
)

FOREVER = SamplingParams(ignore_eos=True)


def make_engine(num_blocks: int = 100, **overrides: object) -> CheckedEngine:
    engine = CheckedEngine(make_settings(**overrides), num_blocks=num_blocks)
    engine.start()
    return engine


def always(token_id: int) -> NextToken:
    return lambda token_ids, seed, vocab_size: token_id


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_is_told_its_life_in_order(depth: int) -> None:
    """QUEUED, STARTED, its tokens, FINISHED with the usage, RELEASED: each once, in this order."""
    engine = make_engine(pipeline_depth=depth)
    prompt = list(range(10, 20))
    request = engine.submit(engine.make_request(1, prompt, 3, sampling=FOREVER))
    engine.run()
    transcript = engine.transcript(request)
    token = OutputKind.TOKEN
    assert transcript.kinds == [
        OutputKind.QUEUED, OutputKind.STARTED, token, token, token,
        OutputKind.FINISHED, OutputKind.RELEASED,
    ]  # fmt: skip
    expected, _ = reference_tokens(prompt, 3, FOREVER, 50_000)
    assert transcript.token_ids == expected == request.token_ids[10:].tolist()
    assert transcript.finished is not None
    assert transcript.status is RequestStatus.FINISHED_LENGTH
    assert transcript.finished["num_prompt_tokens"] == 10
    assert transcript.finished["num_output_tokens"] == 3


@pytest.mark.parametrize("depth", [1, 2])
def test_eos_ends_a_request_and_is_its_last_token(depth: int) -> None:
    """EOS is delivered and counted; the token that depth 2 computes behind it is neither."""
    engine = CheckedEngine(make_settings(pipeline_depth=depth), next_token=always(EOS))
    engine.start()
    request = engine.submit(engine.make_request(1, [10, 11], 8))
    engine.run()
    transcript = engine.transcript(request)
    assert transcript.token_ids == [EOS]
    assert transcript.status is RequestStatus.FINISHED_STOPPED
    assert engine.metering.generated_tokens == 1
    assert engine.core.statistics().replicas[0].pool.num_held == 0


def test_no_stop_token_counts_before_min_tokens() -> None:
    """With min_tokens a request goes on behind an early stop token."""
    engine = CheckedEngine(make_settings(), next_token=always(EOS))
    engine.start()
    request = engine.submit(engine.make_request(1, [10], 8, sampling=SamplingParams(min_tokens=3)))
    engine.run()
    assert engine.transcript(request).token_ids == [EOS] * 3


def test_a_length_end_is_known_in_advance() -> None:
    """At depth 2 no token beyond max_tokens is ever planned."""
    engine = make_engine(pipeline_depth=2)
    engine.submit(engine.make_request(1, [10, 11], 2, sampling=FOREVER))
    sampled = 0
    while (plan := engine.plan()) is not None:
        sampled += int(np.count_nonzero(plan.rows["flags"] & np.uint32(PlanFlag.SAMPLE)))
        if len(engine.unanswered[0]) == 2:
            engine.answer()
    engine.run()
    assert sampled == 2


def test_a_prompt_alone_can_be_computed() -> None:
    """With max_tokens 0 the prompt is computed, nothing sampled, and the request ends by length."""
    engine = make_engine()
    request = engine.submit(engine.make_request(1, list(range(10, 60)), 0))
    engine.run()
    transcript = engine.transcript(request)
    assert transcript.token_ids == []
    assert transcript.status is RequestStatus.FINISHED_LENGTH
    assert engine.metering.prompt_tokens == 50


def test_a_stop_string_fixes_the_usage() -> None:
    """A stop found behind n tokens ends the request with n; later ones are not billed or cached."""
    engine = make_engine()
    request = engine.submit(engine.make_request(1, [10, 11, 12, 13], 30, sampling=FOREVER))
    for _ in range(10):
        engine.step()
    engine.tell(ev.Stop(1, 4))
    transcript = engine.transcript(request)
    assert transcript.finished is not None
    assert transcript.status is RequestStatus.FINISHED_STOPPED
    assert transcript.finished["num_output_tokens"] == 4
    assert engine.metering.overrun_tokens == len(transcript.token_ids) - 4 == 6
    longer = engine.make_request(2, request.token_ids[:14].tolist(), 1)
    engine.submit(longer)
    engine.run()
    assert longer.num_cached_tokens == 8


def test_a_stop_beyond_what_was_delivered_is_clipped() -> None:
    """The usage is never more than what was delivered, and never negative."""
    engine = make_engine()
    many, negative = (
        engine.submit(engine.make_request(i, [10 + i], 30, sampling=FOREVER)) for i in (1, 2)
    )
    for _ in range(3):
        engine.step()
    engine.tell(ev.Stop(1, 99), ev.Stop(2, -5))
    assert many.num_output_tokens == len(engine.transcript(many).token_ids)
    assert negative.num_output_tokens == 0


def test_a_stop_or_abort_after_the_end_changes_nothing() -> None:
    """Events about a request that has ended, or never was, are ignored."""
    engine = make_engine()
    request = engine.submit(engine.make_request(1, [10], 2, sampling=FOREVER))
    engine.run()
    engine.tell(ev.Stop(1, 1), ev.Abort(1), ev.Abort(999))
    assert engine.transcript(request).status is RequestStatus.FINISHED_LENGTH
    assert engine.metering.finished.sum() == 1


def test_cached_prompt_tokens_are_in_the_usage() -> None:
    """A repeated prompt reports the tokens it found; one token is always computed."""
    engine = make_engine()
    prompt = list(range(10, 26))
    first = engine.submit(engine.make_request(1, prompt, 1))
    engine.run()
    second = engine.submit(engine.make_request(2, prompt, 1))
    engine.run()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 12)
    finished = engine.transcript(second).finished
    assert finished is not None
    assert finished["num_cached_tokens"] == 12
    assert engine.metering.cached_tokens == engine.metering.prefix_hits_tokens == 12


def test_an_error_of_one_row_ends_that_request_only() -> None:
    """A row with an error ends its request with EXECUTOR_FAULT; its neighbour goes on."""
    engine = make_engine()
    broken = engine.submit(engine.make_request(1, [60_000], 4))
    healthy = engine.submit(engine.make_request(2, [10], 4, sampling=FOREVER))
    engine.run()
    assert engine.transcript(broken).status is RequestStatus.FINISHED_ERROR
    assert broken.rejection is not None
    assert broken.rejection.reason is RejectionReason.EXECUTOR_FAULT
    assert broken.rejection.measured == ResultError.BAD_TOKEN
    assert engine.transcript(healthy).status is RequestStatus.FINISHED_LENGTH


def test_a_missing_token_ends_the_request() -> None:
    """A result without the token that was asked for is a fault, not a wait without end."""
    engine = make_engine()
    request = engine.submit(engine.make_request(1, [10], 4))
    plan = engine.plan()
    assert plan is not None
    empty = StepResult(0, plan.epoch, plan.step, 0, 1, np.empty(0, RESULT_ROW))
    engine.core.on_result(empty, engine.clock.now_ns())
    engine.collect()
    assert engine.transcript(request).status is RequestStatus.FINISHED_ERROR


def test_log_probabilities_reach_their_token() -> None:
    """A token's own log-probability and its alternatives arrive with it."""
    engine = make_engine()
    sampling = SamplingParams(num_logprobs=2, ignore_eos=True)
    engine.submit(engine.make_request(1, [10], 1, sampling=sampling))
    engine.plan()
    plan, _ = engine.unanswered[0].popleft()
    executor = engine.executors[0]
    assert executor is not None
    engine.core.on_result(executor.execute(plan, 0), engine.clock.now_ns())
    batch = engine.core.take_outputs()[0]
    [record] = batch.records[batch.records["kind"] == OutputKind.TOKEN]
    start = record["logprobs_start"]
    token_id = int(record["token_id"])
    assert record["logprob"] == -0.5
    entries = batch.logprobs[start : start + record["num_logprobs"]]
    assert entries["token_id"].tolist() == [token_id, token_id + 1]


@pytest.mark.parametrize("num_blocks", [100, 14])
def test_prompt_log_probabilities_come_once_for_each_position(num_blocks: int) -> None:
    """Every prompt position is scored exactly once, also after a preemption in the middle."""
    engine = make_engine(num_blocks, max_num_batched_tokens=8)
    scored = SamplingParams(num_prompt_logprobs=0, ignore_eos=True)
    requests = [
        engine.submit(engine.make_request(i, list(range(10 * i, 10 * i + 21)), 20, sampling=scored))
        for i in (1, 2, 3)
    ]
    engine.run()
    assert (engine.metering.preemptions > 0) == (num_blocks == 14)
    for request in requests:
        scores = engine.transcript(request).prompt_logprobs
        assert scores == {position: -float(position) for position in range(21)}
        kinds = engine.transcript(request).kinds
        assert kinds.count(OutputKind.PROMPT_LOGPROBS) >= 3


def test_a_resumed_request_continues_behind_what_was_delivered() -> None:
    """After a scheduler restart a request goes on at its next token, without a second STARTED."""
    prompt = list(range(10, 20))
    tokens, _ = reference_tokens(prompt, 8, FOREVER, 50_000)
    engine = make_engine()
    request = engine.make_request(1, prompt, 8, sampling=FOREVER)
    request.token_ids[10:13] = tokens[:3]
    request.num_output_tokens = 3
    engine.transcript(request).token_ids += tokens[:3]
    engine.submit(request)
    engine.run()
    transcript = engine.transcript(request)
    assert transcript.token_ids == tokens
    assert OutputKind.STARTED not in transcript.kinds
    assert transcript.finished is not None
    assert transcript.finished["num_output_tokens"] == 8


@pytest.mark.parametrize(("last", "status"), [(EOS, "STOPPED"), (99, "LENGTH")])
def test_a_resumed_request_that_was_complete_ends_at_once(last: int, status: str) -> None:
    """If the end was delivered before the scheduler died, only the terminal record is missing."""
    engine = make_engine()
    request = engine.make_request(1, [10, 11], 2)
    request.token_ids[2:] = [50, last]
    request.num_output_tokens = 2
    engine.submit(request)
    kinds = engine.transcript(request).kinds
    assert kinds == [OutputKind.QUEUED, OutputKind.FINISHED, OutputKind.RELEASED]
    assert engine.transcript(request).status is RequestStatus[f"FINISHED_{status}"]


def test_a_second_request_with_a_live_id_is_ignored() -> None:
    """A duplicate submission neither replaces nor ends the request that has the id."""
    engine = make_engine()
    first = engine.submit(engine.make_request(1, [10], 3, sampling=FOREVER))
    engine.submit(engine.make_request(1, [11], 9, sampling=FOREVER))
    engine.run()
    assert engine.metering.duplicate_requests == 1
    assert len(engine.transcript(first).token_ids) == 3


def test_the_states_of_a_request_can_be_looked_at() -> None:
    """A view shows the truth while a request runs, and None when it is forgotten."""
    engine = make_engine()
    request = engine.submit(engine.make_request(1, list(range(10, 30)), 10, tenant="b"))
    engine.submit(engine.make_request(2, [10], 10, tenant="c"))
    for _ in range(3):
        engine.step()
    view = engine.core.request(1)
    assert view is not None
    assert view.status is RequestStatus.RUNNING
    assert view.num_output_tokens == len(engine.transcript(request).token_ids) > 0
    assert view.num_computed_tokens == 20 + view.num_output_tokens - 1
    assert [v.request_id for v in engine.core.requests(10)] == [1, 2]
    assert [v.request_id for v in engine.core.requests(10, "c")] == [2]
    assert len(engine.core.requests(1)) == 1
    engine.run()
    assert engine.core.request(1) is None
