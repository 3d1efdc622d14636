"""Thread counts and the OpenMP environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from core.executor.threads import available_cores, openmp_environment, resolve_threads

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("content", "expected"),
    [("max 100000", CORES), ("100000 100000", 1), ("50000 100000", 1), ("garbage", CORES)],
)
def test_the_cgroup_quota_bounds_the_cores(tmp_path: Path, content: str, expected: int) -> None:
    """A CPU quota counts in whole cores, at least one; anything unreadable is no quota."""
    path = tmp_path / "cpu.max"
    path.write_text(content)
    assert available_cores(path) == expected


def test_without_a_cgroup_the_affinity_counts(tmp_path: Path) -> None:
    """A machine without cgroup files uses the cores the process may run on."""
    assert available_cores(tmp_path / "missing") == CORES


def test_replicas_share_the_cores() -> None:
    """Automatic threads are the cores divided by the replicas, at least one; a number stays."""
    assert resolve_threads(0, 1) == available_cores()
    assert resolve_threads(0, 1000) == 1
    assert resolve_threads(3, 4) == 3


def started_with(environment: dict[str, str], code: str) -> str:
    """What a Python process with these OpenMP settings prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_process_started_with_the_environment_computes_with_the_threads() -> None:
    """The environment alone decides how many threads torch computes with."""
    code = "import torch; print(torch.get_num_threads())"
    assert started_with(openmp_environment(1), code) == "1"


def test_threads_of_replicas_are_laid_out_over_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread is bound to a core of its own, replica after replica."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7})
    assert openmp_environment(2, 0)["OMP_PLACES"] == "{2},{3}"
    assert openmp_environment(2, 1)["OMP_PLACES"] == "{5},{7}"
    assert openmp_environment(4, 0)["OMP_PLACES"] == "{2},{3},{5},{7}"


@pytest.mark.parametrize("threads", [1, 5])
def test_threads_are_free_where_binding_would_hurt(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """A single thread, or more threads than cores, are not bound."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7})
    assert "OMP_PROC_BIND" not in openmp_environment(threads)
