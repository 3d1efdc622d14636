"""The console script `headrace`: finds the verb and hands it its arguments.

Owns: the top-level help, the way into a verb and the exit code. Never knows: what a verb does. Only
the module of the verb that was asked for is imported, by dotted name from `frontends.cli.verbs`, so
help and errors come at once.
"""

import difflib
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from core.terminal import (
    PROGRAM,
    CommandError,
    ExitCode,
    Parser,
    Style,
    Terminal,
    guarded,
)
from frontends.cli.verbs import VERBS, Verb

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 engine not running, 130 interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `headrace` with `arguments` (default: those of the process) and return the exit code."""
    terminal = Terminal.standard()
    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: dispatch(given, terminal), terminal)


def dispatch(arguments: list[str], terminal: Terminal) -> int:
    """Run the verb that `arguments` begins with."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        terminal.write(help_text(terminal))
        return ExitCode.OK
    first, rest = arguments[0], arguments[1:]
    return run_verb(find_verb("version" if first == "--version" else first), rest, terminal)


def find_verb(name: str) -> Verb:
    """Return the verb of that name; raises CommandError with the nearest one."""
    verbs = {verb.name: verb for verb in VERBS}
    if name in verbs:
        return verbs[name]
    close = difflib.get_close_matches(name, list(verbs), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(verbs)}"
    raise CommandError(f"unknown verb {name!r}: {hint}", ExitCode.USAGE)


def run_verb(verb: Verb, arguments: list[str], terminal: Terminal) -> int:
    """Run one verb here, or become the process in which it runs."""
    if verb.own_process:
        command = [sys.executable, "-P", "-m", verb.module, *arguments]
        os.execv(sys.executable, command)
    module = import_module(verb.module)
    parser = Parser(prog=f"{PROGRAM} {verb.name}", description=module.DESCRIPTION)
    module.add_arguments(parser)
    code: int = module.run(parser.parse_args(arguments), terminal)
    return code


def help_text(terminal: Terminal) -> str:
    """Return the help of `headrace` itself."""
    width = max(len(verb.name) for verb in VERBS)
    lines = [
        f"{terminal.style('usage:', Style.BOLD)} {PROGRAM} VERB [arguments]",
        "",
        "A multi-tenant LLM inference engine for one node.",
        "",
        terminal.style("verbs:", Style.BOLD),
        *(f"  {terminal.style(v.name.ljust(width), Style.CYAN)}  {v.summary}" for v in VERBS),
        "",
        f"{PROGRAM} VERB --help tells more. {EPILOG}",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
