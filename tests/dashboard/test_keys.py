"""Every key does what the help says, in a small and in a large terminal."""

import csv
import json
from contextlib import closing
from pathlib import Path

import pytest

from dashboard.app import THEMES
from dashboard.keymap import SCREENS
from dashboard.recording import Recording, RecordingWriter
from dashboard.screens.base import TableScreen
from dashboard.source.replay import ReplaySource
from dashboard.tables.tenants import TenantRow
from tests.support.control_plane.dashboard_stage import Play, Stage, table_of

pytestmark = pytest.mark.slow


def first_words(stage: Stage) -> list[str]:
    """Return the first word of each row."""
    return [row[2:].split()[0] for row in table_of(stage) if row.strip()]


def test_numbers_and_tab_go_to_screens(play: Play) -> None:
    """The active screen is in brackets."""

    async def acts(stage: Stage) -> None:
        for number, name in enumerate(SCREENS, 1):
            await stage.press(str(number))
            assert f"[{number} {name}]" in stage.lines[1]
        await stage.press("tab")
        assert "[1 overview]" in stage.lines[1]
        await stage.press("shift+tab")
        assert "[6 events]" in stage.lines[1]

    play(acts)


def test_promises_are_held_against_what_came(play: Play) -> None:
    """By class, with what keeping them costs, and by tenant."""

    async def acts(stage: Stage) -> None:
        await stage.press("5")
        assert "IN TIME" in stage.text
        assert "WHAT IT COSTS" in stage.text
        assert "BROKEN" in stage.text

    play(acts)


def test_s_sorts_by_the_next_column_and_r_turns_around(play: Play) -> None:
    """Numbers begin with the largest, names with the first."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "S", "S", "S")
        names = first_words(stage)
        assert names == sorted(names)
        await stage.press("r")
        assert first_words(stage) == sorted(names, reverse=True)
        await stage.press("s", "s", "s", "s", "s", "s")
        assert "▼WAIT" in stage.text
        waits = [row.tenant.waiting for row in _rows(stage)]
        assert waits == sorted(waits, reverse=True)

    play(acts)


def _rows(stage: Stage) -> list[TenantRow]:
    page = stage.app.pages[stage.app.page_name]
    assert isinstance(page, TableScreen)
    return list(page.table_view.table.rows)


def test_slash_filters_while_one_types_and_escape_ends_it(play: Play) -> None:
    """All words must be somewhere in the row; the footer says how many rows are left."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "slash", *"GLO")
        assert first_words(stage) == ["globex"]
        await stage.press("enter")
        assert "1 of 12 with 'GLO'" in stage.lines[-1]
        await stage.press("escape")
        assert len(first_words(stage)) == 12
        await stage.press("slash", *"xyzzy")
        assert "nothing matches" in stage.text

    play(acts)


def test_keys_typed_into_the_filter_are_text(play: Play) -> None:
    """A q or a 3 in a name neither quits nor leaves."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "slash", "q", "3", "space", "s")
        assert "[2 tenants]" in stage.lines[1]
        assert not stage.app.is_frozen
        assert "nothing matches" in stage.text

    play(acts)


def test_space_freezes_the_body_but_not_the_header(play: Play) -> None:
    """The mark and the clock go on, the numbers stay."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "space")
        before = stage.lines
        await stage.pass_time(5.0)
        after = stage.lines
        assert "FROZEN" in after[0]
        assert before[0] != after[0]
        assert before[2:] == after[2:]
        await stage.press("space")
        await stage.pass_time(1.0)
        assert "FROZEN" not in stage.lines[0]
        assert stage.lines[2:] != before[2:]

    play(acts)


def test_the_cursor_stays_with_its_row(play: Play) -> None:
    """Rows move around it; Home goes back to whichever is the first."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "down", "j", "j", "k")
        chosen = next(row for row in table_of(stage) if row.startswith(">")).split()[1]
        await stage.pass_time(15.0)
        assert next(row for row in table_of(stage) if row.startswith(">")).split()[1] == chosen
        await stage.press("end")
        assert table_of(stage)[11].startswith(">")
        await stage.press("home")
        assert table_of(stage)[0].startswith(">")
        await stage.press("3")
        await stage.until_shown("demo-")
        await stage.press("pagedown")
        assert not any(row.startswith(">") for row in table_of(stage)[:8])
        await stage.press("pageup")
        assert table_of(stage)[0].startswith(">")

    play(acts)


def test_right_scrolls_columns_and_the_name_stays(play: Play) -> None:
    """What does not fit can be reached."""

    async def acts(stage: Stage) -> None:
        await stage.press("2")
        assert "AGAIN" not in stage.text
        await stage.press(*["right"] * 15)
        assert "AGAIN" in stage.text
        assert "TENANT" in stage.text
        await stage.press(*["left"] * 15)
        assert "AGAIN" not in stage.text

    play(acts)


def test_enter_goes_from_a_tenant_to_its_requests_to_one_of_them(play: Play) -> None:
    """Escape gives the others back."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "slash", *"globex", "enter", "enter")
        await stage.until_shown("requests of globex")
        await stage.pass_time(1.0)
        await stage.until(lambda: "demo-" in stage.text)
        assert {row.split()[2] for row in table_of(stage) if row.startswith(">")} == {"globex"}
        await stage.press("enter")
        await stage.until_shown("life")
        await stage.press("escape", "escape")
        await stage.pass_time(1.0)
        await stage.until_shown("requests of all tenants")

    play(acts)


