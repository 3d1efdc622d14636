"""The live requests, of all tenants or of one; Enter opens one, x cancels it."""

from collections.abc import Mapping
from typing import ClassVar

from textual.binding import Binding, BindingType

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.messages import CommandWanted, RowChosen
from dashboard.screens.asking import Ask, AskingScreen
from dashboard.screens.request_dialog import RequestDialog
from dashboard.source.base import Record
from dashboard.tables.records import number
from dashboard.tables.requests import identity_of, requests_table
from dashboard.widgets.table_view import TableView

MAX_LISTED = 1000


class RequestsScreen(AskingScreen):
    """Draws the answer to `requests`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "cancel_request", "Cancel this request", show=False)
    ]

    def __init__(self, glyphs: Glyphs, ask: Ask) -> None:
        """Begin empty."""
        super().__init__(glyphs, TableView(requests_table(), glyphs), ask)
        self.tenant = ""
        self._requests: list[Record] = []
        self._total = 0
        self._is_stale = False

    def show_tenant(self, tenant: str) -> None:
        """List only this tenant's requests; all of them if it is empty."""
        if tenant != self.tenant:
            self.tenant, self._requests, self._total = tenant, [], 0
            self.ask_again()

    def question(self) -> tuple[str, Mapping[str, object]]:
        """Ask for the requests."""
        args: Record = {"limit": MAX_LISTED}
        return "requests", args | ({"tenant": self.tenant} if self.tenant else {})

    def answered(self, result: Record, asked_s: float) -> None:
        """Keep the list; of a silent scheduler there are only counts."""
        found = result.get("requests")
        self._requests = (
            [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
        )
        self._total = int(number(result, "total"))
        self._is_stale = bool(result.get("stale"))

    def headline(self) -> str:
        """Say which requests, and how many."""
        whose = (
            f"requests of {self.tenant} (Esc: all)" if self.tenant else "requests of all tenants"
        )
        listed = (
            f", the first {len(self._requests)} listed" if self._total > len(self._requests) else ""
        )
        stale = "; the scheduler is silent, nothing can be listed" if self._is_stale else ""
        return f"{self._total} {whose}{listed}{stale}"

    def rows(self, view: View) -> list[Record]:
        """Return the requests."""
        return self._requests

    def action_clear(self) -> None:
        """Give up the filter; without one, the tenant."""
        if not self.table_view.table.words:
            self.show_tenant("")
        super().action_clear()

    def action_cancel_request(self) -> None:
        """Ask to cancel the request under the cursor."""
        row = self.table_view.table.selected
        if row is not None:
            self.post_message(CommandWanted(f"cancel {identity_of(row)}"))

    def on_row_chosen(self, message: RowChosen) -> None:
        """Open the request."""
        message.stop()
        self.app.push_screen(RequestDialog(message.identity, self.glyphs, self._ask))
