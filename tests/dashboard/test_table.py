"""Tables as lines: order, filter, cursor, and what fits."""

from dataclasses import dataclass

from dashboard.format import ASCII
from dashboard.lines import Tone, plain, width_of
from dashboard.table import Column, Table
from dashboard.tables import events, processes, requests, tenants


@dataclass(frozen=True)
class Animal:
    """A row."""

    name: str
    legs: int


ZOO = [Animal("ant", 6), Animal("bee", 6), Animal("cat", 4), Animal("eel", 0), Animal("hen", 2)]
NAME: Column[Animal] = Column(
    "name", "NAME", 6, lambda a: (a.name, Tone.PLAIN), lambda a: a.name, "", right=False
)
LEGS: Column[Animal] = Column(
    "legs", "LEGS", 5, lambda a: (str(a.legs), Tone.PLAIN), lambda a: a.legs, ""
)
HALF: Column[Animal] = Column(
    "half", "HALF", 5, lambda a: (str(a.legs // 2), Tone.PLAIN), lambda a: a.legs, ""
)


def zoo(**state: object) -> Table[Animal]:
    """Return a table of the zoo."""
    table = Table((NAME, LEGS, HALF), lambda a: a.name, "legs")
    for name, value in state.items():
        setattr(table, name, value)
    table.show(ZOO)
    return table


def names(table: Table[Animal]) -> list[str]:
    """Return the names in the order of the rows."""
    return [animal.name for animal in table.rows]


def drawn(table: Table[Animal], width: int = 30, height: int = 10) -> list[str]:
    """Return the table as text."""
    return [plain(each) for each in table.draw(width, height, ASCII)]


def test_numbers_begin_with_the_largest_and_equals_are_by_name() -> None:
    """The order does not depend on that of the rows."""
    table = zoo()
    assert names(table) == ["ant", "bee", "cat", "hen", "eel"]
    table.show(ZOO[::-1])
    assert names(table) == ["ant", "bee", "cat", "hen", "eel"]


def test_sorting_by_the_same_column_turns_around() -> None:
    """And by another one begins with what one looks for."""
    table = zoo()
    table.sort_by("legs")
    assert names(table)[0] == "eel"
    table.sort_by("name")
    assert names(table)[0] == "ant"
    table.sort_by_next(1, 80)
    assert (table.sort_key, table.descending) == ("legs", True)


def test_the_filter_wants_all_words_anywhere() -> None:
    """In any column, in any case; the count before it is kept."""
    table = zoo(words="6 B")
    assert names(table) == ["bee"]
    assert table.total == 5
    assert "nothing matches" in drawn(zoo(words="xyzzy"))[1]


def test_the_cursor_stays_with_its_row_and_survives_its_end() -> None:
    """When the row is gone the cursor is where it was."""
    table = zoo()
    table.move_to(2)
    table.show([Animal("bat", 9), *ZOO])
    assert table.selected == Animal("cat", 4)
    table.show([animal for animal in ZOO if animal.name != "cat"])
    assert table.selected == Animal("eel", 0)
    table.show([])
    assert table.selected is None


def test_at_the_top_the_cursor_stays_at_the_top() -> None:
    """Whoever has not moved sees the newest."""
    table = zoo()
    table.show([Animal("bat", 9), *ZOO])
    assert table.selected == Animal("bat", 9)


def test_the_cursor_is_always_on_the_screen() -> None:
    """Rows scroll as far as needed and no further."""
    table = zoo()
    table.move_to(2)
    assert [row[:5] for row in drawn(table, height=3)] == ["  NAM", "  bee", "> cat"]
    table.move_to(4)
    assert [row[:5] for row in drawn(table, height=3)] == ["  NAM", "  hen", "> eel"]
    table.move_to(0)
    assert [row[:5] for row in drawn(table, height=3)] == ["  NAM", "> ant", "  bee"]


def test_columns_that_do_not_fit_are_counted_and_can_be_shifted_in() -> None:
    """The first one stays."""
    table = zoo()
    assert drawn(table, width=19)[0] == "  NAME   vLEGS   +1"
    table.shift = 99
    assert "HALF" in drawn(table, width=19)[0]
    assert table.shift == 1


def test_every_line_is_as_wide_as_the_screen() -> None:
    """So that nothing of an old row shines through."""
    for width in (20, 31, 80):
        lines = zoo().draw(width, 10, ASCII)
        assert {width_of(each) for each in lines} == {width}


def test_the_column_one_sorts_by_is_on_the_screen() -> None:
    """However narrow the screen is, and also when going around."""
    table = zoo()
    for _ in range(7):
        table.sort_by_next(1, 17)
        assert table.column in table.shown_columns(17)


def test_a_click_on_a_title_finds_its_column() -> None:
    """Beyond the last one there is none."""
    table = zoo()
    found = [table.column_at(x, 30) for x in (3, 10, 16, 29)]
    assert [each and each.key for each in found] == ["name", "legs", "half", None]


def test_rows_are_exported_as_text_in_their_order() -> None:
    """Under the filter."""
    assert zoo(words="6").records() == [
        {"name": "ant", "legs": "6", "half": "3"},
        {"name": "bee", "legs": "6", "half": "3"},
    ]


def test_every_column_has_room_for_its_title_and_says_what_it_means() -> None:
    """And every table is sorted by one of its columns."""
    tables = (
        tenants.tenants_table(), tenants.brief_table(), tenants.promises_table(),
        requests.requests_table(), events.events_table(lambda: 0.0), processes.processes_table(),
    )  # fmt: skip
    for table in tables:
        assert table.column.key == table.sort_key
        assert len({column.key for column in table.columns}) == len(table.columns)
        for column in table.columns:
            assert len(column.title) <= column.width, column.key
            assert column.help, column.key
