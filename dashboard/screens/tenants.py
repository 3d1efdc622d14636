"""All tenants; Enter opens a tenant's requests."""

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.messages import RowChosen, ScreenWanted
from dashboard.screens.base import TableScreen
from dashboard.tables.tenants import TenantRow, rows_of, tenants_table
from dashboard.widgets.table_view import TableView


class TenantsScreen(TableScreen):
    """Draws `dashboard.tables.tenants`."""

    def __init__(self, glyphs: Glyphs) -> None:
        """Begin empty."""
        super().__init__(glyphs, TableView(tenants_table(), glyphs))

    def rows(self, view: View) -> list[TenantRow]:
        """Return a row per tenant."""
        return rows_of(view)

    def on_row_chosen(self, message: RowChosen) -> None:
        """Show the tenant's requests."""
        message.stop()
        self.post_message(ScreenWanted("requests", message.identity))
