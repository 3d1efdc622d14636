"""How many threads an executor computes with, and how they wait for each other.

Owns: the count of usable cores (affinity and cgroup quota) and the OpenMP environment, which must
be set before the process starts. Never knows: who starts the process.

Each thread has a core of its own, and threads of a parallel region spin a bounded time before they
sleep. A step has some hundred short regions, so the way to enter and leave one counts: of free
threads the kernel puts both on one core, where one spins while the other waits to run, and bound
ones that do not spin must be woken each time. The bound on spinning keeps an executor between two
steps from burning cores that the other processes need.
"""

import os
from pathlib import Path

SPIN_COUNT = 3000  # iterations: longer than from one region of a step to the next
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


def resolve_threads(threads: int, executors: int) -> int:
    """Return `threads`, or for 0 this machine's cores divided among the executors, at least 1."""
    return threads if threads > 0 else max(1, available_cores() // executors)


def openmp_environment(threads: int, executor: int = 0) -> dict[str, str]:
    """Return the environment variables that executor process number `executor` is started with.

    The executors' threads are laid out over the cores one after the other. A single thread is left
    free: it never waits for another one, and may be moved to where there is room.
    """
    environment = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        "GOMP_SPINCOUNT": str(SPIN_COUNT),
        # Weights in huge pages: they are read whole in every step.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        # Activations of a large step are freed and taken again at once; keep them mapped.
        "MALLOC_TRIM_THRESHOLD_": str(2**28),
        "MALLOC_MMAP_THRESHOLD_": str(2**28),
    }
    cores = sorted(os.sched_getaffinity(0))
    if 1 < threads <= len(cores):
        places = [cores[(executor * threads + i) % len(cores)] for i in range(threads)]
        environment["OMP_PROC_BIND"] = "TRUE"
        environment["OMP_PLACES"] = ",".join(f"{{{core}}}" for core in places)
    return environment
