"""Executors that lack something: they compute the same tokens, and say what it costs them."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.executor.factory import make_executor
from core.executor.protocol import Executor, ExecutorSettings
from core.scheduler.plan import RecordArray
from tests.support.executor.plan_driver import ManualClock, PlanDriver
from tests.support.kernels.native_kernels import kernel_cache
from tests.support.models.tiny_model import write_tiny_model

BLOCK_SIZE = 8
ON_ONE_CORE = """
import json, os, sys
from pathlib import Path
core, directory, cache = sys.argv[1:]
os.sched_setaffinity(0, {int(core)})
from tests.executor.test_poor_machines import start, tokens
driver = start(Path(directory), Path(cache), threads=0)
print(json.dumps([driver.info.threads, driver.info.kernel_path, tokens(driver)]))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def start(directory: Path, cache: Path, threads: int = 1) -> PlanDriver:
    """A driver of a loaded executor whose kernels are kept in `cache`."""
    settings = ExecutorSettings(
        model_directory=directory, cache_directory=cache, dtype="float32", threads=threads,
        block_size=BLOCK_SIZE, num_kv_blocks=64,
    )  # fmt: skip

    def executor(rows: RecordArray, spans: object, clock: object) -> Executor:
        assert isinstance(clock, ManualClock)
        return make_executor("local", settings, rows, list(spans), clock, clock.sleep_ns)  # type: ignore[call-overload]

    return PlanDriver(executor, block_size=BLOCK_SIZE)


def tokens(driver: PlanDriver) -> list[int]:
    """What it continues a fixed prompt with, drawn by a fixed seed."""
    sequence = driver.add(range(10, 30), 6, temperature=1.0, seed=3)
    driver.finish([sequence], chunk_max=50)
    return sequence.outputs


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[int]:
    """What it is with the C++ kernels."""
    driver = start(directory, kernel_cache())
    assert driver.info.kernel_path == "cpp"
    return tokens(driver)


def test_without_a_compiler_the_plain_path_serves(
    directory: Path,
    expected: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The executor starts on plain torch, says so with the reason, and computes the same tokens."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING):
        driver = start(directory, tmp_path)
    assert driver.info.kernel_path == "torch"
    assert "slow plain-torch path" in caplog.text
    assert "no C++ compiler" in caplog.text
    assert tokens(driver) == expected


def test_a_cache_that_cannot_be_written_does_not_keep_it_from_serving(
    directory: Path, expected: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither kernels nor the costs of steps can be kept: it starts on plain torch and says so."""
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        driver = start(directory, tmp_path / "file" / "kernels")
    assert driver.info.kernel_path == "torch"
    assert "slow plain-torch path" in caplog.text
    assert tokens(driver) == expected


def test_one_core_is_enough(directory: Path, expected: list[int]) -> None:
    """Bound to one core the executor computes with one thread, and the same tokens."""
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_CORE, str(core), str(directory), str(kernel_cache())],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [1, "cpp", expected]
