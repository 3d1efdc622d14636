"""`headrace simulate`: replays a trace on a modelled machine under one or more policies.

Owns: the arguments, and the way from them to cases, workload and output. Never knows: how anything
is simulated. It runs in a process of its own, because the command line's other verbs may not import
this room.
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TimeRemainingColumn as Remaining

from core.config.file import read_toml
from core.config.headrace import HeadraceConfig
from core.simulation import cases, options
from core.simulation.cases import Machine
from core.simulation.hardware import HARDWARE
from core.simulation.noise import NoiseSettings
from core.simulation.policies import find_policy
from core.simulation.report import html_report
from core.simulation.study import Case, Outcome, figures, run_case
from core.simulation.tables import (
    as_lines,
    class_table,
    leftover_table,
    overview_table,
    promise_table,
    refusal_table,
)
from core.simulation.this_machine import read_this_machine
from core.simulation.traces import Trace, read_trace
from core.simulation.workload import Workload, as_recorded, resampled
from core.terminal import PROGRAM, CommandError, ExitCode, Terminal, run_main
from core.user_directories import cache_directory

DESCRIPTION = """Replay a trace of requests on a modelled machine, under one policy or several, with
the scheduler that the engine runs.

A trace is a CSV file (or .csv.gz) with the columns arrival_s, prompt_tokens, output_tokens, and
optionally tenant, class, max_tokens, session, prefix_hit_tokens, hash_ids_512.
`headrace ctl record-trace FILE` writes one of a running engine."""

WARM_UP = 0.1
DEFAULT_NOISE = 0.05
THIS_MACHINE = "this-machine"
NS_PER_US = 1000
USAGE = ExitCode.USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="CSV", help="the requests")
    add("--policy", metavar="A,B,…", help="policies to compare (default: the configured one)")
    add("--config", type=Path, metavar="FILE", help="TOML file of the engine")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one key of it")
    add("--sweep", metavar="KEY=A,B,C", help="run each policy with each value of a key")
    add("--hardware", choices=[*HARDWARE, THIS_MACHINE], default="a100",
        help="the machine (default: a100), or this one as last recorded")  # fmt: skip
    add("--speed", type=float, default=1.0, metavar="X", help="replay so many times as fast")
    add("--spread", type=float, default=0.0, metavar="S", help="spread equal stamps over S seconds")
    add("--qps", type=float, metavar="R", help="Poisson arrivals at R a second, lengths resampled")
    add("--requests", type=int, default=10_000, metavar="N", help="with --qps: how many")
    add("--limit", type=int, default=0, metavar="N", help="read the first N requests only")
    add("--tenants-from", metavar="FORM", help="tenant, one or zipf:N")
    add("--classes-from", metavar="FORM", help="class, or mix:interactive=1,batch=2")
    add("--promise", action="append", default=[], metavar="CLASS=TTFT_S/ITL_S",
        help="promise of a class instead of the configured one, seconds; 0 = none")  # fmt: skip
    add("--max-tokens", type=int, default=1024, metavar="N",
        help="what clients ask for, or the output if that is longer (default: 1024)")  # fmt: skip
    add("--noise", type=float, metavar="S",
        help="scatter of step times (0.05; of this machine: as measured)")  # fmt: skip
    add("--overhead-us", type=float, metavar="T",
        help="what scheduler and channels add to a step, µs (0; here: as measured)")  # fmt: skip
    add("--outliers", action="store_true", help="0.5 %% of steps take three times as long")
    add("--margin", type=float, default=0.2, metavar="M",
        help="how much a policy that predicts keeps in reserve (0.2)")  # fmt: skip
    add("--seed", type=int, default=1, metavar="N", help="of every random draw")
    add("--report", type=Path, metavar="HTML", help="write a page with charts")
    add("--json", action="store_true", help="write a JSON document")


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Simulate every case and show what came of it."""
    check_numbers(args)
    trace = read_trace(args.trace, args.limit)
    runs = list(make_runs(args, trace))
    for name in runs[0].unknown_tenants:
        terminal.note(f"tenant {name} is not in the configuration: it has the defaults")
    with Bars() as bars:
        outcomes = [
            run_case(each.case, each.workload, time.process_time, bars.show) for each in runs
        ]
    documents = [figures(outcome, WARM_UP) for outcome in outcomes]
    if args.report:
        write_report(args, runs[0], outcomes, documents)
        terminal.note(f"report: {args.report}")
    if args.json:
        terminal.print_json({"trace": str(args.trace), "cases": documents})
    else:
        show(terminal, documents)
    return ExitCode.OK


def check_numbers(args: argparse.Namespace) -> None:
    """Raise CommandError for a number that makes no sense."""
    bounds = {
        "speed": (1e-6, 1e6), "spread": (0.0, 3600.0), "qps": (1e-6, 1e6), "requests": (2, 10**8),
        "limit": (0, 10**9), "max_tokens": (0, 10**6), "noise": (0.0, 1.0), "margin": (0.0, 10.0),
        "seed": (0, 2**31), "overhead_us": (0.0, 1e6),
    }  # fmt: skip
    for name, (low, high) in bounds.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            flag = name.replace("_", "-")
            raise CommandError(f"--{flag} {value} is out of range: {low:g} to {high:g}", USAGE)


