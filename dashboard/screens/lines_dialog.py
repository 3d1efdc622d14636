"""Lines in a frame that can be scrolled: help, and the answers to commands."""

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from dashboard.lines import Line, Tone, line, plain_text
from dashboard.widgets.lines_view import LinesView


class LinesDialog(ModalScreen[None]):
    """Shows lines until Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "Back", show=False),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-15)", show=False),
        Binding("pagedown,space", "scroll(15)", show=False),
        Binding("y", "copy", "Copy", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Line]) -> None:
        """Show `lines` under `title`."""
        super().__init__()
        self._title_text = title
        self._lines = list(lines)
        self._top = 0
        self.picture = LinesView(id="lines")

    def compose(self) -> ComposeResult:
        """The lines in a frame."""
        yield Vertical(self.picture, classes="dialog tall")

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.call_after_refresh(self._draw)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll down."""
        self.action_scroll(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll up."""
        self.action_scroll(-3)

    def action_scroll(self, step: int) -> None:
        """Scroll."""
        self._top += step
        self._draw()

    def action_copy(self) -> None:
        """Copy all lines to the clipboard."""
        self.app.copy_to_clipboard(plain_text(self._lines))
        self.app.notify("copied")

    def _draw(self) -> None:
        room = max(1, self.picture.size.height - 2)
        self._top = max(0, min(self._top, len(self._lines) - room))
        shown = self._lines[self._top : self._top + room]
        last = self._top + len(shown)
        place = f"  {self._top + 1}-{last} of {len(self._lines)}" if len(self._lines) > room else ""
        head = line((self._title_text, Tone.TITLE), (f"   Esc back, Up Down{place}", Tone.FAINT))
        self.picture.show([head, (), *shown])
