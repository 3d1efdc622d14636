"""The dashboard on a stage: a made-up engine on a clock that only moves when told to, and eyes."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from textual.pilot import Pilot

from dashboard.app import DashboardApp, Options
from dashboard.format import UNICODE, Glyphs
from dashboard.recording import RecordingWriter
from dashboard.screens.base import TableScreen
from dashboard.source.base import Source
from dashboard.source.demo import DemoSource

SMALL, LARGE = (80, 24), (120, 40)
SLOW_HERTZ = 1 / 3600  # the app's own looks, so none: tests tick by hand
PATIENCE = 6000  # looks, 10 ms apart


@dataclass(slots=True)
class StageClock:
    """Both clocks of a dashboard; the time of day begins at noon, UTC."""

    now_s: float = 1000.0

    def monotonic_s(self) -> float:
        """Return seconds that only go on."""
        return self.now_s

    def monotonic_ns(self) -> int:
        """Return the same in nanoseconds."""
        return round(self.now_s * 1e9)

    def wall_s(self) -> float:
        """Return the time of day."""
        return 1_796_040_000.0 + self.now_s - 1000.0


@dataclass(slots=True)
class Stage:
    """A running app and its hands and eyes."""

    app: DashboardApp
    pilot: Pilot[None]
    clock: StageClock

    async def press(self, *keys: str) -> None:
        """Press keys and let everything settle."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def pass_time(self, seconds: float, step_s: float = 0.5) -> None:
        """Let time go on, with a look every step."""
        for _ in range(round(seconds / step_s)):
            self.clock.now_s += step_s
            self.app.tick()
        await self.pilot.pause()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what a thread will bring."""
        for _ in range(PATIENCE):
            if condition():
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"it did not come to pass; on the screen:\n{self.text}")

    async def until_shown(self, words: str) -> None:
        """Wait for words on the screen."""
        await self.until(lambda: words in self.text)

    @property
    def text(self) -> str:
        """What is on the screen, dialogs included, without colour."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    @property
    def lines(self) -> list[str]:
        """The same by lines."""
        return self.text.split("\n")


class PatientApp(DashboardApp):
    """Two clicks on a spot are a double click, however slowly they come."""

    CLICK_CHAIN_TIME_THRESHOLD = float("inf")
    CSS_PATH = str(Path(inspect.getfile(DashboardApp)).with_name("dashboard.tcss"))


def demo(clock: StageClock, num_tenants: int = 12, seed: int = 1) -> DemoSource:
    """Return a made-up engine on a stage's clock."""
    return DemoSource(seed, num_tenants, clock.monotonic_s, clock.wall_s)


class Play(Protocol):
    """Runs one play on a stage of one size."""

    def __call__(
        self,
        acts: Callable[[Stage], Awaitable[None]],
        source: Callable[[StageClock], Source] = demo,
        *,
        readonly: bool = False,
        folder: Path = Path(),
        recorder: RecordingWriter | None = None,
    ) -> None:
        """Run it to its end."""


@asynccontextmanager
async def on_stage(
    size: tuple[int, int] = SMALL,
    source: Callable[[StageClock], Source] = demo,
    *,
    glyphs: Glyphs = UNICODE,
    readonly: bool = False,
    folder: Path = Path(),
    recorder: RecordingWriter | None = None,
) -> AsyncIterator[Stage]:
    """Run the app in a terminal of this size until the block ends."""
    clock = StageClock()
    options = Options(glyphs, SLOW_HERTZ, readonly=readonly, folder=folder)
    app = PatientApp(source(clock), options, recorder)
    async with app.run_test(size=size, notifications=True) as pilot:
        stage = Stage(app, pilot, clock)
        await stage.until(lambda: app.view is not None)  # its first look, before any time passes
        await stage.pass_time(16.0)
        yield stage


def table_of(stage: Stage) -> list[str]:
    """Return the rows of the table on the screen, as text."""
    page = stage.app.pages[stage.app.page_name]
    assert isinstance(page, TableScreen)
    return page.table_view.text.split("\n")[1:]
