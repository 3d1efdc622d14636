"""Every control command keeps the contract that the CLI, the admin port, the audit and the docs
build on."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ipc.control
from core.config.engine import MAX_REPLICAS
from core.scheduler.decisions import DecisionKind
from ipc.control.declaration import (
    LAST_REPLICA,
    Argument,
    ArgumentError,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)
from ipc.control.events import KINDS
from ipc.control.registry import COMMANDS
from ipc.pages import MAX_PAGE_REPLICAS

FOLDER = Path(ipc.control.__file__).parent
DOCS = (FOLDER.parents[1] / "docs" / "cli.md").read_text(encoding="utf-8")

ALL = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)

plain_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300)
json_values = plain_values | st.lists(plain_values, max_size=2)


def test_the_last_replica_is_that_of_the_pages_and_of_the_configuration() -> None:
    """Three files that may not import each other agree on how many replicas there can be."""
    assert LAST_REPLICA + 1 == MAX_PAGE_REPLICAS == MAX_REPLICAS


def test_the_kinds_of_events_are_those_of_the_scheduler() -> None:
    """Two files that may not import each other name the same."""
    assert tuple(kind.label for kind in DecisionKind) == KINDS


@ALL
def test_a_command_lives_in_the_file_of_its_name(command: Command) -> None:
    """Whoever looks for a command finds it by its name."""
    assert (FOLDER / f"{command.name.replace('-', '_')}.py").is_file()


@ALL
def test_a_command_explains_itself(command: Command) -> None:
    """Summary, every argument and every result field have words, in the form that help needs."""
    texts = [
        command.summary,
        *(a.help for a in command.arguments),
        *(f.help for f in command.result),
    ]
    assert all(text and text == text.strip() and not text.endswith(".") for text in texts)
    assert command.result


@ALL
def test_a_command_that_changes_something_is_not_answered_from_the_board(command: Command) -> None:
    """Only looking can be done from memory that others write."""
    assert command.effect is Effect.READ or command.destination is not Destination.BOARD


@ALL
def test_names_in_a_declaration_agree(command: Command) -> None:
    """Groups name arguments that exist, and no argument takes a flag that every command has."""
    names = [argument.name for argument in command.arguments]
    assert len(set(names)) == len(names)
    assert {name for group in command.exactly_one_of for name in group} <= set(names)
    assert not {"name", "json", "yes", "help", "declared"} & set(names)


@ALL
def test_the_question_can_be_asked(command: Command) -> None:
    """A confirmation uses only the two words that the command line fills in."""
    assert command.confirm.format(target="x", name="y").count("{") == 0
    assert command.confirm == "" or command.confirm.endswith("?")


@ALL
def test_the_docs_have_the_command_and_its_arguments(command: Command) -> None:
    """docs/cli.md knows every command and every argument."""
    rows = [line for line in DOCS.splitlines() if line.startswith(f"| `ctl {command.spelling}`")]
    assert len(rows) == 1
    for argument in command.arguments:
        spelled = argument.name.upper() if argument.positional else f"--{argument.name}"
        assert spelled in rows[0]


@ALL
@given(args=st.dictionaries(st.sampled_from(["request", "tenant", "replica", "x"]), json_values))
def test_any_arguments_are_accepted_whole_or_refused_with_the_command_named(
    command: Command, args: dict[str, object]
) -> None:
    """No value gets through that the declaration does not allow, and no other error comes out."""
    known = {argument.name: argument for argument in command.arguments}
    is_allowed = all(name in known and known[name].accepts(value) for name, value in args.items())
    try:
        checked = command.check(args)
    except ArgumentError as error:
        refusal = str(error)
    else:
        assert is_allowed
        assert checked == args
        return
    assert refusal.startswith(f"{command.name}: ")


@given(
    text=st.text(max_size=20) | st.integers().map(str) | st.floats().map(str),
    kind=st.sampled_from(ArgumentKind),
)
def test_typed_text_becomes_a_value_within_the_bounds_or_an_error(
    text: str, kind: ArgumentKind
) -> None:
    """What a person types is bounded like what a program sends."""
    argument = Argument(name="a", kind=kind, help="h", minimum=-5, maximum=1000, max_length=10)
    try:
        value = argument.parse(text)
    except ArgumentError as error:
        refusal = str(error)
    else:
        assert argument.accepts(value)
        return
    assert argument.bounds in refusal


LIMITED = Command(
    name="limited",
    summary="A command for these tests",
    destination=Destination.SCHEDULER,
    effect=Effect.WRITE,
    result=(ResultField("x", "text", "nothing"),),
    arguments=(
        Argument(name="a", kind=ArgumentKind.INTEGER, help="h", minimum=0, maximum=9),
        Argument(name="b", kind=ArgumentKind.TEXT, help="h", choices=("on", "off")),
        Argument(name="c", kind=ArgumentKind.NUMBER, help="h", required=True, maximum=1.0),
    ),
    exactly_one_of=(("a", "b"),),
)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"a": 1}, "limited: c is required"),
        ({"a": 1, "b": "on", "c": 0.5}, "limited: give exactly one of a, b"),
        ({"c": 0.5}, "limited: give exactly one of a, b"),
        ({"a": 10, "c": 0}, "limited: a must be an integer from 0 to 9"),
        ({"a": True, "c": 0}, "limited: a must be an integer from 0 to 9"),
        ({"a": 1.0, "c": 0}, "limited: a must be an integer from 0 to 9"),
        ({"b": "maybe", "c": 0}, "limited: b must be one of on, off"),
        ({"a": 1, "c": math.nan}, "limited: c must be a number from -inf to 1"),
        ({"d": 1}, "limited: 'd' is unknown: it takes a, b, c"),
    ],
)
def test_a_refusal_says_what_would_be_accepted(args: dict[str, object], message: str) -> None:
    """The first fault is named with the argument and its bounds."""
    with pytest.raises(ArgumentError) as refused:
        LIMITED.check(args)
    assert str(refused.value) == message


def test_control_characters_are_no_text() -> None:
    """An escape sequence cannot travel into a log or a terminal as an argument."""
    argument = Argument(name="a", kind=ArgumentKind.TEXT, help="h")
    assert not argument.accepts("a\x1b[2J")
    assert argument.accepts("chatcmpl-1 ü")
