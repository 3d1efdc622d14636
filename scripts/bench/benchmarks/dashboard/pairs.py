"""Whether an engine is slower while it is looked at: throughput with and without a dashboard and
ten control calls a second, in pairs of windows whose order changes.

The dashboard of the windows without is stopped, not ended, and ten calls a second are not given, so
that a window begins at once. Throughput is what the executor has computed between two stamps of its
own page. The interval is Student's, of the logarithms of the pairs' ratios.

A machine is not as fast in one minute as in the next, so the windows of a pair must lie close
together: they are short and many. Their order is with, without, without, with, and so on: that
cancels a steady drift, and only every second window begins with a change, whose first second does
not count.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from ipc.pages import EXECUTOR_PAGE
from scripts.bench.benchmarks.dashboard.caller import CALLS_HERTZ, Caller
from scripts.bench.benchmarks.dashboard.loads import under_load, writers
from scripts.bench.benchmarks.dashboard.terminal import Terminal, dashboard
from scripts.bench.harness import report
from scripts.bench.harness.engine import Engine, running_engine

SIZE = (120, 40)
WARM_S = 10.0
SETTLE_S = 1.0
NS_PER_S = 1e9
STUDENT_975 = {
    9: 2.262,
    11: 2.201,
    13: 2.160,
    15: 2.131,
    19: 2.093,
    21: 2.080,
    24: 2.064,
    30: 2.042,
    40: 2.021,
    60: 2.000,
}
"""97.5 % points of Student's distribution, by degrees of freedom."""
BARS = (report.Bar("ratio.low", ">=", 0.97), report.Bar("pairs", ">=", 10))


async def pairs(count: int, seconds: float) -> dict[str, Any]:
    """Return the ratio of throughput with to that without, and what came of the calls."""
    async with (
        running_engine("dashboard", ()) as engine,
        under_load(engine, {"default": ""}, writers),
    ):
        await asyncio.sleep(WARM_S)
        return await asyncio.to_thread(measure, engine, count, seconds)


def measure(engine: Engine, count: int, seconds: float) -> dict[str, Any]:
    """Return the figures of so many pairs of windows."""
    page = Page(engine)
    rates: dict[bool, list[float]] = {True: [], False: []}
    was_watched: bool | None = None
    with (
        closing(Caller(engine.name)) as caller,
        dashboard(engine.name, SIZE, "2") as terminal,
    ):
        for is_watched in order(count):
            if is_watched is not was_watched:
                (terminal.go_on if is_watched else terminal.stop)()
                pass_time(terminal, caller, SETTLE_S, is_watched)
            rates[is_watched].append(window(page, terminal, caller, seconds, is_watched))
            was_watched = is_watched
    ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
    return {
        "pairs": count,
        "watched_tok_s": round(statistics.median(rates[True]), 2),
        "alone_tok_s": round(statistics.median(rates[False]), 2),
        "ratio": interval(ratios),
        "ratios": [round(each, 4) for each in ratios],
        "calls": caller.calls,
        "calls_failed": caller.failures,
    }


def order(count: int) -> Iterator[bool]:
    """Yield of each window whether it is watched: a pair's second window is like the next first."""
    for number in range(count):
        yield number % 2 == 0
        yield number % 2 == 1


def window(
    page: "Page", terminal: Terminal, caller: Caller, seconds: float, is_watched: bool
) -> float:
    """Return tokens a second of one window."""
    tokens, stamp_ns = page.read()
    pass_time(terminal, caller, seconds, is_watched)
    later_tokens, later_ns = page.read()
    return (later_tokens - tokens) * NS_PER_S / (later_ns - stamp_ns)


def pass_time(terminal: Terminal, caller: Caller, seconds: float, is_watched: bool) -> None:
    """Let time pass: with somebody who looks and asks, or quietly."""
    end = time.perf_counter() + seconds
    if not is_watched:
        time.sleep(seconds)
    while time.perf_counter() < end:
        begin = time.perf_counter()
        caller.call()
        terminal.drain(max(0.0, 1 / CALLS_HERTZ - (time.perf_counter() - begin)))


class Page:
    """What the executor has computed."""

    def __init__(self, engine: Engine) -> None:
        """Map its page."""
        self._reader = engine.page("executor.0.0", EXECUTOR_PAGE)

    def read(self) -> tuple[int, int]:
        """Return tokens so far, and the moment of which that is true, ns."""
        snapshot = self._reader.read()
        return int(snapshot.page["tokens"]), snapshot.stamp_ns


def interval(ratios: Sequence[float]) -> dict[str, float]:
    """Return the geometric mean of ratios and its 95 % interval."""
    logs = [math.log(each) for each in ratios]
    middle, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    width = student_975(len(logs) - 1) * error
    low, high = math.exp(middle - width), math.exp(middle + width)
    return {"mean": round(math.exp(middle), 4), "low": round(low, 4), "high": round(high, 4)}


def student_975(freedom: int) -> float:
    """Return the 97.5 % point for at least 9 degrees of freedom: of the next lower number that is
    known, which makes intervals rather too wide.
    """
    return STUDENT_975[max(known for known in STUDENT_975 if known <= freedom)]
