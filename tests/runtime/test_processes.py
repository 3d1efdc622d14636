"""Child processes: what they are given, how they are held, what the janitor knows of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from core.config.engine import MAX_REPLICAS, EngineConfig
from core.config.headrace import HeadraceConfig
from core.config.processes import (
    MAX_ADMIN_WORKERS,
    MAX_HTTP_PROCESSES,
    MAX_TOKENIZERS,
    AdminConfig,
    HttpConfig,
    TokenizerConfig,
)
from core.runtime.janitor import has_ended, hold, kill, roster_line
from core.runtime.supervisor.launch import ChildProcess, child_environment
from core.runtime.wiring import (
    doorbell_names,
    heartbeat_slots,
    inherited_names,
    output_ring_layout,
    plan_ring_layout,
    result_ring_layout,
)
from core.supervision.spec import child_specs
from core.supervision.watch import Activity
from ipc.heartbeat import NUM_SLOTS, HeartbeatState
from ipc.owner import owner_of
from ipc.pages import MAX_PAGE_CHILDREN

SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that does nothing until it is ended."""
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_roster_line_leads_to_its_process(sleeper: subprocess.Popen[bytes]) -> None:
    """The janitor can end what the supervisor wrote down."""
    pidfd = hold(roster_line(sleeper.pid).decode())
    assert pidfd is not None
    assert not has_ended(pidfd)
    kill([pidfd])
    assert sleeper.wait() == -signal.SIGKILL
    assert has_ended(pidfd)


def test_a_reused_pid_is_not_held(sleeper: subprocess.Popen[bytes]) -> None:
    """A line with another start time is about a process that is gone."""
    owner = owner_of(sleeper.pid)
    assert owner is not None
    assert hold(f"{sleeper.pid} {owner.start_ticks + 1}") is None


def test_a_process_that_is_gone_has_no_line_and_no_handle() -> None:
    """A death before the line is written, or before it is read, is no fault."""
    with subprocess.Popen(SLEEPER, stdin=subprocess.DEVNULL) as process:
        line = roster_line(process.pid)
    assert roster_line(process.pid) == b""
    assert not line or hold(line.decode()) is None


def test_a_signal_to_an_ended_child_is_nothing() -> None:
    """A pidfd never reaches another process."""
    popen = subprocess.Popen(SLEEPER, stdin=subprocess.DEVNULL)
    child = ChildProcess(popen.pid, os.pidfd_open(popen.pid), popen)
    child.wait(30)
    child.send_signal(signal.SIGKILL)
    assert child.returncode() == 0
    child.close()


def test_a_child_that_does_not_end_in_time_is_killed(sleeper: subprocess.Popen[bytes]) -> None:
    """Waiting has a deadline."""
    child = ChildProcess(sleeper.pid, os.pidfd_open(sleeper.pid), sleeper)
    child.wait(timeout_s=0.0)
    assert child.returncode() == -signal.SIGKILL
    child.close()


def test_the_environment_of_a_child_is_explicit() -> None:
    """Nothing is passed on that is not on the list; only executors get threads."""
    config = HeadraceConfig(engine=EngineConfig(threads=3))
    environ = {"PATH": "/bin", "SECRET": "x", "LD_PRELOAD": "y", "OMP_NUM_THREADS": "64"}
    seen = {
        spec.kind.value: child_environment(spec, config, environ) for spec in child_specs(config)
    }
    assert all("SECRET" not in given and "LD_PRELOAD" not in given for given in seen.values())
    assert all(given["PATH"] == "/bin" for given in seen.values())
    threads = {kind: given["OMP_NUM_THREADS"] for kind, given in seen.items()}
    assert threads.pop("executor") == "3"
    assert set(threads.values()) == {"1"}


def test_every_doorbell_has_both_ends() -> None:
    """Each is given to one child besides the scheduler, or is the supervisor's to ring."""
    config = HeadraceConfig(engine=EngineConfig(replicas=3))
    given = {spec.id: inherited_names(spec, config) for spec in child_specs(config)}
    rung_by_supervisor = [
        name for name in doorbell_names(config) if name.startswith(("directory.", "state"))
    ]
    assert given.pop("scheduler") + rung_by_supervisor == doorbell_names(config)
    others = [name for names in given.values() for name in names if name not in ("http", "admin")]
    assert sorted(others) == sorted(doorbell_names(config))


def test_the_largest_engine_has_room_for_all_heartbeats() -> None:
    """One line each, the supervisor's included, none shared; and its page for all children."""
    config = HeadraceConfig(
        engine=EngineConfig(replicas=MAX_REPLICAS),
        tokenizer=TokenizerConfig(processes=MAX_TOKENIZERS),
        http=HttpConfig(processes=MAX_HTTP_PROCESSES),
        admin=AdminConfig(workers=MAX_ADMIN_WORKERS),
    ).check()
    slots = heartbeat_slots(child_specs(config))
    assert len(set(slots.values())) == len(slots) <= NUM_SLOTS
    assert len(slots) - 1 <= MAX_PAGE_CHILDREN


def test_the_rings_take_the_largest_frames() -> None:
    """A plan of all rows, a result with all log-probabilities, an output frame with as many."""
    config = HeadraceConfig(
        engine=EngineConfig(max_num_seqs=4096, max_num_batched_tokens=65536, pipeline_depth=2)
    )
    plan_bytes = plan_ring_layout(config).parameters[1]
    result_bytes = result_ring_layout(config).parameters[1]
    assert plan_bytes >= 4096 * 20
    assert result_bytes >= 4096 * 36 + (4096 + 65536) * 21 * 8
    assert output_ring_layout(config).parameters[1] >= (4096 + 65536) * 21 * 8


def test_activities_are_the_states_of_heartbeats() -> None:
    """The pure tables and the wire use the same numbers for the same words."""
    assert {a.name: a.value for a in Activity} == {s.name: s.value for s in HeartbeatState}
