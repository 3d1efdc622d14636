"""How the command line talks: exit codes, one-line errors, colour, JSON, progress lines.

stdout belongs to data, stderr to everything else. Shared by the verbs of `frontends.cli` and by the
few verbs that live in other rooms; never knows what any verb does. Nothing here imports more than
the standard library, because `headrace --help` has to appear at once.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NoReturn, TextIO

from core.errors import ConfigError, HeadraceError

PROGRAM = "headrace"


class ExitCode(IntEnum):
    """What a verb returns to the shell."""

    OK = 0
    FAILED = 1
    USAGE = 2  # wrong arguments, or a configuration that cannot be accepted
    NOT_RUNNING = 3  # no engine of that name runs here
    INTERRUPTED = 130  # Ctrl-C


class CommandError(HeadraceError):
    """A verb cannot go on; the message is one line that says what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        """Keep the line and the exit code that goes with it."""
        super().__init__(message)
        self.code = code


class Style:
    """The few SGR sequences in use."""

    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    CYAN = "36"


class Terminal:
    """Where a verb writes: data to `out`, talk to `err`."""

    def __init__(
        self, out: TextIO, err: TextIO, source: TextIO, environ: Mapping[str, str]
    ) -> None:
        """Use these three streams; `environ` is read for NO_COLOR and TERM only."""
        self._out = out
        self._err = err
        self._source = source
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        self.out_color = out.isatty() and not plain
        self.err_color = err.isatty() and not plain
        self.is_interactive = err.isatty() and source.isatty()
        self.shows_progress = err.isatty()
        self._status_shown = False

    @classmethod
    def standard(cls) -> "Terminal":
        """Return the terminal of this process."""
        return cls(sys.stdout, sys.stderr, sys.stdin, os.environ)

    def write(self, text: str) -> None:
        """Write data as it is, at once; raises CommandError if it cannot be stored."""
        self.clear_status()
        try:
            self._out.write(text)
            self._out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            silence_output()
            raise CommandError(f"cannot write to standard output: {error.strerror}") from error

    def print(self, text: str = "") -> None:
        """Write a line of data."""
        self.write(text + "\n")

    def print_json(self, value: object) -> None:
        """Write a JSON document, indented."""
        self.print(json.dumps(value, indent=2, ensure_ascii=False, default=str))

    def note(self, text: str) -> None:
        """Say something that is not data."""
        self.clear_status()
        self._err.write(text + "\n")
        self._err.flush()

    def error(self, text: str) -> None:
        """Say what went wrong, in one line."""
        line = " ".join(text.split())
        self.note(f"{paint('error:', Style.RED, self.err_color)} {line}")

    def status(self, text: str) -> None:
        """Replace the progress line, if there is somebody to see it."""
        if self.shows_progress:
            self._err.write(f"\r\x1b[K{paint(text, Style.DIM, self.err_color)}")
            self._err.flush()
            self._status_shown = True

    def clear_status(self) -> None:
        """Remove the progress line."""
        if self._status_shown:
            self._err.write("\r\x1b[K")
            self._err.flush()
            self._status_shown = False

    def style(self, text: str, style: str) -> str:
        """Return `text` for stdout in a style."""
        return paint(text, style, self.out_color)

    def read_all(self) -> str:
        """Return everything on standard input."""
        return self._source.read()

    def confirm(self, question: str) -> None:
        """Ask; raises CommandError unless the answer is yes, or if there is nobody to ask."""
        if not self.is_interactive:
            raise CommandError(f"{question} Add --yes to do it without a terminal", ExitCode.USAGE)
        self._err.write(f"{question} [y/N] ")
        self._err.flush()
        if self._source.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("nothing was done")


def paint(text: str, style: str, enabled: bool) -> str:
    """Return `text` in a style, or as it is."""
    return f"\x1b[{style}m{text}\x1b[0m" if enabled else text


class HelpFormatter(argparse.HelpFormatter):
    """argparse's help with coloured headings, keeping the line breaks of descriptions."""

    def start_section(self, heading: str | None) -> None:
        """Begin a section with its heading in bold."""
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        super().start_section(paint(heading or "", Style.BOLD, coloured))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(
            super(HelpFormatter, self)._fill_text(p, width, indent) for p in paragraphs
        )


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors and our help; sub-parsers are of the same kind."""

    def __init__(self, **options: object) -> None:
        """Take argparse's options; abbreviations of flags are not accepted."""
        options.setdefault("formatter_class", HelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Raise CommandError instead of printing the whole usage."""
        raise CommandError(f"{message} (see {self.prog} --help)", ExitCode.USAGE)


def guarded(body: Callable[[], int], terminal: Terminal) -> int:
    """Run a verb and return its exit code; faults of the world become one line on stderr."""
    try:
        return body()
    except CommandError as error:
        terminal.error(str(error))
        return error.code
    except ConfigError as error:
        terminal.error(str(error))
        return ExitCode.USAGE
    except HeadraceError as error:
        terminal.error(str(error))
        return ExitCode.FAILED
    except KeyboardInterrupt:
        terminal.clear_status()
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return silence_output()


def silence_output() -> int:
    """Give up writing where nobody reads or nothing fits, so that the interpreter's last flush is
    quiet.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.FAILED


def run_main(
    prog: str,
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace, Terminal], int],
    arguments: Sequence[str],
) -> int:
    """Parse `arguments` and run a verb: the whole `main` of one that has a process of its own."""
    terminal = Terminal.standard()

    def body() -> int:
        parser = Parser(prog=prog, description=description)
        add_arguments(parser)
        return run(parser.parse_args(arguments), terminal)

    return guarded(body, terminal)
