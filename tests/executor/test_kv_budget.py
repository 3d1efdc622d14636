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


def write_memory(directory: Path, version: int, limit: str) -> tuple[Path, Path, Path]:
    """A memory cgroup a/b below the root, its parent without limit; 1,024,000 bytes available."""
    meminfo, own = directory / "meminfo", directory / "own"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable: 1000 kB\n")
    own.write_text("5:cpu:/x\n0::/a/b\n" if version == 2 else "5:cpu:/x\n4:memory:/a/b\n0::/\n")
    names = ("memory.max", "memory.current") if version == 2 else V1_NAMES
    leaf = directory / "cgroups" / ("" if version == 2 else "memory") / "a" / "b"
    leaf.mkdir(parents=True)
    for place, content in (
        (leaf.parent, "max" if version == 2 else str(2**63 - 4096)),
        (leaf, limit),
    ):
        (place / names[0]).write_text(content)
        (place / names[1]).write_text("2000")
        (place / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    return directory / "cgroups", own, meminfo


V1_NAMES = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("limit", "expected"), [("5000", 3100), ("9000000", 1_024_000)])
def test_free_memory_is_the_lesser_of_machine_and_cgroup(
    tmp_path: Path, version: int, limit: str, expected: int
) -> None:
    """The cgroup's limit minus use (page cache does not count), or the machine's available."""
    assert free_memory_bytes(*write_memory(tmp_path, version, limit)) == expected


def test_a_limit_above_counts(tmp_path: Path) -> None:
    """The limit of a cgroup above the process's own is a limit too."""
    paths = write_memory(tmp_path, 2, "max")
    (paths[0] / "a" / "memory.max").write_text("4000")
    assert free_memory_bytes(*paths) == 2100


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    """A machine without cgroup files has MemAvailable."""
    _, _, meminfo = write_memory(tmp_path, 2, "max")
    assert free_memory_bytes(tmp_path / "none", tmp_path / "none", meminfo) == 1_024_000
