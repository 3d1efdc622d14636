"""The live requests, of all tenants or of one, and why the one under the cursor waits; Enter opens
it, x cancels it.
"""

from collections.abc import Mapping
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.messages import CommandWanted, RowChosen
from dashboard.pictures.request import BRIEF_HEIGHT, brief
from dashboard.screens.asking import Ask, AskingScreen, Inquiry
from dashboard.screens.request_dialog import RequestDialog
from dashboard.source.base import Record
from dashboard.tables.records import number, records_in
from dashboard.tables.requests import identity_of, requests_table
from dashboard.widgets.lines_view import LinesView
from dashboard.widgets.table_view import TableView

MAX_LISTED = 1000
LIST_EVERY_S = SHOW_EVERY_S = 2.0  # an answer costs as much as three looks at the board


class RequestsScreen(AskingScreen):
    """Draws the answer to `requests`, and below it the answer to `show`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "cancel_request", "Cancel this request", show=False)
    ]

    def __init__(self, glyphs: Glyphs, ask: Ask) -> None:
        """Begin empty."""
        super().__init__(glyphs, TableView(requests_table(), glyphs), ask, LIST_EVERY_S)
        self._ask = ask
        self.tenant = ""
        self._chosen = ""  # the number of the request that `_shown` is about
        self._shown: Record | None = None
        self._show = Inquiry(ask, SHOW_EVERY_S)
        self.why_view = LinesView(id="why")
        self.why_view.styles.height = BRIEF_HEIGHT
        self._requests: list[Record] = []
        self._total = 0
        self._is_stale = False

    def show_tenant(self, tenant: str) -> None:
        """List only this tenant's requests; all of them if it is empty."""
        if tenant != self.tenant:
            self.tenant, self._requests, self._total = tenant, [], 0
            self.ask_again()

    def body(self) -> list[Widget]:
        """Return the table, and below it the request under the cursor."""
        return [*self.lead(), self.table_view, self.why_view, self.filter_input]

    def draw(self, view: View) -> None:
        """Draw the list, and what is known of the request under the cursor."""
        super().draw(view)
        row = self.table_view.table.selected
        chosen = identity_of(row) if row is not None else ""
        if chosen != self._chosen:
            self._chosen, self._shown = chosen, None
            self._show.forget()
        if chosen and self._show.begin(view.frame.wall_s):
            self.run_worker(self._look_at(chosen), group="show")
        self.why_view.show(brief(self._shown or row, self.size.width, is_whole=bool(self._shown)))

    async def _look_at(self, chosen: str) -> None:
        result = await self._show.put("show", {"request": chosen})
        if chosen == self._chosen:
            records = records_in(result or {}, "requests")
            self._shown = records[0] if records else None
        self.redraw()

    def text(self) -> str:
        """Return the list, and what is below it."""
        return f"{super().text()}\n{self.why_view.text}"

    def question(self) -> tuple[str, Mapping[str, object]]:
        """Ask for the requests."""
        args: Record = {"limit": MAX_LISTED}
        return "requests", args | ({"tenant": self.tenant} if self.tenant else {})

    def answered(self, result: Record, asked_s: float) -> None:
        """Keep the list; of a silent scheduler there are only counts."""
        self._requests = records_in(result, "requests")
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
