"""The GPU benchmark without a GPU: correctness by the interpreter, and what it cannot do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.bench.harness import report

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a bare checkout does: any interpreter, no installation."""
    return subprocess.run(
        [ROOT / "scripts" / "bench" / "gpu", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_interpreter_finds_kernels_and_runner_right() -> None:
    """All bars that need no GPU hold, and the report says that speed was not measured."""
    done = run("--interpret", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["figures"]["runner"]["tokens_that_differ"] == 0
    assert said["figures"]["kernels"]["failed"] == 0
    assert "no GPU" in said["figures"]["not_measured"]
    assert not any("llama" in bar["name"] for bar in said["bars"])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_measured_and_it_is_said() -> None:
    """One line, and the exit status of a benchmark that could not measure."""
    done = run()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "finds no GPU; --interpret" in done.stderr


def test_what_is_no_number_is_beyond_every_tolerance() -> None:
    """A kernel that returns NaN has failed, as has one draw that differs."""
    assert report.num_beyond([0.0, 1.0, 1.01, float("nan"), 2.0]) == 3
