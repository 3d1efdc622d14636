"""`headrace config`: whether a configuration is acceptable, and what it amounts to."""

import argparse

import msgspec

from core.config.docs import key_descriptions
from core.config.file import config_to_toml, load_config
from core.errors import ConfigError
from core.terminal import ExitCode, Terminal
from frontends.cli.config_flags import SERVE_SHORTCUTS, add_config_flags, overrides_of

DESCRIPTION = """Check a configuration without starting anything, or show every key with its value.

Without --config the defaults are used; --set and the shortcuts are applied on top."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `check`, `show` and `keys`."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", help="what to do"
    )
    for name, summary in (
        ("check", "Say whether it is acceptable; exit code 2 if not"),
        ("show", "Write all keys as TOML, or as JSON with --json"),
        ("keys", "List every key with its meaning"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary}.")
        action.add_argument("--json", action="store_true", help="write a JSON document")
        if name != "keys":
            add_config_flags(action, SERVE_SHORTCUTS)


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Do one of the three."""
    return {"check": check, "show": show, "keys": keys}[args.action](args, terminal)


def check(args: argparse.Namespace, terminal: Terminal) -> int:
    """Say whether the configuration is acceptable."""
    try:
        load_config(args.config, overrides_of(args, SERVE_SHORTCUTS))
    except ConfigError as error:
        if not args.json:
            raise
        terminal.print_json({"ok": False, "error": str(error)})
        return ExitCode.USAGE
    if args.json:
        terminal.print_json({"ok": True})
    else:
        terminal.print("the configuration is acceptable")
    return ExitCode.OK


def show(args: argparse.Namespace, terminal: Terminal) -> int:
    """Write every key with its value."""
    config = load_config(args.config, overrides_of(args, SERVE_SHORTCUTS))
    if args.json:
        terminal.print_json(msgspec.to_builtins(config))
    else:
        terminal.write(config_to_toml(config))
    return ExitCode.OK


def keys(args: argparse.Namespace, terminal: Terminal) -> int:
    """Write every key with its meaning."""
    descriptions = dict(sorted(key_descriptions().items()))
    if args.json:
        terminal.print_json(descriptions)
        return ExitCode.OK
    width = max(map(len, descriptions))
    for key, text in descriptions.items():
        terminal.print(f"{key.ljust(width)}  {text}")
    return ExitCode.OK
