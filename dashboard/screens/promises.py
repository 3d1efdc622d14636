"""Promises: kept or broken, by class and by tenant, and their price."""

from textual.widget import Widget

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.pictures.promises import promises
from dashboard.screens.base import TableScreen
from dashboard.tables.tenants import TenantRow, promises_table, rows_of
from dashboard.widgets.lines_view import LinesView
from dashboard.widgets.table_view import TableView


class PromisesScreen(TableScreen):
    """Draws `dashboard.pictures.promises` above the tenants whose promises were broken."""

    def __init__(self, glyphs: Glyphs) -> None:
        """Begin empty."""
        super().__init__(glyphs, TableView(promises_table(), glyphs))
        self.picture = LinesView(id="lead")

    def lead(self) -> list[Widget]:
        """Return the picture."""
        return [self.picture]

    def draw(self, view: View) -> None:
        """Give the picture the lines it needs and the table the rest."""
        lines = promises(view, self.size.width)
        self.picture.styles.height = len(lines)
        self.picture.show(lines)
        super().draw(view)

    def rows(self, view: View) -> list[TenantRow]:
        """Return a row per tenant."""
        return rows_of(view)

    def text(self) -> str:
        """Return both as text."""
        return f"{self.picture.text}\n{self.table_view.text}"
