"""`scripts/bench/policy`: what each policy carries, and what policy headrace promises, simulated.

Every run is kept in a results file as soon as it is done, under everything that determines it, the
code of policy headrace included: an interrupted study goes on where it stopped.

One load is carried if, in the class that fares worst, at most 1 % of the requests miss their
promise: the first token by its deadline and 99 % of the gaps within the cap. Requests and the
deadlines of the slow tiers are scaled together by --quick: a deadline of half an hour lets a
backlog grow for as long, and a short run would not notice. The slope of the backlog (`is_stable`)
is kept with each run and decides nothing: a run is many times longer than the longest deadline, so
a backlog that really grows ends in misses, while near the capacity the slope of one run is that of
a random walk; it is above zero in runs of the references without a single miss.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.bench.benchmarks.policy.capacity import STRICT_POLICIES
from scripts.bench.benchmarks.policy.runs import Runs, Traces
from scripts.bench.benchmarks.policy.studies import STUDIES
from scripts.bench.benchmarks.policy.study import Asked
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.report import Bar

QUICK_FACTOR = 5
ALL = "all"
QUICK_POLICIES = frozenset({"edf-224", "edf-256", "headrace-open", "headrace-tenants"})


def default_results() -> Path:
    """Return a file in the cache directory, so that nothing has to be named to go on."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / "policy-runs.jsonl"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("policy", __doc__)
    add = parse.add_argument
    add("--traces", type=Path, required=True, metavar="DIR", help="where the traces lie")
    add("--study", choices=(ALL, *STUDIES), default=ALL, help="which study")
    add(
        "--policies",
        metavar="A,B,…",
        help="of the strict study, or 'all' (default: all; --quick: four)",
    )
    add("--seeds", type=int, help="of the strict study (default: 3; --quick: 1)")
    add(
        "--quick",
        action="store_true",
        help="a fifth of the requests, references only at their bounds",
    )
    add(
        "--tolerance",
        type=float,
        help="loads told apart, as a share (default: 0.01; --quick: 0.02)",
    )
    add("--results", type=Path, metavar="FILE", help="finished runs (default: in the cache folder)")
    return parse


def asked(args: argparse.Namespace) -> Asked:
    """Return what the arguments ask; raises ValueError for a policy that no study knows."""
    known = frozenset(name for names in STRICT_POLICIES.values() for name in names)
    usual = QUICK_POLICIES if args.quick else known
    chosen = frozenset(args.policies.split(",")) if args.policies else usual
    chosen = known if chosen == {ALL} else chosen
    if unknown := chosen - known:
        raise ValueError(f"no such policy here: {', '.join(sorted(unknown))}")
    runs = Runs(Traces(args.traces).get, args.results or default_results())
    seeds = range(1, 1 + (args.seeds or (1 if args.quick else 3)))
    tolerance = args.tolerance if args.tolerance is not None else (0.02 if args.quick else 0.01)
    if not 0 < tolerance < 1:
        raise ValueError(f"--tolerance is {tolerance}: use a share between 0 and 1")
    return Asked(runs, QUICK_FACTOR if args.quick else 1, seeds, tolerance, args.quick, chosen)


def bars_of(name: str, *, is_quick: bool) -> Iterator[Bar]:
    """Yield the bars of a study under its name."""
    for bar in STUDIES[name].bars(is_quick):
        yield replace(bar, name=f"{name}.{bar.name}")


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Carry out the studies and return the report; raises OSError if a trace is missing."""
    names = list(STUDIES) if args.study == ALL else [args.study]
    question = asked(args)
    figures = {name: STUDIES[name].ask(question) for name in names}
    bars = [bar for name in names for bar in bars_of(name, is_quick=args.quick)]
    return report.build("policy", figures, bars, command=sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
