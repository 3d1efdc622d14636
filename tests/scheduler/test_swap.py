"""Requests whose memory waits on the host: nothing is computed twice, nothing is left behind."""

import pytest

from core.engine_core import EngineCore
from core.metering import Metering, PreemptionCause, PreemptionKind
from core.policy.base import Grant, Preemption, Relief
from core.request import RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.plan import CopyDirection
from core.scheduler.step_builder import StepBuilder
from core.simulation.engine import BUCKETS
from tests.support.scheduler.preempting_policies import ScriptedPolicy
from tests.support.scheduler.preemption_rig import FOREVER, Rig, assert_right

SWAPPED = RequestStatus.SWAPPED


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_swapped_request_computes_nothing_twice(prefix_cache: bool) -> None:
    """It goes on with the next token: what was copied out comes back or was still cached."""
    rig = Rig(prefix_cache=prefix_cache)
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(3, request)
    rig.swap(request)
    assert request.status is SWAPPED
    statistics = rig.engine.core.statistics()
    assert (statistics.num_swapped, statistics.num_waiting, statistics.num_running) == (1, 0, 0)
    assert statistics.replicas[0].host.num_held == 4
    rig.resume()
    plan = rig.engine.plan()
    assert plan is not None
    assert plan.rows["num_new_tokens"].tolist() == [1]
    rig.engine.answer()
    rig.end(request)
    metering = rig.metering
    assert metering.swapped_out_tokens == 15
    assert metering.swapped_in_tokens == (3 if prefix_cache else 15)
    assert metering.recomputed_tokens == metering.recomputed_after_swap_tokens == 0
    assert metering.preemptions_by[PreemptionKind.SWAP, PreemptionCause.ADMISSION] == 1


def test_a_plan_may_have_copies_alone() -> None:
    """A swap travels at once, even if nothing is left to compute."""
    rig = Rig()
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(1, request)
    rig.policy.orders.append(Preemption(request, Relief.SWAP))
    rig.policy.grants = False
    plan = rig.engine.plan()
    assert plan is not None
    assert len(plan.rows) == 0
    assert set(plan.copies["direction"].tolist()) == {CopyDirection.OUT}
    rig.engine.answer()
    rig.resume()
    rig.end(request)


@pytest.mark.parametrize("depth", [1, 2])
def test_victims_of_growth_are_swapped(depth: int) -> None:
    """Under pressure the latest request waits on the host, and both get their own tokens."""
    rig = Rig(9, pipeline_depth=depth, prefix_cache=False)
    rig.policy.relief = Relief.SWAP
    first, second = rig.submit(1, [11] * 12, 16), rig.submit(2, [12] * 12, 16)
    rig.end(first, second)
    by_cause = rig.metering.preemptions_by[PreemptionKind.SWAP]
    assert by_cause[PreemptionCause.GROWTH] == second.num_preemptions == 1
    assert rig.metering.recomputed_after_swap_tokens == 0


def test_what_was_in_flight_is_computed_again() -> None:
    """With a plan in flight the acknowledged tokens are kept, and the one under way is not."""
    rig = Rig(pipeline_depth=2, prefix_cache=False)
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(3, request)
    assert len(rig.engine.unanswered[0]) == 1
    num_delivered = len(rig.engine.transcript(request).token_ids)
    rig.policy.orders.append(Preemption(request, Relief.SWAP))
    rig.policy.grants = False
    rig.engine.plan()
    assert request.status is SWAPPED
    assert request.num_pins == 1
    while rig.engine.unanswered[0]:
        rig.engine.answer()
    assert len(rig.engine.transcript(request).token_ids) == num_delivered
    rig.resume()
    rig.end(request)
    assert rig.metering.recomputed_tokens == 0


def test_others_may_write_what_was_copied_in_the_same_plan() -> None:
    """A start on memory that a swap frees begins in the plan that copies it."""
    rig = Rig(8, prefix_cache=False)
    first = rig.submit(1, [11] * 20, 8)
    rig.run_until(2, first)
    second = rig.submit(2, [12] * 24, 8)
    rig.policy.orders.append(Preemption(first, Relief.SWAP))
    rig.policy.grants = False
    plan = rig.engine.plan()
    assert plan is not None
    rig.engine.answer()
    rig.resume()
    rig.end(first, second)
    assert rig.metering.swapped_in_tokens == rig.metering.swapped_out_tokens > 0


def test_a_lost_prefix_is_computed_again() -> None:
    """Without the prefix that it shared, what a request has on the host is worth nothing."""
    rig = Rig(20)
    prefix = list(range(10, 26))
    first = rig.submit(1, [*prefix, 7], 20)
    rig.run_until(1, first)
    second = rig.submit(2, [*prefix, 8, 9])
    rig.run_until(2, second)
    rig.swap(second)
    assert rig.engine.core.statistics().replicas[0].host.num_held == 1
    rig.engine.tell(ev.Abort(1))
    wide = rig.engine.make_request(3, list(range(100, 178)), 2, sampling=FOREVER)
    wide.arrival_ns = 0
    rig.engine.submit(wide)
    rig.resume()
    rig.end(second, wide)
    assert rig.metering.recomputed_after_swap_tokens == 19


@pytest.mark.parametrize("num_host_blocks", [0, 2])
def test_without_room_on_the_host_it_is_recomputed(num_host_blocks: int) -> None:
    """A swap that does not fit is a plain preemption, and is counted as one."""
    rig = Rig(num_host_blocks=num_host_blocks)
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(2, request)
    rig.swap(request)
    assert request.status is RequestStatus.PREEMPTED
    rig.resume()
    rig.end(request)
    assert rig.metering.preemptions_by[PreemptionKind.RECOMPUTE].sum() == 1
    assert rig.metering.swapped_out_tokens == 0


