"""Ranks by torch.distributed: real processes that meet by a file, over Gloo in NCCL's place."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.runtime.supervisor.launch import LOOPBACK_ONLY
from tests.support.models.tiny_model import write_tiny_model
from tests.support.processes.ending import ending

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0  # a busy machine interprets kernels slowly, and comes to an end
EXCHANGE_S = 300.0
CLOSE = 1e-4


@contextmanager
def rank_process(
    doing: str, place: Path, rank: int, size: int, exchange_s: float, model: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """Start one rank, and end it whatever happens."""
    words = [doing, str(place), str(rank), str(size), str(exchange_s), *([model] if model else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.parallel.rank_process", *words],
        cwd=ROOT, env=os.environ | LOOPBACK_ONLY | {"TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ending(process):
        yield process


def last_answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a rank says at its end."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert out, errors
    answer = json.loads(out.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def answers(doing: str, place: Path, size: int, model: str = "") -> list[dict[str, Any]]:
    """Return what each of a group says."""
    with ExitStack() as stack:
        group = [
            stack.enter_context(rank_process(doing, place, rank, size, EXCHANGE_S, model))
            for rank in range(size)
        ]
        return [last_answer(process) for process in group]


def test_parts_arrive_whole_and_sums_have_one_order(tmp_path: Path) -> None:
    """Of every dtype and size, on every rank; and rank 0 has the word."""
    (tmp_path / "ranks.0.1").write_text("of a dead predecessor")
    (tmp_path / "ranks.1.1").write_text("of another replica")
    everybody = answers("exchange", tmp_path / "ranks.0.2", 3)
    expected = {"whole": True, "sum": [[0.0, 6.0]], "word": 7}
    assert everybody == [expected] * 3
    left = {path.name for path in tmp_path.iterdir()}
    assert "ranks.0.1" not in left
    assert "ranks.1.1" in left


def test_nobody_waits_for_ever_for_a_rank_that_does_not_come(tmp_path: Path) -> None:
    """A group that does not come together is a named error."""
    with rank_process("exchange", tmp_path / "ranks.0.1", 0, 2, 0.5) as lonely:
        assert last_answer(lonely)["lost"].startswith("rank 0 waits for the others: ")


def test_nobody_waits_for_ever_in_an_exchange(tmp_path: Path) -> None:
    """A rank that falls silent is a named error on the others."""
    place = tmp_path / "ranks.0.1"
    with (
        rank_process("keep_exchanging", place, 0, 2, 5.0) as left,
        rank_process("fall_silent", place, 1, 2, 5.0),
    ):
        assert last_answer(left)["lost"].startswith("rank 0 exchanges with the others: ")


def test_a_rank_that_is_killed_is_a_named_error_at_once(tmp_path: Path) -> None:
    """Nobody waits until an exchange is late."""
    place = tmp_path / "ranks.0.1"
    with (
        rank_process("keep_exchanging", place, 0, 2, 10 * PATIENCE_S) as left,
        rank_process("keep_exchanging", place, 1, 2, 10 * PATIENCE_S) as killed,
    ):
        assert killed.stdout is not None
        assert json.loads(killed.stdout.readline()) == {"joined": 1}
        killed.send_signal(signal.SIGKILL)
        assert last_answer(left)["lost"].startswith("rank 0 exchanges with the others: ")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that two ranks can divide, as small as the interpreter wants it."""
    folder = tmp_path_factory.mktemp("model")
    return str(write_tiny_model(folder, layers=2, heads=4, kv_heads=2, max_position=64))


def test_two_ranks_draw_the_tokens_of_one_executor(tmp_path: Path, model: str) -> None:
    """Over Gloo as over sockets, bit by bit; one executor alone adds up in another order."""
    (alone,) = answers("serve_cpu", tmp_path / "alone.0.1", 1, model)
    gloo = answers("serve_cpu", tmp_path / "gloo.0.1", 2, model)
    sockets = answers("serve_sockets", tmp_path / "sockets.0.1", 2, model)
    assert gloo == [gloo[0]] * 2
    assert gloo == sockets
    assert gloo[0]["outputs"] == alone["outputs"]
    np.testing.assert_allclose(gloo[0]["logprobs"], alone["logprobs"], atol=CLOSE)


def test_two_ranks_of_triton_kernels_draw_the_tokens_of_one(tmp_path: Path, model: str) -> None:
    """The path of a GPU, but for NCCL: each rank draws by itself, and both draw the same."""
    (alone,) = answers("serve_triton", tmp_path / "alone.0.1", 1, model)
    both = answers("serve_triton", tmp_path / "both.0.1", 2, model)
    assert both == [both[0]] * 2
    assert both[0]["outputs"] == alone["outputs"]
    np.testing.assert_allclose(both[0]["logprobs"], alone["logprobs"], atol=CLOSE)
