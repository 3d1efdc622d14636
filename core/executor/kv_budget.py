"""How many KV blocks fit: free memory minus weights and workspace, times a fraction, under a limit.

Owns: the arithmetic, as a table that can be printed, and the reading of what is free (cgroup limit
and MemAvailable). Never knows: tensors or models beyond their sizes.
"""

from dataclasses import dataclass
from pathlib import Path

from core.errors import StartError

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
UNLIMITED = 2**62
SAFETY_BYTES = 128 * 2**20  # interpreter, libraries and fragmentation that nothing here counts


@dataclass(frozen=True, slots=True, kw_only=True)
class KvDemand:
    """What one replica needs, all its ranks together, and the user's bounds.

    `num_blocks` 0 = as many as fit. `min_blocks` hold one sequence of the longest context.
    """

    block_bytes: int  # of all layers
    weights_bytes: int
    workspace_bytes: int
    replicas: int
    num_blocks: int
    min_blocks: int
    memory_fraction: float
    limit_bytes: int
    host_bytes: int = 0  # for swapped blocks, of each replica
    ranks: int = 1  # processes of each replica


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The verdict; `table` is (what, bytes) line by line."""

    num_blocks: int
    table: tuple[tuple[str, int], ...]


def free_memory_bytes(
    cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS, meminfo: Path = MEMINFO
) -> int:
    """Return what this process may still take: the least of MemAvailable and its cgroups' rests."""
    rests = [_cgroup_rest(directory) for directory in _memory_cgroups(cgroups, own)]
    return max(0, min([_named(meminfo, "MemAvailable:") * 1024, *rests]))


def _memory_cgroups(cgroups: Path, own: Path) -> list[Path]:
    """Return the directories of the process's memory cgroup and those above it, v1 or v2."""
    try:
        lines = own.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    directories = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers in ("", "memory"):
            root = cgroups / controllers
            leaf = root / path.lstrip("/")
            directories += [leaf, *(up for up in leaf.parents if up.is_relative_to(root))]
    return directories


def _cgroup_rest(directory: Path) -> int:
    """Return limit minus use (v2 or v1 files); page cache that can be dropped is no use."""
    limit = min(_number(directory / "memory.max"), _number(directory / "memory.limit_in_bytes"))
    if limit >= UNLIMITED:
        return UNLIMITED
    used = min(_number(directory / "memory.current"), _number(directory / "memory.usage_in_bytes"))
    return limit - used + _named(directory / "memory.stat", "inactive_file")


def _number(path: Path) -> int:
    """Return the number in a one-line file; UNLIMITED if there is none or it says max."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return UNLIMITED


def _named(path: Path, name: str) -> int:
    """Return the number after `name` in a file of such lines; 0 if there is none."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = (line.split() for line in lines)
    return next((int(field[1]) for field in fields if field[0] == name), 0)


def budget_kv(free_bytes: int, demand: KvDemand) -> KvBudget:
    """Return the number of blocks of one replica.

    `free_bytes` is measured before the weights are loaded; all replicas share it. Raises StartError
    if an explicit number does not fit, or not even one longest sequence does.
    """
    safety = SAFETY_BYTES * demand.ranks
    fixed = demand.weights_bytes + demand.workspace_bytes + demand.host_bytes + safety
    left = free_bytes - demand.replicas * fixed
    share = int(max(0, left) * demand.memory_fraction) // demand.replicas
    allowed = min(share, demand.limit_bytes)
    num_blocks = demand.num_blocks or allowed // demand.block_bytes
    pool = num_blocks * demand.block_bytes
    if demand.num_blocks and pool * demand.replicas > left:
        raise StartError(
            f"engine.num_kv_blocks = {num_blocks} needs {pool * demand.replicas} bytes for"
            f" {demand.replicas} replica(s), but {max(0, left)} are free"
        )
    if not demand.num_blocks and num_blocks < demand.min_blocks:
        raise StartError(
            f"memory for {num_blocks} KV blocks, but one sequence of engine.max_model_len needs"
            f" {demand.min_blocks}: lower engine.max_model_len, or raise"
            " engine.kv_memory_fraction, engine.kv_memory_limit_bytes or the memory limit"
        )
    table = (
        ("free at start", free_bytes),
        ("weights", demand.weights_bytes),
        ("workspace", demand.workspace_bytes),
        ("blocks of swapped requests", demand.host_bytes),
        ("safety", safety),
        ("left for all replicas", max(0, left)),
        ("share of this replica's KV pool", share),
        ("limit of a KV pool", demand.limit_bytes),
        ("KV pool", pool),
    )
    return KvBudget(num_blocks, table)
