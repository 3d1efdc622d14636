"""A screen with a table that asks the engine once a second, while somebody looks at it.

Owns: that one question is under way at a time, and that a silent engine stops nothing. Never knows:
how a question travels.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from textual.widget import Widget

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.lines import Tone, line
from dashboard.screens.base import TableScreen
from dashboard.source.base import ControlError, Record
from dashboard.widgets.lines_view import LinesView
from dashboard.widgets.table_view import TableView

ASK_EVERY_S = 1.0

Ask = Callable[[str, Mapping[str, object]], Awaitable[Record]]
"""Gives a command and returns its result; raises ControlError."""


class AskingScreen(TableScreen):
    """Asks `question`, and hands the result to `answered`."""

    def __init__(self, glyphs: Glyphs, table: TableView, ask: Ask) -> None:
        """Ask with `ask`."""
        super().__init__(glyphs, table)
        self._ask = ask
        self._asked_s: float | None = None
        self._is_asking = False
        self.fault = ""
        self.lead_view = LinesView(id="lead")
        self.lead_view.styles.height = 1

    def lead(self) -> list[Widget]:
        """Return the line above the table."""
        return [self.lead_view]

    def question(self) -> tuple[str, Mapping[str, object]]:
        """Return the command and its arguments."""
        raise NotImplementedError

    def answered(self, result: Record, asked_s: float) -> None:
        """Take a result in; `asked_s` is the time of day of the question."""
        raise NotImplementedError

    def headline(self) -> str:
        """Return what the line above the table says."""
        raise NotImplementedError

    def draw(self, view: View) -> None:
        """Draw what is known, and ask if it is time."""
        now_s = view.frame.wall_s
        if not self._is_asking and (
            self._asked_s is None or abs(now_s - self._asked_s) >= ASK_EVERY_S * 0.99
        ):
            self._asked_s, self._is_asking = now_s, True
            self.run_worker(self._inquire(now_s), group="ask")
        fault = ((f"  {self.fault}", Tone.ALARM),) if self.fault else ()
        self.lead_view.show([(*line((f" {self.headline()}", Tone.FAINT)), *fault)])
        super().draw(view)

    def ask_again(self) -> None:
        """Ask at the next view, whenever the last question was."""
        self._asked_s = None

    async def _inquire(self, now_s: float) -> None:
        command, args = self.question()
        try:
            self.answered(await self._ask(command, args), now_s)
            self.fault = ""
        except ControlError as error:
            self.fault = str(error)
        finally:
            self._is_asking = False
        self.redraw()

    def rows(self, view: View) -> list[Any]:
        """Return what was answered last."""
        raise NotImplementedError
