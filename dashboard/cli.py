"""`headrace top`: the dashboard, or one look at the engine as text.

Owns: the flags, and which source they mean. It runs in a process of its own, because the command
line's other verbs may not import this room, and this room not theirs.
"""

import argparse
import gc
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from dashboard import report
from dashboard.app import DashboardApp, Options
from dashboard.format import ASCII, UNICODE
from dashboard.frame import Liveness
from dashboard.history import History
from dashboard.recording import Recording, RecordingError, RecordingWriter
from dashboard.source.base import Source
from dashboard.source.demo import DemoSource
from dashboard.source.live import LiveSource
from dashboard.source.replay import ReplaySource
from ipc.errors import EngineNotFoundError, RunDirectoryError
from ipc.run_directory import RunDirectory

DESCRIPTION = """Show a running engine of this user: tenants, queues, memory, promises, requests.

It reads shared memory and asks nobody; the engine does not notice whether it runs. Press ? for all
keys. Commands are given with the admin key of the engine, or HEADRACE_ADMIN_KEY."""

FAILED, USAGE, NOT_RUNNING, INTERRUPTED = 1, 2, 3, 130
LOOK_S = 1.0  # between the two looks of --once, from which rates follow
DEMO_TENANTS = 12
MAX_DEMO_TENANTS = 200
MIN_HERTZ = 0.5
MAX_HERTZ = 10.0
NICENESS = 10  # who looks on goes after whoever computes: between two steps there is time enough
YOUNG_OBJECTS = 20_000  # a few MB, until the garbage collector looks for cycles among them


class UsageError(Exception):
    """The arguments make no sense; the message is one line."""


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--name", default="default", help="name of the engine (default: %(default)s)")
    add("--hertz", type=frequency, default=4.0, metavar="HZ",
        help="looks a second, 0.5 to 10 (default: 4)")  # fmt: skip
    add("--readonly", action="store_true", help="give no command that changes anything")
    add("--once", action="store_true", help="print the overview and the tenants, and exit")
    add("--json", action="store_true", help="print all that is known as JSON, and exit")
    add("--ascii", action="store_true", help="draw with ASCII characters only")
    add("--record", type=Path, metavar="FILE", help="write what is seen to a new file as well")
    add("--replay", type=Path, metavar="FILE", help="show a recording instead of an engine")
    add("--demo", type=int, nargs="?", const=DEMO_TENANTS, metavar="TENANTS",
        help="show a made-up engine, with so many tenants (default: 12)")  # fmt: skip
    add("--seed", type=int, default=1, help="of the made-up engine (default: 1)")


def frequency(text: str) -> float:
    """Return what was typed for --hertz; raises ArgumentTypeError out of bounds."""
    value = float(text)
    if not MIN_HERTZ <= value <= MAX_HERTZ:
        raise argparse.ArgumentTypeError(f"{text} is not from {MIN_HERTZ:g} to {MAX_HERTZ:g}")
    return value


def run(args: argparse.Namespace) -> int:
    """Show it; return the exit code."""
    if args.demo is not None and args.replay is not None:
        raise UsageError("--demo and --replay exclude each other")
    if args.demo is not None and not 1 <= args.demo <= MAX_DEMO_TENANTS:
        raise UsageError(f"--demo {args.demo} is not from 1 to {MAX_DEMO_TENANTS}")
    with ExitStack() as stack:
        source = source_of(args, stack)
        if args.once or args.json:
            return look_once(source, args)
        if not has_terminal():
            raise UsageError("there is no terminal: use --once or --json")
        recorder = stack.enter_context(RecordingWriter(args.record)) if args.record else None
        options = Options(
            ASCII if args.ascii else UNICODE, args.hertz, readonly=args.readonly, folder=Path.cwd()
        )
        app = DashboardApp(source, options, recorder)
        os.nice(NICENESS)
        collect_rarely()
        app.run()
        return app.return_code or 0


def collect_rarely() -> None:
    """Keep the garbage collector from what stays: all that was imported, and the frame that is
    there until the next one comes.
    """
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def has_terminal() -> bool:
    """Tell whether there is somewhere to draw: Textual draws on stderr, or where textual-serve
    wants it."""
    return bool(os.environ.get("TEXTUAL_DRIVER")) or (sys.stdin.isatty() and sys.stderr.isatty())


def source_of(args: argparse.Namespace, stack: ExitStack) -> Source:
    """Return where frames come from."""
    if args.demo is not None:
        return DemoSource(args.seed, args.demo, time.monotonic, time.time)
    if args.replay is not None:
        recording = Recording(args.replay)
        stack.callback(recording.close)
        return ReplaySource(recording, time.monotonic)
    key = os.environ.get("HEADRACE_ADMIN_KEY", "")
    source = LiveSource(args.name, time.monotonic_ns, time.time, admin_key=key)
    stack.callback(source.close)
    return source


def look_once(source: Source, args: argparse.Namespace) -> int:
    """Look twice, so that there are rates, and print what was seen.

    Raises EngineNotFoundError; RunDirectoryError for a name that no engine can have.
    """
    history = History()
    first = source.read()
    if first.liveness is Liveness.GONE and not first.processes:
        RunDirectory.find(args.name)  # says who is there instead
    history.push(first)
    time.sleep(LOOK_S)
    view = history.push(source.read())
    if args.json:
        sys.stdout.write(report.as_json(view))
    else:
        width = max(80, shutil.get_terminal_size((132, 24)).columns)
        clock = time.strftime("%H:%M:%S", time.localtime(view.frame.wall_s))
        sys.stdout.write(report.text(view, clock, width, ASCII if args.ascii else UNICODE))
    return 0


def fail(message: str, code: int) -> int:
    """Say what went wrong, in one line; return the exit code."""
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb; faults of the world become one line on stderr."""
    parser = Parser(prog="headrace top", description=DESCRIPTION, allow_abbrev=False)
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except UsageError as error:
        return fail(str(error), USAGE)
    except EngineNotFoundError as error:
        return fail(str(error), NOT_RUNNING)
    except RunDirectoryError as error:
        return fail(str(error), USAGE)
    except RecordingError as error:
        return fail(str(error), FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
