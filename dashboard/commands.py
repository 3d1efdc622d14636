"""Control commands as they are typed into the palette. Pure.

Owns: the way from a line of text to a command with checked arguments, and what is asked before it
is given. Never knows: any particular command; all come from their declarations in `ipc.control`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from ipc.control.declaration import Argument, ArgumentError, ArgumentValue, Command, Effect
from ipc.control.registry import COMMANDS


class TypingError(Exception):
    """What was typed is no command; the message says what would be."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A command and the arguments given so far."""

    command: Command
    args: Mapping[str, ArgumentValue]

    @property
    def fault(self) -> str:
        """What is missing or wrong, "" if nothing."""
        try:
            self.command.check(self.args)
        except ArgumentError as error:
            return str(error)
        return ""


def matching(text: str) -> list[Command]:
    """Return the commands that what was typed may become; those that begin with it come first."""
    first = text.split(maxsplit=1)[0].lower() if text.strip() else ""
    begins = [command for name, command in COMMANDS.items() if name.startswith(first)]
    within = [
        command
        for command in COMMANDS.values()
        if command not in begins and (first in command.name or first in command.summary.lower())
    ]
    return begins + within


def parse(text: str) -> Typed:
    """Return the command of a line: NAME VALUE … --argument VALUE …; raises TypingError.

    A command of a group may be typed as `headrace ctl` spells it: `cache stats` is `cache-stats`.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise TypingError(str(error).lower()) from error
    if not words:
        raise TypingError("type a command")
    grouped = COMMANDS.get("-".join(words[:2]))
    if grouped is not None and grouped.group == words[0]:
        return Typed(grouped, _arguments(grouped, words[2:]))
    command = COMMANDS.get(words[0])
    if command is None:
        raise TypingError(f"there is no command {words[0]!r}")
    return Typed(command, _arguments(command, words[1:]))


def usage(command: Command) -> str:
    """Return how a command is typed."""
    return " ".join([command.name, *(_spelling(argument) for argument in command.arguments)])


def question(command: Command, args: Mapping[str, object], engine: str) -> str:
    """Return what is asked before a command is given; "" for one that only looks."""
    if command.effect is Effect.READ and not command.confirm:
        return ""
    target = ", ".join(f"{name} {value}" for name, value in args.items()) or f"engine {engine}"
    if command.confirm:
        return command.confirm.format(target=target, name=engine)
    return f"{command.summary}: {target}?"


def _spelling(argument: Argument) -> str:
    name = argument.name.upper()
    text = name if argument.positional else f"--{argument.name.replace('_', '-')} {name}"
    return text if argument.required else f"[{text}]"


def _arguments(command: Command, words: list[str]) -> dict[str, ArgumentValue]:
    named = {f"--{each.name.replace('_', '-')}": each for each in command.arguments}
    positional = [each for each in command.arguments if each.positional]
    args: dict[str, ArgumentValue] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in named and rest:
            argument, word = named[word], rest.pop(0)
        elif word.startswith("--"):
            raise TypingError(f"{word}: {usage(command)}")
        elif positional:
            argument = positional.pop(0)
        else:
            raise TypingError(f"{word!r} is too much: {usage(command)}")
        args[argument.name] = parse_value(argument, word)
    return args


def parse_value(argument: Argument, text: str) -> ArgumentValue:
    """Return what was typed for one argument; raises TypingError."""
    try:
        return argument.parse(text)
    except ArgumentError as error:
        raise TypingError(str(error)) from error
