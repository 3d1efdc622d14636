"""How many threads an executor computes with, and how they wait for each other.

Owns: the count of usable cores (affinity and cgroup quota) and the OpenMP environment, which must
be set before the process starts. Never knows: who starts the process.

Threads of a parallel region spin a bounded time before they sleep. Without the bound, an executor
on a busy machine burns the cores the other processes need; without spinning, each of the few
hundred regions of a step would pay for a wake-up.
"""

import os
from pathlib import Path

SPIN_COUNT = 1000  # iterations, a few µs; measured: no slower alone than the default, no collapse
CPU_MAX_PATH = Path("/sys/fs/cgroup/cpu.max")
NICENESS = 5  # executors let the engine's other processes go first


def available_cores(cpu_max_path: Path = CPU_MAX_PATH) -> int:
    """Return the cores this process may use: its affinity, bounded by the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max_path.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, int(quota) // int(period)))


def resolve_threads(threads: int, replicas: int) -> int:
    """Return `threads`, or for 0 this machine's cores divided among the replicas, at least 1."""
    return threads if threads > 0 else max(1, available_cores() // replicas)


def openmp_environment(threads: int) -> dict[str, str]:
    """Return the environment variables an executor process must be started with."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        "GOMP_SPINCOUNT": str(SPIN_COUNT),
        # Activations of a large step are freed and taken again at once; keep them mapped.
        "MALLOC_TRIM_THRESHOLD_": str(2**28),
        "MALLOC_MMAP_THRESHOLD_": str(2**28),
    }
