"""One request in full, asked for once a second until it ends or the dialog is closed."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from dashboard.format import Glyphs
from dashboard.lines import Line, Tone, line
from dashboard.messages import CommandWanted
from dashboard.pictures.request import request
from dashboard.screens.asking import ASK_EVERY_S, Ask
from dashboard.source.base import ControlError, Record
from dashboard.tables.records import records_in
from dashboard.widgets.lines_view import LinesView

HINT: Line = line(
    (" Esc ", Tone.TITLE), ("back  ", Tone.FAINT), ("x ", Tone.TITLE), ("cancel it", Tone.FAINT)
)


ENDED = "it has ended; above is what was known last"


class RequestDialog(ModalScreen[None]):
    """Draws `dashboard.pictures.request`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Back", show=False),
        Binding("x", "cancel_request", "Cancel it", show=False),
    ]

    def __init__(self, identity: str, glyphs: Glyphs, ask: Ask) -> None:
        """Show the request of this number."""
        super().__init__()
        self._identity = identity
        self._glyphs = glyphs
        self._ask = ask
        self._records: list[Record] = []
        self.picture = LinesView(id="request")

    def compose(self) -> ComposeResult:
        """The picture in a frame."""
        yield Vertical(self.picture, classes="dialog tall")

    def on_mount(self) -> None:
        """Ask now, and again."""
        self._inquire()
        self.set_interval(ASK_EVERY_S, self._inquire)

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.call_after_refresh(self._draw)

    def action_cancel_request(self) -> None:
        """Ask to cancel it."""
        self.post_message(CommandWanted(f"cancel {self._identity}"))

    def _inquire(self) -> None:
        self.run_worker(self._update(), group="show", exclusive=True)

    async def _update(self) -> None:
        try:
            result = await self._ask("show", {"request": self._identity})
        except ControlError as error:
            self._draw(ENDED if self._records and "no live request" in str(error) else str(error))
            return
        self._records = records_in(result, "requests")
        self._draw()

    def _draw(self, fault: str = "") -> None:
        width = self.picture.size.width
        lines: list[Line] = []
        for record in self._records:
            lines += [*request(record, width, self._glyphs), ()]
        lines += [line((f" {fault}", Tone.ALARM)), ()] if fault else []
        self.picture.show([*lines, HINT])
