"""`headrace ctl`: every declared control command as a sub-command.

Owns: how a declaration becomes flags, the question before a command that needs one, and exit codes.
Never knows: any particular command.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

from core.config.headrace import HeadraceConfig
from core.terminal import CommandError, ExitCode, Terminal
from core.user_directories import cache_directory
from frontends.cli.control_client import Engine, call, find_engine
from frontends.cli.following import Follower
from frontends.cli.recorded_trace import MACHINE_FILE, record_trace
from frontends.cli.render import render_result
from ipc.control.declaration import (
    ASK_AGAIN,
    Argument,
    ArgumentError,
    Command,
    Effect,
    ReplyCode,
)
from ipc.control.registry import COMMANDS
from ipc.messages import ControlReply

DESCRIPTION = """Look into and control a running engine of this user.

The engine is found by its name, and its admin key in its run directory or in HEADRACE_ADMIN_KEY."""

EXIT_CODES = {
    ReplyCode.BAD_ARGUMENT: ExitCode.USAGE,
    ReplyCode.UNKNOWN_COMMAND: ExitCode.USAGE,
}
LOOKS = 20  # at a busy process, until it is given up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare a sub-command for each control command."""
    commands = parser.add_subparsers(
        dest="declared", required=True, metavar="COMMAND", help="what to ask for"
    )
    groups = {
        group: commands.add_parser(group, help=f"{group} …").add_subparsers(
            dest="declared", required=True, metavar="ACTION", help="what to do"
        )
        for group in sorted({command.group for command in COMMANDS.values() if command.group})
    }
    for command in COMMANDS.values():
        sub = groups.get(command.group, commands).add_parser(
            command.spelling.rpartition(" ")[2],
            help=command.summary,
            description=command_help(command),
        )
        for argument in command.arguments:
            add_argument(sub, argument)
        add_output(sub, command)
        add_common(sub, command)


def add_output(parser: argparse.ArgumentParser, command: Command) -> None:
    """Declare where the answer goes, if a command leaves a choice."""
    if command.joins_trace or command.saves_file:
        parser.add_argument("file", type=Path, metavar="FILE", help="the file to write")
    if command.follows:
        parser.add_argument(
            "--follow", action="store_true", help="go on with what comes, until Ctrl-C"
        )


def add_common(parser: argparse.ArgumentParser, command: Command) -> None:
    """Declare what every command takes."""
    parser.set_defaults(declared=command.name)
    default = HeadraceConfig.__dataclass_fields__["name"].default
    parser.add_argument("--name", default=default, help="name of the engine (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="write the result as JSON")
    parser.add_argument("--yes", action="store_true", help="do not ask, where it would be asked")


def add_argument(parser: argparse.ArgumentParser, argument: Argument) -> None:
    """Declare one argument of a command, as its declaration spells it."""
    help_text = f"{argument.help} ({argument.bounds})".replace("%", "%%")
    if argument.positional:
        parser.add_argument(
            argument.name,
            metavar=argument.name.upper(),
            nargs=None if argument.required else "?",
            type=value_of(argument),
            help=help_text,
        )
    else:
        parser.add_argument(
            f"--{argument.name.replace('_', '-')}",
            dest=argument.name,
            metavar=argument.name.upper(),
            required=argument.required,
            type=value_of(argument),
            help=help_text,
        )


def value_of(argument: Argument) -> Callable[[str], object]:
    """Return the conversion of an argument as argparse wants it."""

    def convert(text: str) -> object:
        try:
            return argument.parse(text)
        except ArgumentError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def command_help(command: Command) -> str:
    """Return the description of a command: what it does and what it answers."""
    result = "; ".join(f"{field.name}: {field.help}" for field in command.result)
    return f"{command.summary}.\n\nResult: {result}."


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Ask the engine and show its answer."""
    command = COMMANDS[args.declared]
    given = {a.name: getattr(args, a.name) for a in command.arguments}
    try:
        checked = command.check({name: value for name, value in given.items() if value is not None})
    except ArgumentError as error:
        raise CommandError(str(error), ExitCode.USAGE) from None
    engine = find_engine(args.name, os.environ)
    if command.confirm and not args.yes:
        terminal.confirm(question(command, checked, engine))
    if command.follows and args.follow:
        asked = partial(call, engine, command.name)
        Follower(asked, command.result[0].name, terminal, args.json).run(checked)
    if command.joins_trace:
        machine = cache_directory(os.environ) / MACHINE_FILE
        recorded = record_trace(partial(look, engine, command), checked, args.file, machine)
        result: dict[str, object] = {"file": str(args.file), **asdict(recorded)}
    elif command.saves_file:
        size = save(ask(engine, command, checked), args.file)
        result = {"file": str(args.file), "bytes": size}
    else:
        result = ask(engine, command, checked)
    if args.json:
        terminal.print_json(result)
    else:
        terminal.write(render_result(command, result, terminal))
    return ExitCode.OK


def ask(engine: Engine, command: Command, args: Mapping[str, object]) -> dict[str, object]:
    """Return the result of a command; raises CommandError if it was not carried out."""
    return result_of(call(engine, command.name, args))


def look(engine: Engine, command: Command, args: Mapping[str, object]) -> dict[str, object]:
    """Return the result of a command that changes nothing, asked again while busy processes do not
    answer in time: one missing piece would cost all the others. Raises CommandError.
    """
    assert command.effect is Effect.READ, command.name
    for _ in range(LOOKS):
        reply = call(engine, command.name, args)
        if reply.code not in ASK_AGAIN:
            break
    return result_of(reply)


def result_of(reply: ControlReply) -> dict[str, object]:
    """Return what an answer says; raises CommandError if the command was not carried out."""
    if reply.error:
        raise CommandError(reply.error, exit_code(reply.code))
    return reply.result


def save(result: Mapping[str, object], path: Path) -> int:
    """Write a result into a file for its owner alone; return its bytes. Raises CommandError."""
    content = json.dumps(result, indent=1, ensure_ascii=False, default=str).encode()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            return file.write(content)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


def question(command: Command, args: dict[str, object], engine: Engine) -> str:
    """Return what a person is asked before the command is given."""
    target = ", ".join(f"{name} {value}" for name, value in args.items()) or f"engine {engine.name}"
    return command.confirm.format(target=target, name=engine.name)


def exit_code(code: str) -> ExitCode:
    """Return the exit code that goes with a reply's code."""
    return (
        EXIT_CODES.get(ReplyCode(code), ExitCode.FAILED)
        if code in list(ReplyCode)
        else ExitCode.FAILED
    )
