"""Ten simulated hours of everything that looks at the board, and of those who write on it.

How: in virtual time, over the real shared memory of an engine on paper. Every few simulated minutes
the pages are written anew, with other tenants that come and go, and a burst of looks follows: a
scrape by the metrics, and frames for the dashboard's history. Once all that is bounded is full,
what `tracemalloc` counts may not grow.
"""

import gc
import pathlib
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.messages.http import Chunk
from core.tenancy.classes import TrafficClass
from dashboard.frame import Frame, Histogram
from dashboard.history import MAX_SAMPLES, History
from dashboard.source.live import LiveSource
from frontends.board_source import BoardSource
from frontends.http.telemetry import StreamTimer, Telemetry
from frontends.metrics.render import render
from ipc.pages import HTTP_PAGE, MAX_PAGE_TENANTS
from tests.admin.test_metrics import FACTS
from tests.support.control_plane.dashboard_stage import StageClock
from tests.support.control_plane.run_directory_stage import CHILDREN, EngineOnPaper

HOURS = 10
PERIOD_S = 300
BURSTS = HOURS * 3600 // PERIOD_S
LOOKS = 3  # in a burst, a second apart
SCRAPE_EVERY = 3  # periods
TENANTS_SHOWN = 8
TENANTS_KNOWN = 16
GROWTH_BYTES = 64 * 1024
FILLING_S = 2 * MAX_SAMPLES  # as many frames, which fill the cache of quantiles too


def later(frame: Frame, after_s: int) -> Frame:
    """Return a frame of a later second, in which other first tokens have come."""
    ttft = frame.totals.ttft
    came = Histogram((after_s, *ttft.counts[1:]), ttft.sum_s + after_s)
    totals = msgspec.structs.replace(frame.totals, ttft=came)
    return msgspec.structs.replace(frame, taken_s=frame.taken_s + after_s, totals=totals)


class Life:
    """An engine on paper and all who look at it."""

    def __init__(self, base: Path) -> None:
        self._clock = StageClock()
        self._engine = EngineOnPaper(base, "paper", self._clock.monotonic_ns())
        slots = {child: 1 + index for index, child in enumerate(CHILDREN)}
        self._boards = BoardSource(self._engine.directory, slots, self._scrape_clock())
        self._live = LiveSource("paper", self._clock.monotonic_ns, self._clock.wall_s, base)
        self._history = History()
        self._telemetry = Telemetry()
        self._page = np.zeros((), HTTP_PAGE)
        self.periods = 0

    def fill(self) -> None:
        """Fill all that is bounded: rows of tenants, samples of the history, caches."""
        for number in range(MAX_PAGE_TENANTS):
            self._serve(f"early-{number}")
        self.period()
        frame = self._live.read()
        for second in range(1, FILLING_S):
            self._history.push(later(frame, second))
        self._clock.now_s += FILLING_S
        for _ in range(3):
            self.period()

    def period(self) -> None:
        """Let some minutes pass."""
        self.periods += 1
        self._serve(f"tenant-{self.periods}")
        self._publish()
        for _ in range(LOOKS):
            self._clock.now_s += 1
            self._engine.beat(self._clock.monotonic_ns())
            self._history.push(self._live.read())
        if self.periods % SCRAPE_EVERY == 0:
            render(self._boards.read(), FACTS)
        self._clock.now_s += PERIOD_S - LOOKS

    def _serve(self, tenant: str) -> None:
        """Count the requests of a tenant that comes and goes."""
        self._telemetry.count_rejection(RejectionReason.TENANT_RATE, tenant)
        timer = StreamTimer(self._telemetry, 0, tenant, TrafficClass.STANDARD)
        for at_s in range(4):
            timer.output(Chunk("op", 0, "x"), at_s * NS_PER_S)
        timer.end(4 * NS_PER_S)

    def _publish(self) -> None:
        now_ns, rows = self._clock.monotonic_ns(), []
        for index in range(TENANTS_SHOWN):
            name = f"tenant-{(self.periods + index) % TENANTS_KNOWN}"
            rows.append({"name": name.encode(), "generated_tokens": self.periods, "num_waiting": 1})
        self._engine.publish(
            now_ns, "scheduler", steps=self.periods, num_tenants=len(rows), tenants=rows,
            num_replicas=1, replicas=[{"epoch": 1, "num_blocks": 64}],
        )  # fmt: skip
        self._telemetry.fill(self._page, dropped_frames=0)
        self._engine.publish(
            now_ns, "http.0", **{name: self._page[name] for name in HTTP_PAGE.names or ()}
        )

    def _scrape_clock(self) -> "ScrapeClock":
        return ScrapeClock(self._clock)


class ScrapeClock:
    """The stage's clock as a `core.clock.Clock`."""

    def __init__(self, clock: StageClock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        """Return the simulated time, ns."""
        return self._clock.monotonic_ns()


def traced_bytes() -> int:
    """Return what is allocated now, but for what `pathlib` holds: it interns the parts of paths,
    and the interpreter's table of such strings doubles now and then, whoever has filled it.
    """
    gc.collect()
    others = tracemalloc.Filter(inclusive=False, filename_pattern=pathlib.__file__)
    snapshot = tracemalloc.take_snapshot().filter_traces([others])
    return sum(each.size for each in snapshot.statistics("filename"))


@pytest.mark.slow
def test_ten_hours_leave_no_trace_in_memory(tmp_path: Path) -> None:
    """However many tenants came and went, and however often somebody looked."""
    tracemalloc.start()
    life = Life(tmp_path / "base")
    life.fill()
    for _ in range(TENANTS_KNOWN):
        life.period()
    before = traced_bytes()
    for _ in range(BURSTS):
        life.period()
    growth = traced_bytes() - before
    tracemalloc.stop()
    assert growth < GROWTH_BYTES, f"{growth} bytes in {HOURS} simulated hours"
