"""Where the CPU goes while somebody looks at an engine: of every process, by frame and by call.

Windows in turns: nobody looks, a dashboard does, somebody gives ten control commands a second. What
a process takes beyond the windows in which nobody looks is what that look costs there. CPU time is
told from noise on a busy machine too, unlike throughput.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from scripts.bench.benchmarks.dashboard.caller import CALLS_HERTZ
from scripts.bench.benchmarks.dashboard.cost import SLOW_STEPS
from scripts.bench.benchmarks.dashboard.loads import under_load, writers
from scripts.bench.benchmarks.dashboard.pairs import SIZE
from scripts.bench.benchmarks.dashboard.terminal import Terminal, dashboard
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.processes import Process, look_up

FRAMES_HERTZ = 4.0
SETTLE_S = 1.0
STARTED_S = 5.0
ROUNDS = 4
NOBODY, FRAMES, CALLS = "nobody", "frames", "calls"
HERTZ = {FRAMES: FRAMES_HERTZ, CALLS: CALLS_HERTZ}

Spent = Mapping[str, float]  # ms of CPU in a second, by process


async def looks(seconds: float) -> dict[str, Any]:
    """Return what a frame and a call cost each process, ms of CPU."""
    async with (
        running_engine("dashboard", SLOW_STEPS) as engine,
        under_load(engine, {"default": ""}, writers),
    ):
        return await asyncio.to_thread(measure, engine, seconds)


def measure(engine: Engine, seconds: float) -> dict[str, Any]:
    """Return the figures of ROUNDS windows of each kind."""
    spent: dict[str, list[Spent]] = {NOBODY: [], FRAMES: [], CALLS: []}
    with dashboard(engine.name, SIZE, "2") as terminal, calling(engine.name) as caller:
        terminal.drain(STARTED_S)  # both
        processes = named([*engine.processes(), terminal.process, caller])
        terminal.stop()
        os.kill(caller.pid, signal.SIGSTOP)
        for _ in range(ROUNDS):
            for kind, windows in spent.items():
                with looking(kind, terminal, caller):
                    terminal.drain(SETTLE_S)
                    windows.append(window(terminal, processes, seconds))
    return {f"{kind}_ms": cost(spent[kind], spent[NOBODY], HERTZ[kind]) for kind in HERTZ}


def named(processes: list[Process]) -> dict[str, Process]:
    """Return processes by their kinds; admin workers are told apart by their order."""
    names: dict[str, Process] = {}
    for process in processes:
        number = sum(process.kind == name.partition(".")[0] for name in names)
        names[f"{process.kind}.{number}" if number else process.kind] = process
    return names


@contextmanager
def looking(kind: str, terminal: Terminal, caller: Process) -> Iterator[None]:
    """Let one of the lookers go on until the block ends."""
    if kind == FRAMES:
        terminal.go_on()
    elif kind == CALLS:
        os.kill(caller.pid, signal.SIGCONT)
    try:
        yield
    finally:
        terminal.stop()
        os.kill(caller.pid, signal.SIGSTOP)


def window(terminal: Terminal, processes: Mapping[str, Process], seconds: float) -> Spent:
    """Return what each process takes in one window."""
    before_s = {name: process.cpu_s() for name, process in processes.items()}
    terminal.drain(seconds)
    return {
        name: (process.cpu_s() - before_s[name]) * 1000 / seconds
        for name, process in processes.items()
    }


def cost(watched: Sequence[Spent], alone: Sequence[Spent], hertz: float) -> dict[str, float]:
    """Return ms of CPU of each process by look, beyond what it takes in the window before it in
    which nobody looks; medians of the rounds.
    """
    rounds = list(zip(watched, alone, strict=True))
    return {
        name: round(statistics.median(a[name] - b[name] for a, b in rounds) / hertz, 3)
        for name in watched[0]
    }


@contextmanager
def calling(name: str) -> Iterator[Process]:
    """Have a process that gives commands; it is stopped after each window."""
    command = [sys.executable, "-m", "scripts.bench.benchmarks.dashboard.caller", name]
    child = subprocess.Popen(command)
    try:
        process = look_up(child.pid)
        assert process is not None, "the caller has ended"
        yield process
    finally:
        child.kill()
        child.wait()
