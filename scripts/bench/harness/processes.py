"""What the kernel says about processes: descendants, CPU time, memory, and whether one still lives.

A process is named by pid and start time, so that a pid used again is never mistaken for it.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CPUCLOCK_SCHED = 2  # of a process, by its pid: clock_getcpuclockid(3)


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `kind` is the last word of the module it runs, or its program's name."""

    pid: int
    parent: int
    start_ticks: int
    kind: str

    def is_alive(self) -> bool:
        """True unless it has ended (a zombie has)."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.start_ticks and stat[0] not in "ZX"

    def cpu_s(self) -> float:
        """Return user and system time used so far, seconds; 0 if it is gone."""
        with suppress(OSError):
            return time.clock_gettime(~self.pid << 3 | CPUCLOCK_SCHED)
        return 0.0

    def pss_bytes(self) -> int:
        """Return its proportional share of memory, bytes; 0 if it is gone."""
        try:
            lines = (PROC / str(self.pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name: state, parent, …"""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _kind(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "?"
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1].removesuffix(".__main__").rpartition(".")[2]
    return Path(words[0]).name


def look_up(pid: int) -> Process | None:
    """Return the process of that pid, or None."""
    stat = _stat(pid)
    return Process(pid, int(stat[1]), int(stat[19]), _kind(pid)) if stat else None


def family(pid: int) -> list[Process]:
    """Return the process of that pid and all its descendants, parents first."""
    everything = [look_up(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit()]
    by_parent: dict[int, list[Process]] = {}
    for process in everything:
        if process is not None:
            by_parent.setdefault(process.parent, []).append(process)
    found = [process for process in everything if process is not None and process.pid == pid]
    for process in found:
        found += by_parent.get(process.pid, [])
    return found


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes of an engine of one's own (SIGSTOP), and let them go on afterwards."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
