"""Sizing the KV pool."""

from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import StartError
from core.executor.kv_budget import SAFETY_BYTES, KvDemand, budget_kv, free_memory_bytes

GB = 10**9
DEMAND = KvDemand(
    block_bytes=1000,
    weights_bytes=GB,
    workspace_bytes=GB,
    replicas=1,
    num_blocks=0,
    min_blocks=10,
    memory_fraction=0.5,
    limit_bytes=100 * GB,
)
LEFT = 10 * GB - 2 * GB - SAFETY_BYTES


def test_a_fraction_of_what_is_left_becomes_blocks() -> None:
    """Free memory minus weights, workspace and safety, times the fraction, in whole blocks."""
    assert budget_kv(10 * GB, DEMAND).num_blocks == LEFT // 2 // 1000


def test_the_limit_bounds_the_pool() -> None:
    """The pool never exceeds the configured limit."""
    demand = replace(DEMAND, limit_bytes=55_999)
    assert budget_kv(10 * GB, demand).num_blocks == 55


def test_replicas_divide_the_memory() -> None:
    """Every replica has its own weights, and the rest is shared evenly."""
    two = budget_kv(10 * GB, replace(DEMAND, replicas=2))
    assert two.num_blocks == int((LEFT - 2 * GB - SAFETY_BYTES) * 0.5) // 2 // 1000


def test_an_explicit_number_is_taken_as_it_is() -> None:
    """A configured number of blocks is used, even if smaller than the longest sequence."""
    assert budget_kv(10 * GB, replace(DEMAND, num_blocks=3)).num_blocks == 3


def test_an_explicit_number_that_does_not_fit_is_refused() -> None:
    """Too many blocks for the memory is an error that names the key."""
    with pytest.raises(StartError, match="num_kv_blocks"):
        budget_kv(10 * GB, replace(DEMAND, num_blocks=10**8))


@pytest.mark.parametrize("free_bytes", [0, 2 * GB + SAFETY_BYTES + 1000])
def test_too_little_memory_is_refused(free_bytes: int) -> None:
    """Memory for less than one longest sequence is an error that says what to lower."""
    with pytest.raises(StartError, match="max_model_len"):
        budget_kv(free_bytes, DEMAND)


def test_the_table_adds_up() -> None:
    """The printed table ends with the bytes of the pool."""
    budget = budget_kv(10 * GB, DEMAND)
    assert budget.table[-1] == ("KV pool", budget.num_blocks * 1000)
    assert budget.table[0] == ("free at start", 10 * GB)


def write_memory(directory: Path, *, available_kb: int, limit: str, used: int) -> tuple[Path, Path]:
    """A cgroup and a meminfo file."""
    meminfo = directory / "meminfo"
    meminfo.write_text(f"MemTotal: 99 kB\nMemAvailable: {available_kb} kB\n")
    (directory / "memory.max").write_text(limit)
    (directory / "memory.current").write_text(str(used))
    (directory / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    return directory, meminfo


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 1024_000), ("5000", 3100), ("9000000", 1024_000)]
)
def test_free_memory_is_the_lesser_of_machine_and_cgroup(
    tmp_path: Path, limit: str, expected: int
) -> None:
    """The cgroup's limit minus use (page cache does not count), or the machine's available."""
    paths = write_memory(tmp_path, available_kb=1000, limit=limit, used=2000)
    assert free_memory_bytes(*paths) == expected
