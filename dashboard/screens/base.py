"""What all screens share: header, body, footer, keys; and those with a table, which can be sorted
and filtered.

Never knows: where a view comes from. The app calls `show` whenever there is a new one.
"""

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.keymap import APP_KEYS, REPLAY_KEYS, TABLE_KEYS, Key
from dashboard.lines import Line
from dashboard.widgets.footer_bar import FooterBar, hints_line
from dashboard.widgets.header_bar import HeaderBar
from dashboard.widgets.table_view import TableView


def app_key(key: Key) -> BindingType:
    """Return a key whose action is the app's."""
    binding = key.binding
    return binding.__class__(
        binding.key, f"app.{key.action}", binding.description, show=False,
        key_display=binding.key_display, priority=key.keys in ("tab", "shift+tab"),
    )  # fmt: skip


class DashboardScreen(Screen[None]):
    """A screen with header and footer around a body."""

    BINDINGS: ClassVar[list[BindingType]] = [app_key(key) for key in (*APP_KEYS, *REPLAY_KEYS)]
    AUTO_FOCUS = "TableView"

    def __init__(self, glyphs: Glyphs) -> None:
        """Draw charts with `glyphs`."""
        super().__init__()
        self.glyphs = glyphs
        self.header_bar = HeaderBar()
        self.footer_bar = FooterBar()
        self.view: View | None = None

    def compose(self) -> ComposeResult:
        """Header, body, footer."""
        yield self.header_bar
        yield from self.body()
        yield self.footer_bar

    def body(self) -> list[Widget]:
        """Return what is between header and footer."""
        raise NotImplementedError

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return blank lines, which nobody sees: what is on this screen covers all of it."""
        return [Strip.blank(crop.width)] * crop.height

    def show(self, view: View) -> None:
        """Draw a view."""
        self.view = view
        self.draw(view)
        self.draw_footer()

    def draw(self, view: View) -> None:
        """Draw the body."""
        raise NotImplementedError

    def show_header(self, lines: list[Line]) -> None:
        """Draw the header, which is of now even when the body is frozen."""
        self.header_bar.show(lines)

    def draw_footer(self) -> None:
        """Draw the hints."""
        self.footer_bar.show([hints_line(has_table=False)])

    def on_resize(self) -> None:
        """Draw for the new size, once it is known to the widgets."""
        self.call_after_refresh(self.redraw)

    def redraw(self) -> None:
        """Draw the last view again."""
        if self.view is not None:
            self.show(self.view)

    def table(self) -> TableView | None:
        """Return the table of this screen, if there is one."""
        return None

    def text(self) -> str:
        """Return what is on the screen."""
        raise NotImplementedError


class TableScreen(DashboardScreen):
    """A screen with a table."""

    BINDINGS: ClassVar[list[BindingType]] = [key.binding for key in TABLE_KEYS]

    def __init__(self, glyphs: Glyphs, table: TableView) -> None:
        """Show `table`, and above it what `lead` returns."""
        super().__init__(glyphs)
        self.table_view = table
        self._shown_rows: list[Any] | None = None
        self._shown_words = ""
        self.filter_input = Input(placeholder="words that rows must have", id="filter")

    def body(self) -> list[Widget]:
        """Return the lead, the table and the filter."""
        return [*self.lead(), self.table_view, self.filter_input]

    def lead(self) -> list[Widget]:
        """Return what stands above the table."""
        return []

    def rows(self, view: View) -> list[Any]:
        """Return the rows of a view."""
        raise NotImplementedError

    def draw(self, view: View) -> None:
        """Draw the table, unless it is about the same rows as before under the same filter."""
        table, rows = self.table_view.table, self.rows(view)
        if rows is not self._shown_rows or table.words != self._shown_words:
            self._shown_rows, self._shown_words = rows, table.words
            table.show(rows)
            self.table_view.redraw()

    def draw_footer(self) -> None:
        """Draw the hints, and the filter if there is one."""
        table = self.table_view.table
        extra = (
            f"{len(table.rows)} of {table.total} with {table.words!r}"
            if table.words
            else self.note()
        )
        self.footer_bar.show([hints_line(has_table=True, extra=extra)])

    def note(self) -> str:
        """Return what is worth saying in the footer."""
        table = self.table_view.table
        shown = self.table_view.size.height - 1
        if len(table.rows) <= shown:
            return ""
        return f"{table.top + 1}-{min(len(table.rows), table.top + shown)} of {len(table.rows)}"

    def table(self) -> TableView:
        """Return the table."""
        return self.table_view

    def text(self) -> str:
        """Return what is on the screen."""
        return self.table_view.text

    def action_filter(self) -> None:
        """Begin to type a filter."""
        self.filter_input.add_class("open")
        self.filter_input.value = self.table_view.table.words
        self.filter_input.focus()

    def action_clear(self) -> None:
        """Give up the filter."""
        self.close_filter("")

    def action_sort(self, step: int) -> None:
        """Sort by another column."""
        self.table_view.table.sort_by_next(step, self.table_view.size.width)
        self.table_view.redraw()

    def action_reverse(self) -> None:
        """Turn the order around."""
        table = self.table_view.table
        table.sort_by(table.sort_key)
        self.table_view.redraw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while words are typed."""
        event.stop()
        if self.filter_input.has_class("open"):
            self.table_view.table.words = event.value
            self.redraw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go back to the table."""
        event.stop()
        self.close_filter(event.value)

    def close_filter(self, words: str) -> None:
        """Filter by `words` and go back to the table."""
        self.filter_input.remove_class("open")
        self.table_view.table.words = words
        self.table_view.focus()
        self.redraw()
