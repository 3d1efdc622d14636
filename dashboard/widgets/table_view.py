"""A table on the screen: cursor, scrolling, clicks on headers and rows.

Owns: how keys and the mouse move within a `Table`. Never knows: what is in it.
"""

from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType

from dashboard.format import Glyphs
from dashboard.messages import RowChosen
from dashboard.table import Table
from dashboard.widgets.lines_view import LinesView


class TableView(LinesView, can_focus=True):
    """Draws a table and moves its cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "move(-1000000)", show=False),
        Binding("end,G", "move(1000000)", show=False),
        Binding("left", "shift(-1)", show=False),
        Binding("right", "shift(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    def __init__(self, table: Table[Any], glyphs: Glyphs, *, id: str | None = None) -> None:
        """Show `table`."""
        super().__init__(id=id)
        self.table = table
        self._glyphs = glyphs

    def redraw(self) -> None:
        """Draw the table as it is now."""
        self.show(self.table.draw(self.size.width, self.size.height, self._glyphs))

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.redraw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move three rows down."""
        event.stop()
        self.action_move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move three rows up."""
        event.stop()
        self.action_move(-3)

    def on_click(self, event: events.Click) -> None:
        """Sort by the header that was hit, or go to the row; a second click opens it."""
        if event.y == 0:
            column = self.table.column_at(event.x, self.size.width)
            if column is not None:
                self.table.sort_by(column.key)
                self.redraw()
            return
        index = self.table.top + event.y - 1
        if index < len(self.table.rows):
            self.table.move_to(index)
            self.redraw()
            if event.chain > 1:
                self.action_choose()

    def action_move(self, step: int) -> None:
        """Move the cursor."""
        self.table.move_to(self.table.cursor_index + step)
        self.redraw()

    def action_page(self, step: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(step * max(1, self.size.height - 2))

    def action_shift(self, step: int) -> None:
        """Scroll the columns."""
        self.table.shift += step
        self.redraw()

    def action_choose(self) -> None:
        """Open the row under the cursor."""
        row = self.table.selected
        if row is not None:
            self.post_message(RowChosen(self.table.identity(row)))