@dataclass(frozen=True, slots=True)
class Run:
    """A case and the requests as its configuration sees them."""

    case: Case
    workload: Workload
    unknown_tenants: list[str]


def make_runs(args: argparse.Namespace, trace: Trace) -> Iterator[Run]:
    """Yield a run for each policy and value of the sweep."""
    table = read_toml(args.config) if args.config is not None else {}
    promised = options.promises(args.promise)
    swept = options.sweep(args.sweep) if args.sweep else None
    for value in swept.values if swept else ("",):
        overrides = [*args.set, f"{swept.key}={value}"] if swept else args.set
        config = cases.configuration(table, overrides, promised)
        machine = find_machine(args.hardware, args, os.environ)
        recorded = make_workload(args, trace, config)
        longest = int((recorded.prompt_tokens + recorded.asked_tokens(args.max_tokens)).max())
        filled = cases.for_machine(table, machine, longest)
        config = cases.configuration(filled, overrides, promised)
        workload = cases.with_configured(recorded, config)
        settings = cases.settings_of(
            config, machine, workload, max_tokens=args.max_tokens, seed=args.seed
        )
        for name in (args.policy or config.scheduler.policy).split(","):
            find_policy(name)
            label = f"{name} {swept.key}={value}" if swept else name
            case = Case(label, name, settings, args.margin)
            yield Run(case, workload, cases.unknown_tenants(workload, config))


def make_workload(args: argparse.Namespace, trace: Trace, config: HeadraceConfig) -> Workload:
    """Return the requests that the arguments describe, nothing promised yet."""
    if args.qps is None:
        workload = as_recorded(trace, speed=args.speed, spread_s=args.spread)
    else:
        workload = resampled(trace, qps=args.qps, num_requests=args.requests, seed=args.seed)
    names = tuple(tenant.name for tenant in config.tenants)
    if args.tenants_from:
        workload = options.assign_tenants(workload, args.tenants_from, trace, args.seed, names)
    if args.classes_from:
        workload = options.assign_classes(workload, args.classes_from, trace, args.seed)
    return workload


def find_machine(name: str, args: argparse.Namespace, environ: Mapping[str, str]) -> Machine:
    """Return the machine that the arguments name; raises UnknownMachineError."""
    if name != THIS_MACHINE:
        noise = NoiseSettings(DEFAULT_NOISE if args.noise is None else args.noise, args.outliers)
        overhead_ns = round((args.overhead_us or 0.0) * NS_PER_US)
        return Machine(name=name, hardware=HARDWARE[name], noise=noise, overhead_ns=overhead_ns)
    here = read_this_machine(cache_directory(environ))
    overhead_us = here.overhead_us if args.overhead_us is None else args.overhead_us
    return Machine(
        name=name,
        hardware=here,
        noise=NoiseSettings(here.sigma if args.noise is None else args.noise, args.outliers),
        overhead_ns=round(overhead_us * NS_PER_US),
        is_gpu=False,
        basis=here.basis,
    )


def show(terminal: Terminal, documents: list[dict[str, Any]]) -> None:
    """Print the tables."""
    tables = [overview_table, class_table, refusal_table, promise_table, leftover_table]
    for table in (make(documents) for make in tables):
        if not table.rows:
            continue
        for line in as_lines(table):
            terminal.print(line)
        terminal.print()


def write_report(
    args: argparse.Namespace, first: Run, outcomes: list[Outcome], documents: list[dict[str, Any]]
) -> None:
    """Write the page; raises CommandError if that fails."""
    about = {
        "trace": args.trace.name,
        "requests": f"{len(first.workload):,}",
        "over": f"{first.workload.duration_s:.0f} s",
        "machine": args.hardware,
        "noise": f"{first.case.settings.noise.sigma:.3g}",
        "seed": str(args.seed),
    }
    command = shlex.join([PROGRAM, "simulate", *sys.argv[1:]])
    try:
        args.report.write_text(html_report(command, about, outcomes, documents), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write {args.report}: {error.strerror}") from error


class Bars:
    """A progress bar for each case, on stderr; nothing is drawn where stderr is no terminal."""

    def __init__(self) -> None:
        """Prepare without drawing."""
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Remaining(),
            console=Console(stderr=True), disable=not sys.stderr.isatty(),
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "Bars":
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, *fault: object) -> None:
        """Leave the finished bars on the screen."""
        self._progress.stop()

    def show(self, label: str, done: int, total: int) -> None:
        """Move the bar of `label` to `done` of `total`."""
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total)
        self._progress.update(self._tasks[label], completed=done)


def main() -> int:
    """Run the verb with this process's arguments."""
    return run_main(f"{PROGRAM} simulate", DESCRIPTION, add_arguments, run, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
