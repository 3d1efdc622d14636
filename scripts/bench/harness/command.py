"""What the command lines of all benchmarks have in common.

Owns: `--json`, `--set`, and how a command ends: 0 if all bars hold, 1 if one does not, 2 if nothing
could be measured. Never knows: what is measured.
"""

import argparse
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from scripts.bench.harness import report

Measure = Callable[[argparse.Namespace], Coroutine[Any, Any, Mapping[str, Any]]]


def parser_of(
    name: str, description: str | None, *, starts_engine: bool = False
) -> argparse.ArgumentParser:
    """Return the command line of `scripts/bench/NAME`: `--json`, and `--set` if it starts one."""
    parse = argparse.ArgumentParser(
        prog=f"scripts/bench/{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parse.add_argument
    add("--json", action="store_true", help="one JSON object on stdout instead of a table")
    if starts_engine:
        add("--set", action="append", default=[], metavar="PATH=VALUE", help="setting of an engine")
    return parse


def run_command(parser: argparse.ArgumentParser, measure: Measure) -> int:
    """Parse the arguments, measure and print; return the exit status."""
    args = parser.parse_args()
    name = parser.prog.rpartition("/")[2]
    return report.run(name, lambda: measure(args), args.json)
