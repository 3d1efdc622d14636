"""Replicas, executors, and all processes of the engine."""

from textual.widget import Widget

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.pictures.executors import executors
from dashboard.screens.base import TableScreen
from dashboard.tables.processes import ProcessRow, processes_table, rows_of
from dashboard.widgets.lines_view import LinesView
from dashboard.widgets.table_view import TableView


class ExecutorsScreen(TableScreen):
    """Draws `dashboard.pictures.executors` above `dashboard.tables.processes`."""

    def __init__(self, glyphs: Glyphs) -> None:
        """Begin empty."""
        super().__init__(glyphs, TableView(processes_table(), glyphs))
        self.picture = LinesView(id="lead")

    def lead(self) -> list[Widget]:
        """Return the picture."""
        return [self.picture]

    def draw(self, view: View) -> None:
        """Give the picture the lines it needs, up to two thirds, and the table the rest."""
        lines = executors(view, self.size.width, self.size.height * 2 // 3, self.glyphs)
        self.picture.styles.height = len(lines)
        self.picture.show(lines)
        super().draw(view)

    def rows(self, view: View) -> list[ProcessRow]:
        """Return the processes."""
        return rows_of(view)

    def text(self) -> str:
        """Return both as text."""
        return f"{self.picture.text}\n{self.table_view.text}"
