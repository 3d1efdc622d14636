"""Deaths of tokenizer, scheduler and executor loops, over loopback, in virtual time.

How: the same seeded operations run undisturbed once; then with a death between any two steps. What
http was told must be the same tokens, or an end with a reason.
"""

import pytest

from core.errors import RejectionReason
from tests.support.loops.five_operations import (
    OPERATIONS,
    assert_intact,
    send_all,
)
from tests.support.loops.loop_rig import LoopRig

KILL_POINTS = [*range(1, 13), 14, 17, 20, 24, 30]


@pytest.mark.parametrize("pipeline_depth", [1, 2])
@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_the_death_of_the_executor_costs_time_only(kill_point: int, pipeline_depth: int) -> None:
    """Whenever it dies, its requests are recomputed by the next instance; no token changes."""
    rig = LoopRig(pipeline_depth=pipeline_depth)
    send_all(rig)
    rig.rounds(kill_point)
    if kill_point % 2:
        rig.plan_only()
    rig.kill_executor()
    rig.rounds(5)
    rig.start_executor()
    rig.run()
    assert_intact(rig)


@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_an_executor_replaced_at_once_is_noticed(kill_point: int) -> None:
    """Even if nobody looked while there was none."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(kill_point)
    rig.kill_executor()
    rig.start_executor()
    rig.run()
    assert_intact(rig)


@pytest.mark.parametrize("pipeline_depth", [1, 2])
@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_the_death_of_the_scheduler_costs_time_only(kill_point: int, pipeline_depth: int) -> None:
    """The tokenizer resubmits what is alive behind the tokens it has delivered."""
    rig = LoopRig(pipeline_depth=pipeline_depth)
    send_all(rig)
    rig.rounds(kill_point)
    rig.kill_scheduler()
    rig.rounds(20)
    rig.start_scheduler()
    rig.run()
    assert_intact(rig)


@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_scheduler_and_executor_may_die_together(kill_point: int) -> None:
    """Both come back, in either order, and no token changes."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(kill_point)
    rig.kill_scheduler()
    rig.kill_executor()
    if kill_point % 2:
        rig.start_executor()
        rig.rounds(3)
    rig.start_scheduler()
    rig.rounds(3)
    if not kill_point % 2:
        rig.start_executor()
    rig.run()
    assert_intact(rig)


@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_the_requests_of_a_dead_tokenizer_leave_nothing_in_the_spans_of_the_next(
    kill_point: int,
) -> None:
    """The next instance takes the same ids of the arena at once, and its operations are right."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(kill_point)
    rig.kill_tokenizer()
    rig.start_tokenizer()
    rig.http.messages.clear()
    send_all(rig)
    rig.run()
    assert_intact(rig)


@pytest.mark.parametrize("kill_point", [2, 6, 12])
def test_a_tokenizer_replaced_while_the_scheduler_stands_still_waits_for_it(
    kill_point: int,
) -> None:
    """Else results that the scheduler has yet to read would be written into a new prompt, for other
    operations lie now where the old ones lay.
    """
    rig = LoopRig()
    send_all(rig)
    rig.rounds(kill_point)
    rig.plan_only()
    sleeper, rig.scheduler = rig.scheduler, None
    rig.rounds(1)  # the executor computes
    rig.kill_tokenizer()
    rig.start_tokenizer()
    rig.http.messages.clear()
    send_all(rig, reversed(OPERATIONS))
    rig.rounds(30)
    rig.scheduler = sleeper
    rig.run()
    assert_intact(rig)


def test_the_requests_of_a_dead_tokenizer_end() -> None:
    """Rows and blocks are free without anybody's asking."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(12)
    rig.kill_tokenizer()
    rig.run()
    rig.check_idle()


@pytest.mark.parametrize("pipeline_depth", [1, 2])
def test_schedulers_that_die_one_after_the_other_leave_room_for_plans(pipeline_depth: int) -> None:
    """An executor in a long step keeps the plans of all of them in its ring."""
    rig = LoopRig(pipeline_depth=pipeline_depth)
    send_all(rig)
    rig.rounds(12)
    [sleeper], rig.executors = rig.executors, []
    for _ in range(4):
        rig.kill_scheduler()
        rig.start_scheduler()
        rig.rounds(30)
    rig.executors = [sleeper]
    rig.run()
    assert_intact(rig)


def test_a_request_moves_to_the_replica_that_is_left() -> None:
    """With one executor given up for good, the other one ends all operations."""
    rig = LoopRig(num_replicas=2)
    send_all(rig)
    rig.rounds(15)
    rig.kill_executor(1, given_up=True)
    rig.run()
    assert_intact(rig)


def test_without_any_replica_left_every_operation_ends_with_a_reason() -> None:
    """Nothing hangs: running and waiting ones end at once, later ones are refused."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(6)
    rig.kill_executor(given_up=True)
    rig.run()
    rig.send("late")
    rig.run()
    reasons = set()
    for operation_id in (*OPERATIONS, "late"):
        ends = [chunk.rejection for chunk in rig.http.chunks(operation_id)]
        ends += [f.rejection for f in rig.http.failed() if f.operation_id == operation_id]
        given = {end.reason for end in ends if end is not None}
        assert given, operation_id
        reasons |= given
    assert reasons == {RejectionReason.NO_REPLICA}
    rig.check_idle()


def test_a_request_in_flight_at_too_many_crashes_is_not_tried_again() -> None:
    """A poison request ends with an error; it does not bring down executor after executor."""
    rig = LoopRig(poison_crashes=2)
    rig.send("poison", max_tokens=40)
    for _ in range(2):
        rig.rounds(8)
        rig.plan_only()
        rig.kill_executor()
        rig.rounds(3)
        rig.start_executor()
    rig.run()
    last = rig.http.chunks("poison")[-1]
    assert last.finish_reason == "error"
    assert last.rejection is not None
    assert last.rejection.reason is RejectionReason.EXECUTOR_FAULT
    rig.check_idle()


def test_a_tokenizer_that_dies_before_a_full_ring_is_noticed() -> None:
    """Its requests end although nothing can be sent, and so do their rows and blocks."""
    rig = LoopRig(output_slots=2)
    send_all(rig)
    rig.rounds(6)
    sleeper, rig.tokenizer = rig.tokenizer, None
    rig.rounds(50)
    rig.tokenizer = sleeper
    rig.kill_tokenizer()
    rig.rounds(10)
    rig.check_idle()
