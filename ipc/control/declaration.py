"""What a control command is: its name, arguments, permission, where it runs and what it answers.

Owns: the shape of a declaration and the check of arguments against it. Never knows: how a command
is carried out, how it travels, how it looks on a terminal. The CLI's flags, the admin HTTP routes,
the audit log and the documentation are all derived from these objects, so a new command is one new
file in this folder with a `COMMAND` in it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

ArgumentValue = str | int | float

LAST_REPLICA = 7  # as in `ipc.pages`, which brings numpy: too slow for `headrace ctl --help`


class ReplyCode(StrEnum):
    """Why a command was not done; the `code` of a `ControlReply` whose `error` is set."""

    UNKNOWN_COMMAND = "unknown_command"
    BAD_ARGUMENT = "bad_argument"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    NOT_CONFIRMED = (
        "not_confirmed"  # handed over, but no answer within the bound: it may still be applied
    )
    NOT_DELIVERED = (
        "not_delivered"  # the process that executes it could not be reached: nothing was done
    )
    BUSY = "busy"  # too many commands at once: nothing was done
    STOPPING = "stopping"  # the engine is about to end: nothing was done
    FAILED = "failed"


ASK_AGAIN = (ReplyCode.NOT_CONFIRMED, ReplyCode.NOT_DELIVERED, ReplyCode.BUSY)
"""No answer in time: every command twice is the same as once, so whoever asks may ask again."""


class ArgumentKind(StrEnum):
    """The type of an argument's value."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"


class Destination(StrEnum):
    """Which process executes a command."""

    BOARD = "board"  # the admin worker itself, from the board pages
    WORKER = "worker"  # the admin worker itself, from files too
    SCHEDULER = "scheduler"
    SUPERVISOR = "supervisor"


class Effect(StrEnum):
    """Whether a command only looks, or changes something."""

    READ = "read"
    WRITE = "write"


class Permission(StrEnum):
    """Which key a command needs."""

    ADMIN = "admin"


class ArgumentError(ValueError):
    """Arguments that do not fit the declaration; the message says what would."""

    code = ReplyCode.BAD_ARGUMENT


class NotFoundError(ArgumentError):
    """Arguments that fit, and name something that is not there."""

    code = ReplyCode.NOT_FOUND


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One named argument; `positional` only says how the command line spells it."""

    name: str
    kind: ArgumentKind
    help: str
    required: bool = False
    positional: bool = False
    minimum: float = -math.inf
    maximum: float = math.inf
    max_length: int = 256
    choices: tuple[str, ...] = ()

    @property
    def bounds(self) -> str:
        """What is accepted, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind is ArgumentKind.TEXT:
            return f"text of 1 to {self.max_length} printable characters"
        kind = "an integer" if self.kind is ArgumentKind.INTEGER else "a number"
        return f"{kind} from {self.minimum:.16g} to {self.maximum:.16g}"

    def accepts(self, value: object) -> bool:
        """Tell whether `value` has the declared type and lies within the bounds."""
        match self.kind:
            case ArgumentKind.TEXT:
                return self._accepts_text(value)
            case ArgumentKind.INTEGER:
                right_type = isinstance(value, int) and not isinstance(value, bool)
            case ArgumentKind.NUMBER:
                right_type = isinstance(value, int | float) and not isinstance(value, bool)
        return right_type and self.minimum <= value <= self.maximum  # type: ignore[operator]

    def parse(self, text: str) -> ArgumentValue:
        """Return what was typed on a command line as a value; raises ArgumentError."""
        try:
            match self.kind:
                case ArgumentKind.TEXT:
                    value: ArgumentValue = text
                case ArgumentKind.INTEGER:
                    value = int(text)
                case ArgumentKind.NUMBER:
                    value = float(text)
        except ValueError:
            raise ArgumentError(f"{self.name} = {text!r} is not {self.bounds}") from None
        if not self.accepts(value):
            raise ArgumentError(f"{self.name} = {text!r} is not {self.bounds}")
        return value

    def _accepts_text(self, value: object) -> bool:
        if not isinstance(value, str) or not 1 <= len(value) <= self.max_length:
            return False
        if self.choices:
            return value in self.choices
        return value.isprintable()


@dataclass(frozen=True, slots=True)
class ResultField:
    """One key of a command's result; `type` is a word for people (text, list of records, …)."""

    name: str
    type: str
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One control command.

    `confirm` is the question a person is asked first ("" = none needed); the caller's `--yes` skips
    it. A command of a `group` is typed as two words: `cache stats` is called `cache-stats`. With
    `joins_trace` the command line asks for all rows and writes them into a FILE, with `saves_file`
    it writes the answer into one; with `follows` it can ask again and again: `next` of an answer is
    the `since` of the next question. Of each tuple in `exactly_one_of` one argument must be given.
    An engine that is stopping takes no command that changes something, except `while_stopping`.
    Every command is idempotent: asking twice is the same as once.
    """

    name: str
    summary: str
    destination: Destination
    effect: Effect
    result: tuple[ResultField, ...]
    arguments: tuple[Argument, ...] = ()
    exactly_one_of: tuple[tuple[str, ...], ...] = ()
    permission: Permission = Permission.ADMIN
    confirm: str = ""
    group: str = ""
    joins_trace: bool = False
    saves_file: bool = False
    follows: bool = False
    while_stopping: bool = False

    @property
    def spelling(self) -> str:
        """The name as it is typed on a command line."""
        return f"{self.group} {self.name.removeprefix(f'{self.group}-')}".strip()

    def check(self, args: Mapping[str, object]) -> dict[str, object]:
        """Return a copy of `args` that fits; raises ArgumentError naming the first fault."""
        known = {argument.name: argument for argument in self.arguments}
        for name, value in args.items():
            if name not in known:
                raise ArgumentError(self._unknown(str(name)[:64], list(known)))
            if not known[name].accepts(value):
                raise ArgumentError(f"{self.name}: {name} must be {known[name].bounds}")
        for argument in self.arguments:
            if argument.required and argument.name not in args:
                raise ArgumentError(f"{self.name}: {argument.name} is required")
        for group in self.exactly_one_of:
            if sum(name in args for name in group) != 1:
                raise ArgumentError(f"{self.name}: give exactly one of {', '.join(group)}")
        return dict(args)

    def _unknown(self, name: str, known: list[str]) -> str:
        if not known:
            return f"{self.name}: {name!r} is unknown: it takes no arguments"
        return f"{self.name}: {name!r} is unknown: it takes {', '.join(known)}"
