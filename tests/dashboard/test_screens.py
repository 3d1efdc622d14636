"""Every screen as text, in a small and in a large terminal, held against what was looked at."""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.format import ASCII
from dashboard.keymap import SCREENS
from tests.support.control_plane.dashboard_stage import LARGE, SMALL, Stage, on_stage

SNAPSHOTS = Path(__file__).with_name("snapshots")
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "120x40"])
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clock in the corner shows UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def compare(name: str, text: str) -> None:
    """Hold a screen against the file that has it; UPDATE_SNAPSHOTS=1 writes the file instead."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


async def arrive(stage: Stage, screen: str) -> None:
    """Go to a screen and wait for what it asks the engine."""
    await stage.press(str(SCREENS.index(screen) + 1))
    await stage.pass_time(0.5)
    if screen in ("requests", "events"):
        await stage.until(lambda: "nothing yet" not in stage.text)


@SIZES
@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_looks_as_it_did(screen: str, size: tuple[int, int]) -> None:
    """The same engine at the same time gives the same text."""

    async def play() -> None:
        async with on_stage(size) as stage:
            await arrive(stage, screen)
            compare(f"{screen}-{size[0]}x{size[1]}", stage.text)

    asyncio.run(play())


@SIZES
def test_a_request_in_full_looks_as_it_did(size: tuple[int, int]) -> None:
    """Its life, its tokens, why it waits."""

    async def play() -> None:
        async with on_stage(size) as stage:
            await arrive(stage, "requests")
            await stage.press("enter")
            await stage.until_shown("waits for")
            compare(f"request-{size[0]}x{size[1]}", stage.text)

    asyncio.run(play())


@SIZES
def test_the_help_looks_as_it_did(size: tuple[int, int]) -> None:
    """Keys, columns, words."""

    async def play() -> None:
        async with on_stage(size) as stage:
            await stage.press("2", "question_mark")
            compare(f"help-{size[0]}x{size[1]}", stage.text)

    asyncio.run(play())


@SIZES
def test_the_palette_looks_as_it_did(size: tuple[int, int]) -> None:
    """What fits the line so far, how it is typed, and a mark at what changes something."""

    async def play() -> None:
        async with on_stage(size) as stage:
            await stage.press("colon", *"pause")
            compare(f"palette-{size[0]}x{size[1]}", stage.text)

    asyncio.run(play())


@pytest.mark.parametrize("screen", SCREENS)
def test_ascii_is_enough(screen: str) -> None:
    """With ASCII glyphs the screen has no other character."""

    async def play() -> None:
        async with on_stage(glyphs=ASCII) as stage:
            await arrive(stage, screen)
            assert [c for c in stage.text if ord(c) > 126] == []

    asyncio.run(play())


@pytest.mark.parametrize("size", [(40, 8), (60, 16), (250, 70)])
def test_any_size_is_drawn(size: tuple[int, int]) -> None:
    """A tiny or a huge terminal shows what fits."""

    async def play() -> None:
        async with on_stage(size) as stage:
            for screen in SCREENS:
                await arrive(stage, screen)
                assert len(stage.lines) == size[1]
                assert all(len(each) <= size[0] for each in stage.lines)

    asyncio.run(play())