def test_an_abort_while_swapped_frees_the_host() -> None:
    """A swapped request can end like any other that waits."""
    rig = Rig()
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(2, request)
    rig.swap(request)
    rig.engine.tell(ev.Abort(1))
    assert request.status is RequestStatus.FINISHED_ABORTED
    assert rig.engine.core.num_requests == 0
    rig.end()


def test_a_stop_while_swapped_ends_it_there() -> None:
    """A stop string that is found late ends a swapped request with what it was before."""
    rig = Rig()
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(4, request)
    rig.swap(request)
    rig.engine.tell(ev.Stop(1, 2))
    assert request.status is RequestStatus.FINISHED_STOPPED
    assert request.num_output_tokens == 2
    rig.end()


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_dead_executor_takes_the_copies_with_it(is_gone: bool) -> None:
    """Its host memory is lost: the request is recomputed, here or on the other replica."""
    rig = Rig(num_replicas=2)
    rig.engine.tell(ev.DrainReplica(1))
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(3, request)
    rig.swap(request)
    rig.engine.kill(0, gone=is_gone)
    assert request.status is RequestStatus.PREEMPTED
    rig.engine.core.check_integrity()
    rig.engine.start(1) if is_gone else rig.engine.start(0)
    rig.engine.tell(ev.UndrainReplica(1))
    rig.resume()
    rig.end(request)
    assert rig.metering.recomputed_tokens == 15


def test_a_swapped_request_goes_home() -> None:
    """It starts where its copies are, however idle another replica is; unless home is draining."""
    rig = Rig(num_replicas=2, prefix_cache=False)
    rig.engine.start(1)
    request = rig.submit(1, list(range(10, 23)))
    rig.engine.plan(0)
    rig.run_until(3, request)
    home = request.replica
    rig.swap(request)
    rig.resume()
    assert rig.engine.plan(1 - home) is None
    rig.engine.tell(ev.DrainReplica(home))
    assert rig.engine.plan(1 - home) is not None
    assert rig.engine.core.statistics().replicas[home].host.num_held == 0
    rig.engine.answer(1 - home)
    rig.end(request)
    assert rig.metering.recomputed_after_swap_tokens == 15


def test_a_new_scheduler_knows_nothing_of_the_host() -> None:
    """After a restart of the scheduler a request that was swapped is resumed by recomputation."""
    rig = Rig()
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(3, request)
    rig.swap(request)
    engine, delivered = rig.engine, len(rig.engine.transcript(request).token_ids)
    settings = engine.settings
    engine.metering = Metering(BUCKETS, 8)
    engine.core = EngineCore(settings, engine.rows, engine.metering, ScriptedPolicy(settings))
    engine.tell(ev.ReplicaUp(0, 1, engine.num_blocks, num_host_blocks=engine.num_host_blocks))
    resumed = engine.make_request(2, [1], 1)
    resumed.token_ids = request.token_ids
    resumed.span_start, resumed.prompt_len = request.span_start, request.prompt_len
    resumed.max_tokens, resumed.num_output_tokens = request.max_tokens, delivered
    resumed.sampling = FOREVER
    engine.transcripts[2] = engine.transcripts[1]
    engine.owners.clear()
    engine.submit(resumed)
    engine.run()
    assert_right(engine, resumed)
    assert engine.metering.swapped_in_tokens == 0
    engine.core.check_integrity()
    assert_right(engine, resumed)


def test_prompt_logprobs_are_not_interrupted() -> None:
    """A prompt that is being scored is recomputed: the states between its tokens are not kept."""
    rig = Rig(max_num_batched_tokens=8)
    scored = SamplingParams(ignore_eos=True, num_prompt_logprobs=0)
    request = rig.engine.make_request(1, list(range(10, 30)), 4, sampling=scored)
    rig.engine.submit(request)
    rig.engine.step()
    rig.swap(request)
    assert request.status is RequestStatus.PREEMPTED
    rig.resume()
    rig.engine.run()
    scores = rig.engine.transcript(request).prompt_logprobs
    assert scores == {position: -float(position) for position in range(20)}


def test_a_start_beyond_the_copies_of_a_plan_waits() -> None:
    """No plan copies more than its ring has room for; the rest comes with the next one."""
    rig = Rig(200, 200, max_model_len=32, prefix_cache=False, max_num_batched_tokens=64)
    requests = [rig.submit(i, [10 + i] * 20, 8) for i in range(5)]
    for request in requests:
        rig.run_until(1, request)
    for request in requests[:3]:
        rig.policy.orders.append(Preemption(request, Relief.SWAP))
    rig.policy.grants = False
    rig.engine.step()
    assert [r.status for r in requests[:3]].count(SWAPPED) == 2  # 2 · 8 blocks
    rig.resume()
    rig.end(*requests)


def test_one_that_is_preempted_where_it_returned_is_not_filled() -> None:
    """Its copies are dropped with its blocks, which another request may take in the same step."""
    rig = Rig(prefix_cache=False)
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(3, request)
    rig.swap(request)
    other = rig.submit(2, [90] * 13)
    step = StepBuilder(rig.engine.core._scheduler, rig.engine.core._replicas[0], 1)
    assert step.grant(request, 99) == Grant(1)
    step.preempt(request, Relief.SWAP)
    assert request.status is RequestStatus.PREEMPTED
    assert step.grant(other, 99) == Grant(13)
    plan = step.finish()
    assert plan is not None
    assert len(plan.copies) == 0
