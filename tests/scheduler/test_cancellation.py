"""Cancellation: waiting requests are gone at once, running ones as soon as no plan names them."""

import pytest

from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import OutputKind
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings, reference_tokens

FOREVER = SamplingParams(ignore_eos=True)


def make_engine(num_blocks: int = 100, **overrides: object) -> CheckedEngine:
    engine = CheckedEngine(
        make_settings(prefix_cache=False, **overrides), num_blocks=num_blocks, num_tokenizers=2
    )
    engine.start()
    return engine


def num_free(engine: CheckedEngine) -> int:
    return engine.core.statistics().replicas[0].pool.num_free


def test_a_waiting_request_is_freed_at_once() -> None:
    """Aborting a waiting request ends and releases it in the same call, also during a step."""
    engine = make_engine(max_num_seqs=1)
    engine.submit(engine.make_request(1, [10], 9, sampling=FOREVER))
    engine.plan()
    waiting = engine.submit(engine.make_request(2, [11], 9))
    engine.clock.advance(3_000_000)
    engine.tell(ev.Abort(2, closed_ns=engine.clock.now_ns() - 1_000_000))
    assert engine.transcript(waiting).kinds[-2:] == [OutputKind.FINISHED, OutputKind.RELEASED]
    assert engine.transcript(waiting).status is RequestStatus.FINISHED_ABORTED
    assert engine.metering.cancel_reclaim.sum == pytest.approx(0.001)
    assert engine.metering.cancel_reclaim_steps_max == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_running_request_is_fenced_while_plans_name_it(depth: int) -> None:
    """An abort ends the request now and frees row and blocks with the last plan's result."""
    engine = make_engine(pipeline_depth=depth, max_num_seqs=1)
    request = engine.submit(engine.make_request(1, list(range(10, 30)), 9, sampling=FOREVER))
    engine.step()
    while engine.plan() is not None:
        pass
    assert len(engine.unanswered[0]) == depth
    closed_ns = engine.clock.now_ns()
    engine.tell(ev.Abort(1))
    assert engine.transcript(request).status is RequestStatus.FINISHED_ABORTED
    for _ in range(depth):
        assert num_free(engine) < 100
        assert engine.transcript(request).kinds[-1] is OutputKind.FINISHED
        engine.answer()
    assert num_free(engine) == 100
    assert engine.transcript(request).kinds[-1] is OutputKind.RELEASED
    assert engine.metering.cancel_reclaim_steps_max == depth
    delay_s = (engine.clock.now_ns() - closed_ns) / 1e9
    assert engine.metering.cancel_reclaim.sum == pytest.approx(delay_s)


def test_the_token_in_flight_of_a_cancelled_request_is_dropped() -> None:
    """What comes back for a cancelled request is neither delivered nor counted."""
    engine = make_engine()
    request = engine.submit(engine.make_request(1, [10], 9, sampling=FOREVER))
    engine.step()
    engine.plan()
    engine.tell(ev.Abort(1))
    engine.answer()
    transcript = engine.transcript(request)
    assert len(transcript.token_ids) == 1
    assert transcript.finished is not None
    assert transcript.finished["num_output_tokens"] == 1
    assert engine.metering.generated_tokens == 1


def test_neighbours_keep_their_tokens() -> None:
    """Cancelling half of the running requests changes nothing for the others."""
    engine = make_engine(pipeline_depth=2)
    prompts = {i: [10 + i] * 7 for i in range(8)}
    for i, prompt in prompts.items():
        engine.submit(engine.make_request(i, prompt, 12, sampling=FOREVER))
    for _ in range(6):
        engine.step()
    engine.tell(*[ev.Abort(i) for i in range(0, 8, 2)])
    engine.run()
    for i in range(1, 8, 2):
        expected, _ = reference_tokens(prompts[i], 12, FOREVER, 50_000)
        assert engine.transcripts[i].token_ids == expected


def test_an_abort_concerns_exactly_its_own_id() -> None:
    """Aborting 1 touches neither 10 nor 11 nor 100."""
    engine = make_engine()
    requests = {i: engine.submit(engine.make_request(i, [i], 5)) for i in (1, 10, 11, 100)}
    engine.tell(ev.Abort(1))
    assert [i for i, request in requests.items() if request.status.is_finished] == [1]


def test_a_fenced_row_is_not_given_away() -> None:
    """With one row per sequence at depth 1, the next request starts after the acknowledgement."""
    engine = make_engine(max_num_seqs=1)
    engine.submit(engine.make_request(1, [10], 9, sampling=FOREVER))
    engine.plan()
    engine.tell(ev.Abort(1))
    waiting = engine.submit(engine.make_request(2, [11], 2, sampling=FOREVER))
    assert engine.plan() is None
    engine.answer()
    engine.run()
    assert engine.transcript(waiting).token_ids == reference_tokens([11], 2, FOREVER, 50_000)[0]


def test_a_tenant_is_cancelled_as_a_whole() -> None:
    """Cancelling a tenant ends its waiting and running requests and nobody else's."""
    engine = make_engine(max_num_seqs=2)
    requests = [
        engine.submit(engine.make_request(i, [i], 5, tenant="ab"[i % 2], sampling=FOREVER))
        for i in range(6)
    ]
    engine.step()
    engine.tell(ev.CancelTenant("a"))
    assert [r.status.is_finished for r in requests] == [True, False] * 3
    engine.run()
    assert engine.core.num_requests == 0


def test_a_dead_tokenizer_is_told_nothing() -> None:
    """Requests of a dead tokenizer end without outputs; the other tokenizer's go on."""
    engine = make_engine()
    lost = engine.submit(engine.make_request(1, [10], 5, tokenizer=0, sampling=FOREVER))
    kept = engine.submit(engine.make_request(2, [11], 5, tokenizer=1, sampling=FOREVER))
    engine.plan()
    told = len(engine.transcript(lost).kinds)
    engine.tell(ev.TokenizerDown(0))
    engine.run()
    assert lost.status is RequestStatus.FINISHED_ABORTED
    assert len(engine.transcript(lost).kinds) == told
    assert len(engine.transcript(kept).token_ids) == 5
    assert engine.core.num_requests == 0
