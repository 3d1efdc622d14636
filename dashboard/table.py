"""Tables as lines: columns, order, filter, and what of it fits on the screen. Pure.

Owns: the state of one table and how it is drawn. Never knows: widgets or keys. The first column
stays where it is; the others can be shifted. The cursor stays with its row, not with its place,
while rows move around it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from dashboard.format import Glyphs
from dashboard.lines import PLAIN, Line, Span, Tone, fit

RowT = TypeVar("RowT")
SortKey = float | str


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One column: its cells as text, and what they are sorted by."""

    key: str
    title: str
    width: int
    cell: Callable[[RowT], Span]
    sort: Callable[[RowT], SortKey]
    help: str
    right: bool = True  # numbers; text begins at the left and sorts upwards first


@dataclass(slots=True)
class Table(Generic[RowT]):
    """The rows of one moment under one order and filter."""

    columns: Sequence[Column[RowT]]
    identity: Callable[[RowT], str]
    sort_key: str
    descending: bool = True
    words: str = ""  # the filter: rows have all of these words somewhere
    shift: int = 0  # how many columns after the first are scrolled away
    rows: list[RowT] = field(default_factory=list)
    cursor: str = ""  # identity of the row under it; "" = whichever is the first
    top: int = 0  # number of the first row on the screen
    total: int = 0  # rows before the filter

    def show(self, rows: Sequence[RowT]) -> None:
        """Take the rows of a new moment."""
        self.total = len(rows)
        column = self.column
        words = self.words.lower().split()
        kept = [row for row in rows if not words or self._has(row, words)]
        kept.sort(key=self.identity)
        kept.sort(key=column.sort, reverse=self.descending)
        place = self.cursor_index
        self.rows = kept
        if self.cursor and self.cursor not in map(self.identity, kept):
            self.move_to(place)

    @property
    def column(self) -> Column[RowT]:
        """The one that rows are sorted by."""
        return next(column for column in self.columns if column.key == self.sort_key)

    @property
    def cursor_index(self) -> int:
        """Where the cursor is."""
        if not self.cursor:
            return 0
        for index, row in enumerate(self.rows):
            if self.identity(row) == self.cursor:
                return index
        return 0

    @property
    def selected(self) -> RowT | None:
        """The row under the cursor, if there is any row."""
        return self.rows[self.cursor_index] if self.rows else None

    def move_to(self, index: int) -> None:
        """Put the cursor on a row, or the nearest there is; at the top it stays there."""
        place = min(len(self.rows) - 1, max(0, index))
        self.cursor = self.identity(self.rows[place]) if place > 0 else ""

    def sort_by(self, key: str) -> None:
        """Sort by a column; by the same one again turns the order around."""
        if key == self.sort_key:
            self.descending = not self.descending
        else:
            self.sort_key = key
            self.descending = self.column.right
        self.show_again()

    def sort_by_next(self, step: int, width: int) -> None:
        """Sort by the next column to the right, and scroll it onto a screen of this width."""
        keys = [column.key for column in self.columns]
        index = (keys.index(self.sort_key) + step) % len(keys)
        self.sort_by(keys[index])
        self.shift = min(self.shift, max(0, index - 1))
        while self.column not in self.shown_columns(width) and self.shift < index:
            self.shift += 1

    def show_again(self) -> None:
        """Bring the rows that are there into order anew."""
        total = self.total
        self.show(list(self.rows))
        self.total = total

    def shown_columns(self, width: int) -> list[Column[RowT]]:
        """Return the columns that fit, after the shift; the last one may be cut."""
        self.shift = max(0, min(self.shift, len(self.columns) - 2))
        shown, left = [self.columns[0]], width - 2 - self.columns[0].width
        for column in self.columns[1 + self.shift :]:
            if left < 1 + column.width:
                break
            shown.append(column)
            left -= 1 + column.width
        return shown

    def column_at(self, x: int, width: int) -> Column[RowT] | None:
        """Return the column under a cell of the header."""
        end = 2
        for column in self.shown_columns(width):
            end += column.width + 1
            if x < end:
                return column
        return None

    def draw(
        self, width: int, height: int, glyphs: Glyphs, *, with_cursor: bool = True
    ) -> list[Line]:
        """Return the header and the rows around the cursor, `height` lines at the most."""
        columns = self.shown_columns(width)
        self._scroll(height - 1)
        shown = self.rows[self.top : self.top + max(0, height - 1)]
        lines = [self._header(columns, width, glyphs)]
        here = self.cursor_index - self.top if with_cursor else -1
        for place, row in enumerate(shown):
            is_here = place == here
            lines.append(self._row(columns, row, width, glyphs, is_here=is_here))
        if not shown:
            text = "nothing matches the filter" if self.total else "nothing yet"
            lines.append((("  " + text, Tone.FAINT),))
        return lines[:height]

    def records(self) -> list[dict[str, str]]:
        """Return all rows that pass the filter as text by column, in order."""
        return [
            {column.key: column.cell(row)[0].strip() for column in self.columns}
            for row in self.rows
        ]

    def _scroll(self, height: int) -> None:
        here = self.cursor_index
        self.top = max(0, min(self.top, here, len(self.rows) - height))
        if here >= self.top + height:
            self.top = here - height + 1

    def _header(self, columns: list[Column[RowT]], width: int, glyphs: Glyphs) -> Line:
        """Return the titles; the arrow of the order takes a gap, so that no column grows for it."""
        arrow = glyphs.down if self.descending else glyphs.up
        text = " "
        for column in columns:
            is_sorted = column.key == self.sort_key
            title = column.title
            if is_sorted:
                title = arrow + title if column.right else title + arrow
            room = column.width + (1 if column.right else 0)
            gap = "" if column.right else " "
            text += gap + fit(title, room, right=column.right, ellipsis=arrow)
        hidden = len(self.columns) - len(columns) - self.shift
        room = width - len(text)
        more = f"+{hidden}".rjust(room) if hidden > 0 and room > 3 else ""
        return ((text + more.ljust(max(0, room)), Tone.HEAD),)

    def _row(
        self, columns: list[Column[RowT]], row: RowT, width: int, glyphs: Glyphs, *, is_here: bool
    ) -> Line:
        """Return a row; neighbours of one tone are one piece, which is quicker to show."""
        pieces: list[Span] = []
        text, tone = ("> ", Tone.CURSOR) if is_here else ("  ", PLAIN)
        used = 2
        for column in columns:
            cell, meaning = column.cell(row)
            room = column.width
            if len(cell) > room or not cell.isascii():
                cell = fit(cell, room, right=column.right, ellipsis=glyphs.ellipsis)
            else:
                cell = cell.rjust(room) if column.right else cell.ljust(room)
            used += 1 + room
            if not is_here and meaning is not tone:
                pieces.append((text, tone))
                text, tone = "", meaning
            text += f"{cell} "
        text = text + " " * (width - used) if used <= width else text[:-1]
        pieces.append((text, tone))
        return tuple(pieces)

    def _has(self, row: RowT, words: list[str]) -> bool:
        text = " ".join(column.cell(row)[0] for column in self.columns).lower()
        return all(word in text for word in words)
