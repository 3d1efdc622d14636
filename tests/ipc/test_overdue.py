"""How long is too long: loops that are idle, in a step, or take their time to start."""

import pytest

from ipc.heartbeat import HeartbeatState
from ipc.overdue import IN_A_STEP, PATIENCE_S, SLOW_ACTIVITIES, overdue_s

EVER_S = 1e6


def test_the_activities_are_those_of_heartbeats() -> None:
    """Words of recordings and of answers are the names of states."""
    assert {*SLOW_ACTIVITIES, IN_A_STEP} < {state.name.lower() for state in HeartbeatState}


@pytest.mark.parametrize("activity", SLOW_ACTIVITIES)
def test_who_starts_loads_or_compiles_is_never_overdue(activity: str) -> None:
    """However long it takes: that has a limit of its own."""
    assert overdue_s(activity, silent_s=EVER_S, plan_age_s=EVER_S) == 0.0


def test_who_has_nothing_to_do_owes_a_heartbeat() -> None:
    """Its loop stamps a few times a second."""
    for activity in ("idle", "draining"):
        assert overdue_s(activity, silent_s=PATIENCE_S) == 0.0
        assert overdue_s(activity, silent_s=PATIENCE_S + 0.1) == PATIENCE_S + 0.1


def test_a_step_is_measured_by_what_was_expected_of_it() -> None:
    """Ten times as long is no step; below two seconds nobody is alarmed."""
    assert overdue_s(IN_A_STEP, silent_s=PATIENCE_S, expected_s=0.01) == 0.0
    assert overdue_s(IN_A_STEP, silent_s=2.5, expected_s=0.01) == 2.5
    assert overdue_s(IN_A_STEP, silent_s=2.5) == 2.5
    assert overdue_s(IN_A_STEP, silent_s=9.0, expected_s=1.0) == 0.0
    assert overdue_s(IN_A_STEP, silent_s=11.0, expected_s=1.0) == 11.0


def test_a_loop_that_stamps_while_its_plan_grows_old_is_overdue() -> None:
    """Its device does not come to an end, or the plan was never taken up."""
    for activity in (IN_A_STEP, "idle"):
        assert overdue_s(activity, silent_s=0.1, plan_age_s=1.9) == 0.0
        assert overdue_s(activity, silent_s=0.1, plan_age_s=3.0) == 3.0
        assert overdue_s(activity, silent_s=0.1, plan_age_s=3.0, expected_s=0.5) == 0.0
