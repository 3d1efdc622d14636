"""The widget below all others draws a line when it has changed, or all lines look otherwise."""

import asyncio
from collections.abc import Callable, Coroutine

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip

from dashboard.lines import line
from dashboard.widgets.lines_view import LinesView

WIDTH, HEIGHT = 20, 4
LINES = [line("above"), line("between"), line("below")]


class LinesApp(App[None]):
    """Shows a LinesView and nothing else."""

    CSS = "LinesView > .tone--plain { color: $foreground; background: $background; }"

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.lines_view = LinesView()

    def compose(self) -> ComposeResult:
        """The widget."""
        yield self.lines_view


def drawn(view: LinesView) -> list[Strip]:
    """Return the lines as Textual gets them."""
    return view.render_lines(view.size.region)


def acted(act: Callable[[LinesView, Pilot[None]], Coroutine[None, None, None]]) -> None:
    """Run `act` with a view in a terminal."""

    async def perform() -> None:
        app = LinesApp()
        async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
            await act(app.lines_view, pilot)

    asyncio.run(perform())


def test_only_a_line_that_changed_is_drawn_again() -> None:
    """The others are the same object as before, the one that changed says what is new."""

    async def act(view: LinesView, pilot: Pilot[None]) -> None:
        view.show(LINES)
        before = drawn(view)
        view.show([LINES[0], line("other"), LINES[2]])
        after = drawn(view)
        assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True, True]
        assert after[1].text == "other".ljust(WIDTH)

    acted(act)


def test_a_line_that_is_gone_is_blank() -> None:
    """Fewer lines than before leave nothing behind."""

    async def act(view: LinesView, pilot: Pilot[None]) -> None:
        view.show(LINES)
        drawn(view)
        view.show(LINES[:1])
        assert [strip.text.rstrip() for strip in drawn(view)] == ["above", "", "", ""]

    acted(act)


def test_all_lines_are_drawn_again_for_another_width_or_theme() -> None:
    """What was kept is as wide as the widget is now, and in the colours of now."""

    async def act(view: LinesView, pilot: Pilot[None]) -> None:
        view.show([line("text")])
        dark = drawn(view)[0]
        await pilot.resize_terminal(WIDTH * 2, HEIGHT)
        wide = drawn(view)[0]
        view.app.theme = "textual-light"
        await pilot.pause()
        light = drawn(view)[0]
        assert (dark.cell_length, wide.cell_length) == (WIDTH, WIDTH * 2)
        assert next(iter(wide)).style == next(iter(dark)).style
        assert next(iter(light)).style != next(iter(wide)).style

    acted(act)
