"""What `headrace top` costs, and a picture of it.

cost      CPU of the dashboard and of the admin pool, with 64 busy tenants, at 4 Hz
looks     CPU of every process by frame of the dashboard and by control call
pairs     an engine's throughput with and without a dashboard and ten control calls a second
picture   the dashboard of an engine under load, as SVG for the README
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.benchmarks.dashboard import cost, looks, pairs, picture
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of, run_command

MODES = ("cost", "looks", "pairs", "picture")
SECONDS = {"cost": 15.0, "looks": 5.0, "pairs": 2.0, "picture": 75.0}
MIN_PAIRS = 10


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one mode and return its report."""
    seconds = args.seconds or SECONDS[args.mode]
    bars: Sequence[report.Bar]
    if args.mode == "cost":
        figures = await cost.cost(args.tenants, seconds, args.screens)
        bars = [bar for bar in cost.BARS if bar.name.partition(".")[0] in figures]
    elif args.mode == "looks":
        figures, bars = await looks.looks(seconds), ()
    elif args.mode == "pairs":
        figures, bars = await pairs.pairs(args.pairs, seconds), pairs.BARS
    else:
        figures = await picture.picture(args.output, seconds)
        bars = picture.BARS
    return report.build("dashboard", figures, bars, mode=args.mode, command=sys.argv[1:])


def pair_count(text: str) -> int:
    """Read a number of pairs."""
    value = int(text)
    if value < MIN_PAIRS:
        raise argparse.ArgumentTypeError(f"fewer than {MIN_PAIRS} pairs say nothing")
    return value


def screens(text: str) -> str:
    """Read keys of screens."""
    if not text or set(text) - set(cost.SCREENS):
        raise argparse.ArgumentTypeError(f"use some of {''.join(cost.SCREENS)}")
    return text


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("dashboard", __doc__)
    add = parse.add_argument
    add("mode", nargs="?", choices=MODES, default="cost", help="what to measure (default: cost)")
    add("--seconds", type=float, help="time of a measurement, of a window, before the picture")
    add("--tenants", type=int, default=64, help="cost: tenants that change (default: 64)")
    add("--screens", type=screens, default="1236", help="cost: keys of screens (default: 1236)")
    add("--pairs", type=pair_count, default=48, help="pairs: so many (default: 48)")
    add("--output", type=Path, default=report.ROOT / "docs" / "dashboard.svg", metavar="FILE",
        help="picture: where to write it (default: docs/dashboard.svg)")  # fmt: skip
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
