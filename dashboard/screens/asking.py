"""A screen with a table that asks the engine every second or two, while somebody looks at it.

Owns: that a question is asked again once its answer is old, one at a time, and that a silent
engine stops nothing. Never knows: how a question travels.
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


class Inquiry:
    """One question that is asked again and again."""

    def __init__(self, ask: Ask, every_s: float = ASK_EVERY_S) -> None:
        """Ask with `ask`, every `every_s` seconds."""
        self._ask = ask
        self._every_s = every_s
        self._asked_s: float | None = None
        self._is_asking = False
        self.fault = ""

    def begin(self, now_s: float) -> bool:
        """Return whether it is time to `put` it, which must then be done; `now_s` is the time of
        day.
        """
        is_fresh = self._asked_s is not None and abs(now_s - self._asked_s) < self._every_s * 0.99
        if self._is_asking or is_fresh:
            return False
        self._asked_s, self._is_asking = now_s, True
        return True

    def forget(self) -> None:
        """Be due at once."""
        self._asked_s = None

    async def put(self, command: str, args: Mapping[str, object]) -> Record | None:
        """Return the answer; None, and `fault` says why, if there is none."""
        try:
            result = await self._ask(command, args)
            self.fault = ""
        except ControlError as error:
            self.fault = str(error)
            return None
        finally:
            self._is_asking = False
        return result


class AskingScreen(TableScreen):
    """Asks `question`, and hands the result to `answered`."""

    def __init__(
        self, glyphs: Glyphs, table: TableView, ask: Ask, every_s: float = ASK_EVERY_S
    ) -> None:
        """Ask with `ask`, every `every_s` seconds."""
        super().__init__(glyphs, table)
        self._inquiry = Inquiry(ask, every_s)
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
        if self._inquiry.begin(now_s):
            self.run_worker(self._inquire(now_s), group="ask")
        fault = ((f"  {self._inquiry.fault}", Tone.ALARM),) if self._inquiry.fault else ()
        self.lead_view.show([(*line((f" {self.headline()}", Tone.FAINT)), *fault)])
        super().draw(view)

    def ask_again(self) -> None:
        """Ask at the next view, whenever the last question was."""
        self._inquiry.forget()

    async def _inquire(self, now_s: float) -> None:
        result = await self._inquiry.put(*self.question())
        if result is not None:
            self.answered(result, now_s)
        self.redraw()

    def rows(self, view: View) -> list[Any]:
        """Return what was answered last."""
        raise NotImplementedError
