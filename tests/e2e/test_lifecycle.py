"""An engine from start to end: what it says, what it leaves, and what it refuses to start with."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ipc.base_directory import default_base, locked
from tests.e2e.conftest import SIMULATED
from tests.support.processes.commands import command, done, shut_down
from tests.support.processes.engine import (
    STOP_TIMEOUT_S,
    Engine,
    engine_environment,
    running_engine,
    serve_command,
    still_running,
    unique_name,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

REFUSAL_TIMEOUT_S = 180.0


def assert_nothing_left(engine: Engine, pids: Sequence[int], port: int) -> None:
    """No process, no file and no listener of the engine is left, after a moment."""
    assert still_running(pids, STOP_TIMEOUT_S) == []
    wait_until(lambda: not engine.path.exists(), "the run directory to go")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def refused(home: Path, model: Path, overrides: Sequence[str], name: str = "") -> tuple[int, str]:
    """Start an engine that must not start; return exit code and stderr."""
    done = subprocess.run(
        serve_command(name or unique_name(), model, overrides),
        env=engine_environment(home),
        cwd=home,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=REFUSAL_TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def assert_one_line(returncode: int, errors: str, *words: str) -> None:
    """The engine ended with an error code and one line that has all the words."""
    lines = [line for line in errors.splitlines() if line]
    assert returncode not in (0, -signal.SIGKILL), returncode
    assert len(lines) == 1, errors
    assert all(word in lines[0] for word in words), lines[0]


def test_it_serves_and_ends_with_zero_on_sigterm(tmp_path: Path, tiny_model: Path) -> None:
    """A request is answered; after SIGTERM nothing is left."""
    with running_engine(tmp_path, tiny_model, SIMULATED) as engine:
        body = engine.client().complete("hello", max_tokens=5, ignore_eos=True)
        assert body["usage"]["completion_tokens"] == 5
        pids, port = engine.pids(), engine.ports.http_port
        assert engine.stop() == 0
        assert_nothing_left(engine, pids, port)


def test_nothing_is_left_of_a_killed_supervisor(tmp_path: Path, tiny_model: Path) -> None:
    """After kill -9 the janitor and the kernel end everything, and the next start works."""
    with running_engine(tmp_path, tiny_model, SIMULATED) as engine:
        pids, port = engine.pids(), engine.ports.http_port
        engine.process.kill()
        engine.process.wait()
        assert_nothing_left(engine, pids, port)
    with running_engine(tmp_path, tiny_model, SIMULATED, name=engine.name) as again:
        assert again.client().get("/health/ready").status == 200


def test_a_stopped_child_is_ended_with_a_killed_supervisor(
    tmp_path: Path, tiny_model: Path
) -> None:
    """A SIGSTOPped executor hears nothing, and still does not outlive the engine."""
    with running_engine(tmp_path, tiny_model, SIMULATED) as engine:
        pids, port = engine.pids(), engine.ports.http_port
        engine.kill_child("executor.0.0", signal.SIGSTOP)
        engine.process.kill()
        engine.process.wait()
        assert_nothing_left(engine, pids, port)


def test_a_stale_run_directory_is_swept(tmp_path: Path, tiny_model: Path) -> None:
    """Files that a dead engine and its janitor left do not hinder the next one of the name."""
    with running_engine(tmp_path, tiny_model, SIMULATED) as engine:
        janitor = engine.kill_child("janitor", signal.SIGSTOP).pid
        with locked(default_base(), create=False):  # no engine of another test sweeps meanwhile
            engine.process.kill()
            engine.process.wait()
            os.kill(janitor, signal.SIGKILL)
            assert engine.path.exists()
        with running_engine(tmp_path, tiny_model, SIMULATED, name=engine.name) as again:
            assert again.client().get("/health/ready").status == 200
    assert not engine.path.exists()


def test_the_children_import_no_more_than_they_need(simulated_engine: Engine) -> None:
    """Only an executor that computes loads torch; here none does."""
    for child_id, row in simulated_engine.children().items():
        maps = Path(f"/proc/{row.pid}/maps").read_text()
        assert "libtorch" not in maps, child_id


def test_an_operator_restarts_a_child_and_ends_the_engine(tmp_path: Path, tiny_model: Path) -> None:
    """`restart` gives the child a new epoch, `shutdown` ends with zero."""
    with running_engine(tmp_path, tiny_model, SIMULATED) as engine:
        before = engine.children()
        done(engine, "restart", child="executor.0.0")
        engine.wait_restarted("executor.0.0", before["executor.0.0"].epoch)
        after = engine.children()
        assert {c for c in after if after[c] != before[c]} == {"executor.0.0"}
        assert command(engine, "restart", child="nobody").status == 404
        shut_down(engine)
        assert engine.process.wait(STOP_TIMEOUT_S) == 0


def num_fds(pid: int) -> int:
    """Return how many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_restarts_leak_no_file_and_no_memory(tmp_path: Path, tiny_model: Path) -> None:
    """After ten more deaths the run directory is as it was, and no death has left a file open."""
    children = ("executor.0.0", "scheduler", "tokenizer.0", "http.0", "admin.0")
    overrides = (*SIMULATED, "supervision.intensity=100")
    with running_engine(tmp_path, tiny_model, overrides) as engine:
        survivors = (engine.pid, engine.children()["janitor"].pid)
        seen = []
        for _ in range(3):
            rows = {child_id: engine.kill_child(child_id) for child_id in children}
            for child_id, row in rows.items():
                engine.wait_restarted(child_id, row.epoch)
            files = sorted(path.name for path in engine.path.iterdir())
            seen.append((files, [num_fds(pid) for pid in survivors]))
        assert [files for files, _ in seen[1:]] == [seen[0][0]] * 2
        for first, last in zip(seen[0][1], seen[2][1], strict=True):
            assert last - first < len(children), seen  # one may just be opening: 10 deaths leak 10


