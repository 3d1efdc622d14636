"""Commands as they are typed: from the declarations alone."""

import pytest

from dashboard.commands import TypingError, matching, parse, question, usage
from dashboard.lines import plain_text
from dashboard.pictures.answer import answer
from ipc.control.declaration import Effect
from ipc.control.registry import COMMANDS


def test_every_command_can_be_found() -> None:
    """Nothing typed yet lists all, its name lists it first."""
    assert matching("") == list(COMMANDS.values())
    for name in COMMANDS:
        assert matching(name)[0].name.startswith(name)
    assert "pause" in [command.name for command in matching("start nothing")] or matching("start")


def test_what_begins_like_it_comes_first() -> None:
    """Then what has it in its name or its summary."""
    found = [command.name for command in matching("re")]
    begins = [name for name in found if name.startswith("re")]
    assert found[: len(begins)] == begins
    assert len(found) > len(begins)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("status", {}),
        ("pause acme", {"tenant": "acme"}),
        ("pause --class batch", {"class": "batch"}),
        ("set tenants.acme.weight 2.5", {"path": "tenants.acme.weight", "value": "2.5"}),
        ('set classes.batch.weight " 2"', {"path": "classes.batch.weight", "value": " 2"}),
        ("requests --limit 5", {"limit": 5}),
        ("shutdown --drain 1.5", {"drain": 1.5}),
        ("drain 0", {"replica": 0}),
    ],
)  # fmt: skip
def test_a_line_becomes_a_command(text: str, args: dict[str, object]) -> None:
    """Arguments by place or by name, with their types."""
    typed = parse(text)
    assert typed.command is COMMANDS[text.split()[0]]
    assert typed.args == args
    assert typed.fault == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "type a command"),
        ("explode", "no command 'explode'"),
        ("status now", "too much"),
        ("requests --limit many", "not an integer"),
        ("requests --limit", "--limit"),
        ("requests --colour red", "--colour"),
        ('pause "acme', "quot"),
    ],
)
def test_a_typing_error_says_what_would_do(text: str, words: str) -> None:
    """In one line."""
    with pytest.raises(TypingError, match=words):
        parse(text)


@pytest.mark.parametrize("text", ["pause", "set", "pause acme --class batch", "show"])
def test_what_is_missing_is_told(text: str) -> None:
    """So that a form can ask for it."""
    assert parse(text).fault


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_nothing_is_changed_without_a_question(command: object) -> None:
    """Whatever the declaration says of confirmation; those that only look are not asked about."""
    declared = next(each for each in COMMANDS.values() if each is command)
    asked = question(declared, {"tenant": "acme"}, "main")
    assert bool(asked) == (declared.effect is Effect.WRITE or bool(declared.confirm))
    assert usage(declared).startswith(declared.name)


def test_an_answer_has_fields_then_tables() -> None:
    """Whatever is in it, nothing moves the cursor."""
    text = plain_text(
        answer({"a": 1, "long": True, "x": 2.5, "none": None, "b": {"c": "d\x1b[2J"},
                "rows": [{"n": 1, "m": ["p", 2]}, {"n": 22}], "texts": ["u", "v"], "empty": []})
    )  # fmt: skip
    assert text.split("\n") == [
        "a     1", "long  yes", "x     2.5", "none  -", "b", "  c  d?[2J", "rows", "  n   m",
        "  1   p, 2", "  22  -", "texts", "  u, v", "empty", "  -",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["cache drop --tenant acme", "cache-drop --tenant acme"])
def test_a_grouped_command_has_two_spellings(text: str) -> None:
    """That of `headrace ctl`, and its name in the list."""
    typed = parse(text)
    assert (typed.command.name, typed.args) == ("cache-drop", {"tenant": "acme"})
