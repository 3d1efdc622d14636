"""What the dashboard costs: CPU of its process and of the admin pool, with every tenant busy.

An engine whose steps are simulated, slowly, so that it leaves the cores to what is measured; 64
tenants, all of whose numbers change between two looks.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.bench.benchmarks.dashboard.loads import everybody, under_load, write_tenants
from scripts.bench.benchmarks.dashboard.terminal import Terminal, dashboard
from scripts.bench.harness import report
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.processes import Process

SLOW_STEPS = ("engine.executor=simulated", "engine.simulated_step_us=200000")
SIZES = ((80, 24), (120, 40))
SCREENS = {"1": "overview", "2": "tenants", "3": "requests", "6": "events"}
BAR_PERCENT = 3.0
BARS = tuple(
    report.Bar(f"{name}.{w}x{h}.sum_percent", "<=", BAR_PERCENT, "% of a core")
    for name in SCREENS.values()
    for w, h in SIZES
)


async def cost(tenants: int, seconds: float, screens: str) -> dict[str, Any]:
    """Return, by screen and size, percent of a core that the dashboard and the admin pool take."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        config, keys = write_tenants(Path(folder), tenants)
        async with (
            running_engine("dashboard", SLOW_STEPS, config) as engine,
            under_load(engine, keys, everybody),
        ):
            figures["admin_alone_percent"] = await asyncio.to_thread(alone, engine, seconds)
            for screen in screens:
                figures[SCREENS[screen]] = {
                    f"{size[0]}x{size[1]}": await asyncio.to_thread(
                        watched, engine, size, screen, seconds
                    )
                    for size in SIZES
                }
    return figures


def alone(engine: Engine, seconds: float) -> float:
    """Return what the admin workers take while nobody asks them anything."""
    pool = engine.children("admin")
    before_s, start = cpu_s(pool), time.perf_counter()
    time.sleep(seconds)
    return percent(cpu_s(pool) - before_s, time.perf_counter() - start)


def watched(engine: Engine, size: tuple[int, int], screen: str, seconds: float) -> dict[str, float]:
    """Return what a dashboard on one screen takes, and the admin workers with it."""
    with dashboard(engine.name, size, screen) as terminal:
        return of_terminal(terminal, engine.children("admin"), seconds)


def of_terminal(terminal: Terminal, pool: list[Process], seconds: float) -> dict[str, float]:
    """Return what a dashboard and the admin workers take."""
    top = [terminal.process]
    before_s, before_pool_s, start = cpu_s(top), cpu_s(pool), time.perf_counter()
    terminal.drain(seconds)
    elapsed_s = time.perf_counter() - start
    own_s, pool_s = cpu_s(top) - before_s, cpu_s(pool) - before_pool_s
    return {
        "dashboard_percent": percent(own_s, elapsed_s),
        "admin_percent": percent(pool_s, elapsed_s),
        "sum_percent": percent(own_s + pool_s, elapsed_s),
    }


def cpu_s(processes: list[Process]) -> float:
    """Return the time on a CPU of some processes so far, as getrusage counts it."""
    return sum(process.cpu_s() for process in processes)


def percent(spent_s: float, elapsed_s: float) -> float:
    """Return a share of a core."""
    return round(100 * spent_s / elapsed_s, 2)