def test_a_second_engine_of_the_name_is_refused(
    tmp_path: Path, tiny_model: Path, simulated_engine: Engine
) -> None:
    """One line with the owner's pid, and the first engine goes on."""
    code, errors = refused(tmp_path, tiny_model, SIMULATED, name=simulated_engine.name)
    assert_one_line(code, errors, simulated_engine.name, str(simulated_engine.pid))
    assert simulated_engine.client().get("/health/live").status == 200


def test_an_occupied_port_is_refused(
    tmp_path: Path, tiny_model: Path, simulated_engine: Engine
) -> None:
    """One line that names the port and the key."""
    port = simulated_engine.ports.http_port
    code, errors = refused(tmp_path, tiny_model, [*SIMULATED, f"http.port={port}"])
    assert_one_line(code, errors, str(port), "in use", "http.port")


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("engine.replicsa=2", "engine.replicas"),
        ("engine.replicas=0", "1 to 8"),
        ("x", "path=value"),
    ],
)
def test_a_bad_configuration_is_refused(
    tmp_path: Path, tiny_model: Path, override: str, word: str
) -> None:
    """One line that says what would be right."""
    code, errors = refused(tmp_path, tiny_model, [override])
    assert_one_line(code, errors, word)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    """One line that names the directory; no process is started for it."""
    code, errors = refused(tmp_path, tmp_path / "nothing-here", SIMULATED)
    assert_one_line(code, errors, "nothing-here")


def test_a_corrupt_model_is_refused_without_a_restart_loop(
    tmp_path: Path, tiny_model: Path
) -> None:
    """The executor says in one line what is wrong, and nobody tries again."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    code, errors = refused(tmp_path, broken, ["engine.executor=local"])
    assert code not in (0, -signal.SIGKILL)
    assert "Traceback" not in errors
    assert len(re.findall("safetensors", errors)) == 1, errors


def test_nothing_of_a_refused_engine_is_left(tmp_path: Path, tiny_model: Path) -> None:
    """The run directory of an engine that cannot start is removed."""
    name = unique_name()
    refused(tmp_path, tiny_model, [*SIMULATED, "http.host=192.0.2.1"], name=name)
    assert not Path(f"/dev/shm/headrace-{os.getuid()}/{name}").exists()
