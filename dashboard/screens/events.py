"""Events: what the scheduler decided under pressure, what operators commanded, and what this
dashboard saw. The last of each sort stands above all of them.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import chain

from textual.widget import Widget

from dashboard.audit import event_of
from dashboard.format import Glyphs
from dashboard.history import View
from dashboard.journal import Journal
from dashboard.pictures.latest import HEIGHT, latest, latest_of
from dashboard.screens.asking import Ask, AskingScreen, Inquiry
from dashboard.source.base import Record
from dashboard.tables.events import events_table
from dashboard.tables.records import number, records_in, words
from dashboard.widgets.lines_view import LinesView
from dashboard.widgets.table_view import TableView

MAX_KEPT_OF_A_KIND = 500
MAX_ASKED = 1000
MAX_COMMANDS = 100
AGE_EVERY_S = 0.5
AUDIT_EVERY_S = 3.0


def _new_kind() -> deque[Record]:
    """Return room for the events of one kind, so that a flood of another hides none of them."""
    return deque(maxlen=MAX_KEPT_OF_A_KIND)


class EventsScreen(AskingScreen):
    """Draws the answers to `events`, each question going on where the last answer ended."""

    def __init__(self, glyphs: Glyphs, ask: Ask, journal: Journal) -> None:
        """Begin empty."""
        super().__init__(glyphs, TableView(events_table(lambda: self._now_s), glyphs), ask)
        self._journal = journal
        self._kept: defaultdict[str, deque[Record]] = defaultdict(_new_kind)
        self._next: int | None = None
        self._epoch = 0
        self._total = 0
        self._audit = Inquiry(ask, AUDIT_EVERY_S)
        self._commands: list[Record] = []
        self._rows: list[Record] = []
        self._latest = latest_of(())
        self._are_rows_old = True
        self._num_noted = 0  # in the journal, when the rows were made
        self._now_s = self._drawn_s = 0.0  # of the time of day
        self.latest_view = LinesView(id="latest")
        self.latest_view.styles.height = HEIGHT

    def lead(self) -> list[Widget]:
        """Return the lines above the table."""
        return [*super().lead(), self.latest_view]

    def question(self) -> tuple[str, Mapping[str, object]]:
        """Ask for what is new."""
        args: Record = {"limit": MAX_ASKED}
        return "events", args | ({"since": self._next} if self._next is not None else {})

    def answered(self, result: Record, asked_s: float) -> None:
        """Keep what is new; a scheduler that counts from 0 again is another one."""
        self._total = int(number(result, "total"))
        if self._next is not None and self._total < self._next:
            self._kept.clear()
            self._next = None
            return
        for event in records_in(result, "events"):
            kept = self._kept[words(event, "kind")]
            kept.append({**event, "at_s": asked_s - number(event, "age_s")})
        self._next = int(number(result, "next"))
        self._are_rows_old = True

    def headline(self) -> str:
        """Say how many."""
        return f"{self._total} events since the scheduler's start, {self._num_kept} kept here"

    @property
    def _num_kept(self) -> int:
        return sum(map(len, self._kept.values()))

    def draw(self, view: View) -> None:
        """Start anew with another scheduler, then draw."""
        epoch = view.frame.scheduler_epoch
        if epoch != self._epoch:
            self._epoch, self._next = epoch, None
            self._kept.clear()
            self._are_rows_old = True
        self._now_s = view.frame.wall_s
        if self._audit.begin(self._now_s):
            self.run_worker(self._read_audit(), group="audit")
        super().draw(view)
        if abs(self._now_s - self._drawn_s) >= AGE_EVERY_S:
            self._drawn_s = self._now_s
            self.table_view.redraw()
        is_whole = self._total == self._num_kept
        width = self.size.width
        self.latest_view.show(latest(self._latest, self._drawn_s, width, is_whole=is_whole))

    async def _read_audit(self) -> None:
        result = await self._audit.put("audit", {"limit": MAX_COMMANDS})
        if result is not None:
            self._commands = [event_of(each) for each in records_in(result, "commands")]
            self._are_rows_old = True
        self.redraw()

    def rows(self, view: View) -> list[Record]:
        """Return all events; the same list as before if there is none that is new."""
        if self._are_rows_old or self._journal.count != self._num_noted:
            self._num_noted, self._are_rows_old = self._journal.count, False
            kept = chain.from_iterable(self._kept.values())
            self._rows = [*kept, *self._journal.entries(), *self._commands]
            self._latest = latest_of(self._rows)
        return self._rows

    def text(self) -> str:
        """Return the last of each sort, and the table."""
        return f"{self.latest_view.text}\n{super().text()}"
