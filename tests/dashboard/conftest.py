"""Plays on a stage: the app in a terminal of either size, driven by keys."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dashboard.source.base import Source
from tests.support.control_plane.dashboard_stage import (
    LARGE,
    SMALL,
    Play,
    Stage,
    StageClock,
    demo,
    on_stage,
)


@pytest.fixture(params=[SMALL, LARGE], ids=["80x24", "120x40"])
def play(request: pytest.FixtureRequest) -> Play:
    """Return what runs a play in a small or a large terminal."""

    def run(
        acts: Callable[[Stage], Awaitable[None]],
        source: Callable[[StageClock], Source] = demo,
        **options: Any,
    ) -> None:
        async def perform() -> None:
            async with on_stage(request.param, source, **options) as stage:
                await acts(stage)

        asyncio.run(perform())

    return run
