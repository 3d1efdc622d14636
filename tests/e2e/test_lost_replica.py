"""A replica that cannot load its weights: the other one serves, and everybody is told.

How: one executor is stopped until the other has loaded; then the checkpoint is exchanged for a
damaged one, and the stopped executor goes on and reads that.
"""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.supervision.states import ProcessState
from tests.support.processes.commands import done
from tests.support.processes.engine import (
    STOP_TIMEOUT_S,
    Engine,
    starting_engine,
    wait_ready,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

OVERRIDES = ("engine.executor=local", "engine.dtype=float32", "engine.threads=1")
WEIGHTS = "model.safetensors"
NAN = b"\xff" * 4  # float32
LOST, KEPT = "executor.1.0", "executor.0.0"


def damage(model: Path) -> None:
    """Put a checkpoint that ends in NaN in the place of the model's; who has read it keeps his."""
    whole = (model / WEIGHTS).read_bytes()
    (model / "damaged").write_bytes(whole[: -len(NAN)] + NAN)
    (model / "damaged").replace(model / WEIGHTS)


def words_of(model: Path) -> re.Pattern[str]:
    """Return what is said of a damaged model."""
    return re.compile(rf"{model / WEIGHTS}: tensor \S+ holds NaN or infinity")


def is_in(engine: Engine, child_id: str, state: ProcessState) -> bool:
    """Tell whether the supervisor's page is there and shows the child in `state`."""
    if not (engine.path / "board.supervisor").exists():
        return False
    row = engine.children().get(child_id)
    return row is not None and row.state == state


def has_process(engine: Engine, child_id: str) -> bool:
    """Tell whether the child is starting, and its process is there."""
    return is_in(engine, child_id, ProcessState.STARTING) and engine.children()[child_id].pid > 0


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    """Return a model that may be damaged."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def half(tmp_path: Path, model: Path) -> Iterator[Engine]:
    """Return an engine of two replicas of which one has found a damaged checkpoint."""
    with starting_engine(tmp_path, model, (*OVERRIDES, "engine.replicas=2")) as engine:
        wait_until(lambda: has_process(engine, LOST), "the start")
        row = engine.kill_child(LOST, signal.SIGSTOP)
        wait_until(lambda: is_in(engine, KEPT, ProcessState.RUNNING), "the other replica")
        damage(model)
        os.kill(row.pid, signal.SIGCONT)
        wait_ready(engine)
        yield engine


def test_the_others_serve_and_status_names_the_file(half: Engine, model: Path) -> None:
    """The engine is ready, live and not complete; the lost replica is said to be, and why, and it
    is not started again until somebody asks for it.
    """
    answer = half.client().complete("hello", max_tokens=5, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 5
    [lost] = [row for row in done(half, "status")["processes"] if row["process"] == LOST]
    assert (lost["state"], lost["epoch"], lost["restarts"]) == ("given_up", 1, 0)
    assert words_of(model).fullmatch(lost["fault"])
    health = half.client().get("/health")
    assert health.status == 200
    assert [reason[: len(LOST)] for reason in health.json["complete"]["reasons"]] == [LOST]
    assert f"error: {LOST}: {lost['fault']}" in half.log_text()
    assert f"{LOST} cannot load and is given up: the engine goes on" in half.log_text()


def test_it_comes_back_when_the_file_is_whole_and_somebody_asks(
    half: Engine, model: Path, tiny_model: Path
) -> None:
    """`restart` has it tried again; with the damaged file it is given up again, with a whole one it
    serves and nothing is said of it any more.
    """
    done(half, "restart", child=LOST)
    wait_until(
        lambda: half.children()[LOST].epoch > 1 and is_in(half, LOST, ProcessState.GIVEN_UP),
        "the second verdict",
    )
    given_up = half.children()[LOST]
    shutil.copy(tiny_model / WEIGHTS, model / "whole")
    (model / "whole").replace(model / WEIGHTS)
    done(half, "restart", child=LOST)
    half.wait_restarted(LOST, given_up.epoch)
    wait_until(lambda: half.client().get("/health").json["complete"]["ok"], "both replicas")
    assert half.client().complete("hello", max_tokens=3)["choices"]


def test_with_no_replica_left_the_engine_ends_with_the_message(tmp_path: Path, model: Path) -> None:
    """As with one replica: exit code 1 and the file."""
    damage(model)
    with starting_engine(tmp_path, model, (*OVERRIDES, "engine.replicas=2")) as engine:
        assert engine.process.wait(STOP_TIMEOUT_S * 3) == 1
        assert len(words_of(model).findall(engine.log_text())) >= 1
