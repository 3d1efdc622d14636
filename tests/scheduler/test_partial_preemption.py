"""Requests that give back tail blocks only: they keep row and head, and go on when they can."""

import pytest

from core.metering import PreemptionCause, PreemptionKind
from core.policy.base import Blocked, Grant, Preemption, Relief
from core.request import Request, RequestStatus
from core.sampling_params import SamplingParams
from core.scheduler import events as ev
from core.scheduler.step_builder import StepBuilder
from tests.support.scheduler.preemption_rig import FOREVER, Rig

RUNNING = RequestStatus.RUNNING


def running(rig: Rig, num_output_tokens: int = 3) -> Request:
    """Return a request of 13 prompt tokens that has so many outputs, in blocks of 4."""
    request = rig.submit(1, list(range(10, 23)))
    rig.run_until(num_output_tokens, request)
    return request


def test_it_keeps_its_row_and_its_head() -> None:
    """Blocks given back are free; what lies in the others is not computed again."""
    rig = Rig(prefix_cache=False)
    request = running(rig)
    row, head = request.row, request.block_ids[:2]
    rig.take(request, num_blocks=2)
    assert (request.status, request.row, request.block_ids) == (RUNNING, row, head)
    assert rig.engine.core.statistics().replicas[0].pool.num_free == 98
    rig.resume()
    plan = rig.engine.plan()
    assert plan is not None
    entry = plan.rows[0]
    assert (entry["row"], entry["first_position"], entry["num_new_tokens"]) == (row, 8, 8)
    assert request.block_ids[:2] == head
    rig.engine.answer()
    rig.end(request)
    assert rig.metering.recomputed_tokens == 7
    assert rig.metering.preemptions_by[PreemptionKind.PARTIAL, PreemptionCause.ADMISSION] == 1


def test_it_regrows_only_when_all_its_tokens_fit() -> None:
    """Until then a grant is refused for memory, and what it lacks is not taken piece by piece."""
    rig = Rig(8, prefix_cache=False)
    request = running(rig)
    rig.take(request, num_blocks=3)
    other = rig.submit(2, [90] * 20, 8)
    step = StepBuilder(rig.engine.core._scheduler, rig.engine.core._replicas[0], 1)
    step.add_decodes()
    assert step.prefills() == [request]
    assert step.grant(other, 99) == Grant(20)
    assert step.grant(request, 1) == Grant(0, Blocked.MEMORY)
    assert len(request.block_ids) == 1


def test_a_short_request_can_be_aborted_stopped_and_swapped() -> None:
    """Whatever happens to others that run can happen to one that waits for its tail."""
    for event in (ev.Abort(1), ev.Stop(1, 2)):
        rig = Rig()
        request = running(rig)
        rig.take(request, num_blocks=2)
        rig.engine.tell(event)
        assert request.status.is_finished
        rig.end()
    rig = Rig(prefix_cache=False)
    request = running(rig)
    rig.take(request, num_blocks=2)
    rig.take(request, Relief.SWAP)
    assert request.status is RequestStatus.SWAPPED
    rig.resume()
    rig.end(request)
    assert rig.metering.swapped_in_tokens == 8


def test_a_dead_executor_takes_its_head_too() -> None:
    """A short request returns to the queue like all that ran."""
    rig = Rig()
    request = running(rig)
    rig.take(request, num_blocks=2)
    rig.engine.kill(0)
    assert request.status is RequestStatus.PREEMPTED
    rig.engine.start(0)
    rig.resume()
    rig.end(request)


def test_with_a_plan_in_flight_it_gives_everything() -> None:
    """What a plan in flight writes cannot be taken away: the preemption becomes a whole one."""
    rig = Rig(pipeline_depth=2)
    request = running(rig)
    assert len(rig.engine.unanswered[0]) == 1
    rig.take(request, num_blocks=1)
    assert request.status is RequestStatus.PREEMPTED
    rig.resume()
    rig.end(request)
    assert rig.metering.preemptions_by[PreemptionKind.RECOMPUTE, PreemptionCause.ADMISSION] == 1


