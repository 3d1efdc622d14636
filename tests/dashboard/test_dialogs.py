"""Keys of dialogs do what the help says: commands, their questions, the help itself."""

import asyncio

import pytest

from dashboard.commands import matching
from dashboard.format import ASCII
from tests.support.control_plane.dashboard_stage import Play, Stage, on_stage, table_of

pytestmark = pytest.mark.slow


def test_x_cancels_a_request_after_a_question(play: Play) -> None:
    """n is no; y is yes, and the events say that it was done from here."""

    async def acts(stage: Stage) -> None:
        await stage.press("3")
        await stage.pass_time(1.0)
        await stage.until_shown("demo-")
        await stage.press("x")
        await stage.until_shown("Cancel request")
        await stage.press("n")
        assert "Cancel request" not in stage.text
        await stage.press("x")
        await stage.until_shown("Cancel request")
        await stage.press("y")
        await stage.until_shown("cancelled  1")
        await stage.press("6", "slash", *"command")
        await stage.until_shown("cancel")

    play(acts)


def test_colon_gives_a_command_that_was_typed_whole(play: Play) -> None:
    """It is asked whether it is meant; then the tenant is paused."""

    async def acts(stage: Stage) -> None:
        await stage.press("2", "colon", *"pause acme", "enter")
        await stage.until_shown("Pause tenant acme?")
        await stage.press("y")
        await stage.until(lambda: "Pause tenant acme?" not in stage.text)
        await stage.pass_time(1.0)
        assert any("acme" in row and "paused" in row for row in table_of(stage))

    play(acts)


def test_a_message_is_shown_as_it_is(play: Play) -> None:
    """The tenant's name in a key path is not taken for markup."""

    async def acts(stage: Stage) -> None:
        stage.app.notify("tenants[acme].weight = inf", severity="error")
        await stage.until_shown("tenants[acme].weight = inf")

    play(acts)


def test_the_palette_asks_for_what_is_missing(play: Play) -> None:
    """A command without its arguments opens a form; a wrong value is named in it."""

    async def acts(stage: Stage) -> None:
        await stage.press("colon", *"set", "enter")
        await stage.until_shown("Change a setting")
        await stage.press(*"tenants.acme.weight", "enter")
        await stage.until_shown("is required")
        await stage.press(*"3.5", "enter")
        await stage.until_shown("Set path tenants.acme.weight, value 3.5?")
        await stage.press("y")
        await stage.press("2")
        await stage.pass_time(1.0)
        assert any("acme" in row and "3.5" in row for row in table_of(stage))

    play(acts)


def test_the_palette_completes_and_can_be_given_up(play: Play) -> None:
    """Tab writes the chosen command, the arrows choose, Escape closes."""

    async def acts(stage: Stage) -> None:
        await stage.press("colon", *"eve", "tab")
        assert "events" in stage.text
        await stage.press("enter")
        await stage.until_shown("total")
        await stage.press("escape", "colon", "down", "up", "down", "tab")
        chosen = matching("")[1].name
        assert f"{chosen} " in stage.text
        await stage.press("escape")
        assert "[1 overview]" in stage.text

    play(acts)


def test_a_typing_error_is_told(play: Play) -> None:
    """Neither a wrong command nor a wrong argument is given."""

    async def acts(stage: Stage) -> None:
        await stage.press("colon", *"explode now", "enter")
        await stage.until_shown("there is no command 'explode'")
        await stage.press("colon", *"requests --limit many", "enter")
        await stage.until_shown("is not an integer")

    play(acts)


def test_readonly_gives_no_command_that_changes_anything(play: Play) -> None:
    """They are not listed, and refused when typed; looking is allowed."""

    async def acts(stage: Stage) -> None:
        assert "READONLY" in stage.lines[0]
        await stage.press("colon")
        assert "shutdown" not in stage.text
        await stage.press(*"pause acme", "enter")
        await stage.until_shown("read-only")
        await stage.press("colon", *"events", "enter")
        await stage.until_shown("total")
        await stage.press("escape", "1")
        await stage.pass_time(1.0)
        assert "paused: acme" not in stage.text

    play(acts, readonly=True)


def test_help_scrolls_and_closes(play: Play) -> None:
    """It tells the columns of the screen it was asked on."""

    async def acts(stage: Stage) -> None:
        await stage.press("6", "question_mark")
        assert "Freeze" in stage.text
        await stage.press("pagedown", "pagedown", "pagedown")
        assert "compared" in stage.text
        await stage.press("pageup", "pageup", "pageup")
        assert "Freeze" in stage.text
        await stage.press("escape")
        assert "[6 events]" in stage.text

    play(acts)


def test_ctrl_c_quits_from_a_dialog(play: Play) -> None:
    """Whatever is open."""

    async def acts(stage: Stage) -> None:
        await stage.press("colon", "p", "ctrl+c")
        assert stage.app._exit

    play(acts)


def test_dialogs_are_ascii_too() -> None:
    """Their frames, what is cut in them, and what pops up."""

    async def perform() -> None:
        async with on_stage(glyphs=ASCII) as stage:
            for keys in (("3", "enter"), ("question_mark",), ("colon",)):
                await stage.press(*keys)
                await stage.pass_time(0.5)
                assert stage.text.isascii(), stage.text
                await stage.press("escape")
            await stage.press("2", "y")
            await stage.until_shown("copied")
            assert stage.text.isascii(), stage.text

    asyncio.run(perform())