def test_e_writes_the_table_and_shift_e_everything(play: Play, tmp_path: Path) -> None:
    """CSV has the rows in their order and under the filter; JSON has the fields by name."""

    def files(pattern: str) -> list[Path]:
        return sorted(tmp_path.glob(pattern))

    async def acts(stage: Stage) -> None:
        await stage.press("2", "slash", *"globex", "enter", "e", "E")
        (table,) = files("headrace-tenants-*.csv")
        with table.open() as file:
            rows = list(csv.DictReader(file))
        assert [row["tenant"] for row in rows] == ["globex"]
        assert rows[0]["quota"]
        (state,) = files("headrace-state-*.json")
        found = json.loads(state.read_text())
        assert found["tenants"][0]["name"] == "acme"
        assert found["lately"]["generated"] > 0
        await stage.press("e")
        assert len(files("headrace-tenants-*.csv")) == 2

    play(acts, folder=tmp_path)


def test_y_copies_the_row(play: Play) -> None:
    """The terminal's clipboard gets it, by columns."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "slash", *"globex", "enter", "y")
        assert stage.app.clipboard.split("\t")[0] == "globex"
        await stage.press("1", "y")
        assert "tok/s" in stage.app.clipboard

    play(acts)


def test_t_changes_the_colours(play: Play) -> None:
    """Through all themes and back to the first; the text stays the same."""

    async def acts(stage: Stage) -> None:
        page, seen = stage.app.pages["overview"], [stage.app.theme]
        before = page.text()
        for _ in THEMES:
            await stage.press("t")
            seen.append(stage.app.theme)
        assert set(seen) == set(THEMES)
        assert seen[0] == seen[-1]
        assert page.text() == before

    play(acts)


def test_q_quits(play: Play) -> None:
    """From any screen."""

    async def acts(stage: Stage) -> None:
        await stage.press("4", "q")
        assert stage.app._exit

    play(acts)


def test_the_mouse_sorts_moves_and_changes_screens(play: Play) -> None:
    """A click on a title sorts by it, one on a row goes there, one on a screen's name shows it."""

    async def acts(stage: Stage) -> None:
        await stage.pilot.click(offset=(16, 1))
        await stage.pilot.pause()
        assert "[2 tenants]" in stage.lines[1]
        await stage.pilot.click(offset=(4, 2))
        names = first_words(stage)
        assert names == sorted(names)
        await stage.pilot.click(offset=(4, 6))
        assert table_of(stage)[3].startswith(">")
        await stage.pilot.click(offset=(4, 6), times=2)
        await stage.until_shown("[3 requests]")

    play(acts)


def test_a_recording_can_be_stopped_and_scrubbed(play: Play, tmp_path: Path) -> None:
    """What was recorded looks the same, and one may move about in it."""
    path = tmp_path / "seen.jsonl"

    async def record(stage: Stage) -> None:
        assert "REC" in stage.lines[0]
        await stage.pass_time(20.0)

    with RecordingWriter(path) as recorder:
        play(record, recorder=recorder)

    async def replay(stage: Stage) -> None:
        assert "REPLAY" in stage.lines[0]
        await stage.press("space")
        assert "PAUSED" in stage.lines[0]
        here = stage.lines[2:]
        await stage.pass_time(5.0)
        assert stage.lines[2:] == here
        source = stage.app.source
        assert isinstance(source, ReplaySource)
        place_s = source.position_s
        await stage.press("right_square_bracket", "right_square_bracket")
        assert source.position_s == pytest.approx(place_s + 10)
        assert stage.lines[2:] != here
        await stage.press("left_square_bracket", "left_square_bracket")
        assert source.position_s == pytest.approx(place_s)
        await stage.press("left_curly_bracket")
        assert source.position_s == 0
        await stage.press("right_curly_bracket")
        assert source.position_s == source.length_s
        await stage.press("colon")
        await stage.until_shown("a recording takes no commands")

    with closing(Recording(path)) as recording:
        play(replay, lambda clock: ReplaySource(recording, clock.monotonic_s))