@pytest.mark.parametrize("num_blocks", [4, 5, 100])
def test_all_blocks_are_a_whole_preemption(num_blocks: int) -> None:
    """One that has nothing left to keep leaves its row."""
    rig = Rig()
    request = running(rig)
    rig.take(request, num_blocks=num_blocks)
    assert request.status is RequestStatus.PREEMPTED
    rig.resume()
    rig.end(request)


def test_prompt_logprobs_are_not_interrupted() -> None:
    """A prompt that is being scored leaves its row, because states between tokens are not kept."""
    rig = Rig(max_num_batched_tokens=8)
    scored = SamplingParams(ignore_eos=True, num_prompt_logprobs=0)
    request = rig.engine.make_request(1, list(range(10, 30)), 4, sampling=scored)
    rig.engine.submit(request)
    rig.engine.step()
    rig.take(request, num_blocks=2)
    assert request.status is RequestStatus.PREEMPTED
    rig.resume()
    rig.engine.run()
    scores = rig.engine.transcript(request).prompt_logprobs
    assert scores == {position: -float(position) for position in range(20)}


def test_victims_of_growth_give_what_is_needed() -> None:
    """Under pressure a victim gives one block, keeps the rest, and both get their own tokens."""
    rig = Rig(9, prefix_cache=False)
    rig.policy.num_blocks = 1
    first, second = rig.submit(1, [11] * 12, 16), rig.submit(2, [12] * 12, 16)
    rig.end(first, second)
    assert rig.metering.preemptions_by[PreemptionKind.PARTIAL, PreemptionCause.GROWTH] > 0
    assert first.num_preemptions == 0
    assert second.num_preemptions <= rig.engine.settings.max_preemptions


def test_a_standstill_ends() -> None:
    """When all that run wait for each other's memory, the last one gives up all of its own."""
    rig = Rig(9, prefix_cache=False, max_preemptions=1)
    first, second = rig.submit(1, [11] * 12, 16), rig.submit(2, [12] * 12, 16)
    rig.run_until(2, second)
    rig.take(first, num_blocks=1)
    rig.take(second, num_blocks=1)
    assert first.row >= 0 <= second.row
    rig.resume()
    rig.end(first, second)
    by_cause = rig.metering.preemptions_by.sum(axis=0)
    assert by_cause[PreemptionCause.STANDSTILL] == 1
    assert first.num_preemptions == second.num_preemptions == 1


def test_a_tail_that_was_never_written_costs_nothing() -> None:
    """Blocks of a prompt that is not there yet are given back without computing anything twice."""
    rig = Rig(max_num_batched_tokens=8, prefix_cache=False)
    request = rig.engine.make_request(1, list(range(10, 30)), 4, sampling=FOREVER)
    rig.engine.submit(request)
    rig.engine.step()
    rig.take(request, num_blocks=3)
    assert len(request.block_ids) == 2
    rig.resume()
    rig.end(request)
    assert rig.metering.recomputed_tokens == 0


def test_a_step_that_only_took_memory_is_tried_again() -> None:
    """A policy that takes from the only one that runs, and grants nothing until it is asked again,
    does not stop the engine.
    """
    rig = Rig(9, prefix_cache=False)
    request = rig.submit(1, [11] * 12, 16)
    rig.run_until(2, request)

    def take_once() -> list[Preemption]:
        is_due = not request.num_preemptions
        rig.policy.grants = not is_due
        return [Preemption(request)] if is_due else []

    rig.policy.asked = take_once
    rig.end(request)
    assert request.num_preemptions == 1


def test_who_is_taken_from_after_it_was_relieved_goes_on() -> None:
    """A policy that takes from the one that has just been relieved does not stop the engine."""
    rig = Rig(9, prefix_cache=False)
    first, second = rig.submit(1, [11] * 12, 16), rig.submit(2, [12] * 12, 16)

    def spite() -> list[Preemption]:
        is_due = second.status is RequestStatus.PREEMPTED and not first.num_preemptions
        return [Preemption(first)] if is_due else []

    rig.policy.asked = spite
    rig.end(first, second)
    assert first.num_preemptions == second.num_preemptions == 1
