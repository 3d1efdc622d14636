"""Results for people: lines, sections and tables from the declaration alone."""

import io

from core.terminal import Terminal
from frontends.cli.render import cell, render_result
from ipc.control.declaration import Command, Destination, Effect, ResultField

COMMAND = Command(
    name="look",
    summary="A command for these tests",
    destination=Destination.BOARD,
    effect=Effect.READ,
    result=(
        ResultField("name", "text", "a name"),
        ResultField("rows", "list of records", "some rows"),
        ResultField("load", "record", "some numbers"),
        ResultField("late", "list of texts", "some names"),
        ResultField("after", "any", "a value of any type"),
    ),
)


def rendered(result: dict[str, object]) -> str:
    """Return a result as it looks in a pipe."""
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO(), {})
    return render_result(COMMAND, result, terminal)


def test_fields_come_first_and_in_the_declared_order() -> None:
    """What the declaration does not know comes last, and nothing is left out."""
    text = rendered({"extra": 1, "load": {"running": 2}, "name": "x", "rows": []})
    assert text == "name   x\nextra  1\n\nrows\n  -\n\nload\n  running  2\n"


def test_records_are_a_table_with_numbers_to_the_right() -> None:
    """Columns are aligned, and a missing value is a dash."""
    text = rendered({"rows": [{"id": "a", "n": 5}, {"id": "bcd", "n": 1234}, {"id": "e"}]})
    assert text.splitlines() == ["rows", "  id      n", "  a       5", "  bcd  1234", "  e       -"]


def test_texts_are_told_in_one_line() -> None:
    """As many as there are, and none is a dash like every other value that is missing."""
    assert rendered({"late": ["http.0", "scheduler"]}) == "late  http.0, scheduler\n"
    assert rendered({"late": []}) == "late  -\n"


def test_what_may_be_anything_is_told_in_one_line() -> None:
    """`ctl set` of a list says what the list was and is, like that of a number."""
    assert rendered({"after": ["standard", "batch"]}) == "after  standard, batch\n"
    assert rendered({"after": []}) == "after  -\n"
    assert rendered({"after": 3}) == "after  3\n"


def test_records_with_records_in_them_are_a_block_each() -> None:
    """What has a list of its own is not squeezed into a line: fields below each other, then it."""
    events = [{"age_s": 2.5, "what": "arrived"}, {"age_s": 1, "what": "started"}]
    text = rendered({"rows": [{"id": "a", "events": events, "n": 1}, {"id": "b", "events": []}]})
    assert text.splitlines() == [
        "rows",
        "  id  a",
        "  n   1",
        "  events",
        "    age_s  what",
        "      2.5  arrived",
        "        1  started",
        "",
        "  id      b",
        "  events  -",
    ]


def test_values_are_for_people() -> None:
    """Truth is yes or no, seconds have no tail of zeros, nested values stay on their line."""
    assert [cell(v) for v in (True, None, 1.5, 2.0, {"a": 1, "b": []}, ["x", 2])] == [
        "yes",
        "-",
        "1.5",
        "2",
        "a 1, b -",
        "x, 2",
    ]


def test_no_value_can_move_the_cursor() -> None:
    """Control characters in names that clients choose are shown as question marks."""
    assert cell("a\x1b[2Jb\nc") == "a?[2Jb?c"
