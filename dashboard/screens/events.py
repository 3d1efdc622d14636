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
from dashboard.pictures.latest import HEIGHT, latest
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
        super().__init__(glyphs, TableView(events_table(), glyphs), ask)
        self._journal = journal
        self._kept: defaultdict[str, deque[Record]] = defaultdict(_new_kind)
        self._next: int | None = None
        self._epoch = 0
        self._total = 0
        self._audit = Inquiry(ask, AUDIT_EVERY_S)
        self._commands: list[Record] = []
        self._rows: list[Record] = []
        self._rows_s: float | None = None  # when they were made, of the time of day
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
        self._rows_s = None

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
            self._rows_s = None
        if self._audit.begin(view.frame.wall_s):
            self.run_worker(self._read_audit(), group="audit")
        super().draw(view)
        is_whole = self._total == self._num_kept
        self.latest_view.show(latest(self._rows, self.size.width, is_whole=is_whole))

    async def _read_audit(self) -> None:
        result = await self._audit.put("audit", {"limit": MAX_COMMANDS})
        if result is not None:
            self._commands = [event_of(each) for each in records_in(result, "commands")]
            self._rows_s = None
        self.redraw()

    def rows(self, view: View) -> list[Record]:
        """Return all events with their age, which is brought up to date every AGE_EVERY_S."""
        now_s = view.frame.wall_s
        if self._rows_s is None or abs(now_s - self._rows_s) >= AGE_EVERY_S:
            kept = chain.from_iterable(self._kept.values())
            known = (*kept, *self._journal.entries(), *self._commands)
            self._rows = [{**e, "age_s": max(0.0, now_s - number(e, "at_s"))} for e in known]
            self._rows_s = now_s
        return self._rows

    def text(self) -> str:
        """Return the last of each sort, and the table."""
        return f"{self.latest_view.text}\n{super().text()}"
