"""Live, ready and progress: three answers, each true only for its own reasons."""

from typing import Any

import pytest

from core.clock import NS_PER_S
from core.config.processes import SupervisionConfig
from core.supervision.states import ProcessState
from frontends.boards import Boards
from frontends.health import Health, assess
from ipc.heartbeat import HeartbeatState
from tests.support.control_plane.boards import (
    CHILDREN,
    NOW_NS,
    beat,
    child_row,
    healthy,
    page,
    replica_fields,
    scheduler_fields,
    supervisor_fields,
)

LIMITS = SupervisionConfig()  # hang 10 s, progress 5 s


def health(boards: Boards) -> Health:
    """Return the verdicts under the default limits."""
    return assess(boards, LIMITS)


def with_scheduler(**fields: Any) -> Boards:
    """Return a healthy engine with fields of the scheduler's page replaced."""
    return healthy({"scheduler": page("scheduler", scheduler_fields(**fields))})


def with_children(**states: dict[str, Any]) -> Boards:
    """Return a healthy engine with rows of the supervisor's page replaced."""
    rows = [child_row(c, **states.get(c.replace(".", "_"), {})) for c in CHILDREN]
    return healthy({"supervisor": page("supervisor", supervisor_fields(rows))})


def test_an_engine_at_work_is_live_ready_and_makes_progress() -> None:
    """Nothing speaks against a healthy engine."""
    assert health(healthy()).overall.ok


def test_an_engine_before_its_first_page_is_neither_live_nor_ready() -> None:
    """Silence is not health; but nothing waits, so nothing is stuck."""
    verdicts = health(Boards(NOW_NS))
    assert not verdicts.live.ok
    assert not verdicts.ready.ok
    assert verdicts.progress.ok


def test_a_silent_supervisor_is_not_live() -> None:
    """Liveness is the supervisor's own loop."""
    verdicts = health(healthy(beats={"supervisor": beat(age_s=11.0)}))
    assert verdicts.live.reasons == ("supervisor: silent for 11.0 s",)


def test_a_process_that_was_given_up_ends_liveness() -> None:
    """What the supervisor will not restart needs a new engine."""
    row = {"state": ProcessState.GIVEN_UP, "fault": b"4 deaths within 60000 ms"}
    verdicts = health(with_children(executor_0_0=row))
    assert verdicts.live.reasons == ("executor.0.0: given up: 4 deaths within 60000 ms",)


def test_a_replica_that_was_given_up_is_told_and_ends_nothing() -> None:
    """As long as another one is there, nobody is advised to restart the engine or to stay away."""
    names = (*CHILDREN, "executor.1.0")
    fault = {"state": ProcessState.GIVEN_UP, "fault": b"model.safetensors is damaged"}
    rows = [child_row(name, **(fault if name == "executor.1.0" else {})) for name in names]
    verdicts = health(healthy({"supervisor": page("supervisor", supervisor_fields(rows))}))
    assert verdicts.overall.ok
    assert verdicts.complete.reasons == ("executor.1.0: given up: model.safetensors is damaged",)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ready": 0}, "the scheduler does not admit yet"),
        ({"draining": 1}, "the engine is draining"),
        ({"replicas": [replica_fields(epoch=0)]}, "no replica takes work"),
        ({"replicas": [replica_fields(draining=1)]}, "no replica takes work"),
    ],
)
def test_readiness_is_what_the_scheduler_admits(fields: dict[str, Any], reason: str) -> None:
    """Each reason against admitting is told, and only readiness suffers."""
    verdicts = health(with_scheduler(**fields))
    assert verdicts.ready.reasons == (reason,)
    assert verdicts.live.ok
    assert verdicts.progress.ok


def test_a_stopping_engine_is_not_ready() -> None:
    """From SIGTERM on, load balancers look elsewhere."""
    fields = supervisor_fields(stopping=1)
    verdicts = health(healthy({"supervisor": page("supervisor", fields)}))
    assert verdicts.ready.reasons == ("the engine is stopping",)


@pytest.mark.parametrize("kind", ["scheduler", "tokenizer.0", "http.0"])
def test_a_silent_process_on_the_data_path_is_not_ready(kind: str) -> None:
    """One process of each kind must stamp its heartbeat."""
    name = kind.partition(".")[0]
    verdicts = health(healthy(beats={kind: beat(age_s=12.5)}))
    assert verdicts.ready.reasons == (f"{name}: silent for 12.5 s",)


def test_a_promised_silence_is_believed_until_its_end() -> None:
    """A loop that said it would be busy until then is not silent."""
    busy = beat(age_s=30.0, state=HeartbeatState.BUSY, busy_until_ns=NOW_NS + NS_PER_S)
    assert health(healthy(beats={"scheduler": busy})).ready.ok
    over = beat(age_s=30.0, state=HeartbeatState.BUSY, busy_until_ns=NOW_NS - 1)
    assert not health(healthy(beats={"scheduler": over})).ready.ok


@pytest.mark.parametrize(
    "row", [{"state": ProcessState.EXITED}, {"state": ProcessState.BACKOFF}, {"epoch": 2}]
)
def test_a_dead_process_does_not_serve_however_fresh_its_last_heartbeat(
    row: dict[str, Any],
) -> None:
    """Between a death and the successor's first heartbeat nobody serves."""
    assert health(with_children(scheduler=row)).ready.reasons == ("scheduler: none serves",)


def test_a_running_replica_whose_plan_is_overdue_makes_no_progress() -> None:
    """An executor that hangs in a step is seen by the age of its plan."""
    row = replica_fields(num_running=3, plan_sent_ns=NOW_NS - 6 * NS_PER_S)
    verdicts = health(with_scheduler(replicas=[replica_fields(), row]))
    assert verdicts.progress.reasons == ("replica 1: 3 running and no step has ended for 6.0 s",)


def test_a_first_step_after_a_long_idle_time_is_progress() -> None:
    """The clock of a step starts when its plan is sent, not at the end of the last one."""
    row = replica_fields(
        num_running=1, last_step_ns=NOW_NS - 900 * NS_PER_S, plan_sent_ns=NOW_NS - NS_PER_S
    )
    assert health(with_scheduler(replicas=[row])).progress.ok


def test_an_idle_engine_makes_progress_however_old_its_last_step_is() -> None:
    """Nothing to do is not a fault."""
    row = replica_fields(last_step_ns=NOW_NS - 900 * NS_PER_S)
    assert health(with_scheduler(replicas=[row])).progress.ok


def test_requests_that_wait_while_no_step_ends_are_no_progress() -> None:
    """A scheduler that has stopped planning is seen by those who wait."""
    row = replica_fields(last_step_ns=NOW_NS - 7 * NS_PER_S)
    waiting = with_scheduler(replicas=[row], num_waiting=1, oldest_wait_ns=6 * NS_PER_S)
    reasons = health(waiting).progress.reasons
    assert reasons == ("a request has waited for 6.0 s and no step has ended for 7.0 s",)
    stepping = with_scheduler(num_waiting=1, oldest_wait_ns=6 * NS_PER_S)
    assert health(stepping).progress.ok
