"""Kernels, models and ModelRunner need torch, triton, numpy and no installation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.executor.bare_process import PROMPT
from tests.support.models.dense_llama import DenseLlama
from tests.support.models.tiny_model import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_bare_checkout_runs_a_model_on_both_backends(tmp_path: Path) -> None:
    """Every module of kernels and models can be imported without zmq, msgspec, starlette, textual,
    uvloop, `core.config` and `ipc`, and both backends give the dense model's tokens.
    """
    directory = write_tiny_model(tmp_path / "model", layers=1, heads=2, kv_heads=1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.bare_process", str(directory)],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    count, *lines = done.stdout.splitlines()
    assert int(count) > 40
    assert lines == [str(DenseLlama(directory).greedy(PROMPT, 4))] * 2
