"""`headrace simulate`: replays a trace on a modelled machine under one or more policies.

Owns: the arguments, and the way from them to cases, workload and output. Never knows: how anything
is simulated. It runs in a process of its own, because the command line's other verbs may not import
this room.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn
from rich.progress import TimeRemainingColumn as Remaining

from core.config import HeadraceConfig
from core.config_file import apply_override, config_from_table, read_toml
from core.policy.limits import Limits
from core.scheduler.settings import EngineSettings
from core.simulation import options
from core.simulation.hardware import HARDWARE
from core.simulation.noise import NoiseSettings
from core.simulation.policies import find_policy
from core.simulation.report import html_report
from core.simulation.run import END_OF_TEXT, SimulationSettings
from core.simulation.study import Case, Outcome, figures, run_case
from core.simulation.tables import as_lines, class_table, overview_table
from core.simulation.traces import Trace, read_trace
from core.simulation.workload import DEFAULT_PROMISES, Workload, as_recorded, resampled
from core.terminal import PROGRAM, CommandError, ExitCode, Terminal, run_main

DESCRIPTION = """Replay a trace of requests on a modelled machine, under one policy or several, with
the scheduler that the engine runs.

A trace is a CSV file (or .csv.gz) with the columns arrival_s, prompt_tokens, output_tokens, and
optionally tenant, class, session, prefix_hit_tokens, hash_ids_512."""

GPU_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
WARM_UP = 0.1
USAGE = ExitCode.USAGE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add = parser.add_argument
    add("--trace", type=Path, required=True, metavar="CSV", help="the requests")
    add("--policy", metavar="A,B,…", help="policies to compare (default: the configured one)")
    add("--config", type=Path, metavar="FILE", help="TOML file of the engine")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one key of it")
    add("--sweep", metavar="KEY=A,B,C", help="run each policy with each value of a key")
    add("--hardware", choices=HARDWARE, default="a100", help="the machine (default: a100)")
    add("--speed", type=float, default=1.0, metavar="X", help="replay so many times as fast")
    add("--spread", type=float, default=0.0, metavar="S", help="spread equal stamps over S seconds")
    add("--qps", type=float, metavar="R", help="Poisson arrivals at R a second, lengths resampled")
    add("--requests", type=int, default=10_000, metavar="N", help="with --qps: how many")
    add("--limit", type=int, default=0, metavar="N", help="read the first N requests only")
    add("--tenants-from", metavar="FORM", help="tenant, one or zipf:N")
    add("--classes-from", metavar="FORM", help="class, or mix:interactive=1,batch=2")
    add("--promise", action="append", default=[], metavar="CLASS=TTFT_S/ITL_S",
        help="what a class is promised, seconds; 0 = nothing")  # fmt: skip
    add("--max-tokens", type=int, default=1024, metavar="N",
        help="what clients ask for, or the output if that is longer (default: 1024)")  # fmt: skip
    add("--noise", type=float, default=0.05, metavar="S", help="scatter of step times (0.05)")
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
    workload = make_workload(args, trace)
    cases = list(make_cases(args, workload))
    with Bars() as bars:
        outcomes = [run_case(case, workload, time.process_time, bars.show) for case in cases]
    documents = [figures(outcome, WARM_UP) for outcome in outcomes]
    if args.report:
        write_report(args, workload, outcomes, documents)
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
        "seed": (0, 2**31),
    }  # fmt: skip
    for name, (low, high) in bounds.items():
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            flag = name.replace("_", "-")
            raise CommandError(f"--{flag} {value} is out of range: {low:g} to {high:g}", USAGE)


def make_workload(args: argparse.Namespace, trace: Trace) -> Workload:
    """Return the requests that the arguments describe."""
    if args.qps is None:
        workload = as_recorded(trace, speed=args.speed, spread_s=args.spread)
    else:
        workload = resampled(trace, qps=args.qps, num_requests=args.requests, seed=args.seed)
    if args.tenants_from:
        workload = options.assign_tenants(workload, args.tenants_from, trace, args.seed)
    if args.classes_from:
        workload = options.assign_classes(workload, args.classes_from, trace, args.seed)
    return workload.with_promises(options.promises(args.promise, DEFAULT_PROMISES))


def make_cases(args: argparse.Namespace, workload: Workload) -> Iterator[Case]:
    """Yield a case for each policy and value of the sweep."""
    swept = options.sweep(args.sweep) if args.sweep else None
    for value in swept.values if swept else ("",):
        overrides = [*args.set, f"{swept.key}={value}"] if swept else args.set
        config = load(args.config, overrides, workload, args.max_tokens)
        names = (args.policy or config.scheduler.policy).split(",")
        for name in names:
            find_policy(name)
            label = f"{name} {swept.key}={value}" if swept else name
            yield Case(label, name, make_settings(args, config, workload), args.margin)


def load(
    path: Path | None, overrides: list[str], workload: Workload, max_tokens: int
) -> HeadraceConfig:
    """Return the configuration; what it leaves open is set as for a GPU and for this workload."""
    table: dict[str, Any] = read_toml(path) if path is not None else {}
    for override in overrides:
        apply_override(table, override)
    engine = table.setdefault("engine", {})
    if isinstance(engine, dict):
        for key, value in (GPU_DEFAULTS | {"max_model_len": longest(workload, max_tokens)}).items():
            engine.setdefault(key, value)
    return config_from_table(table)


def longest(workload: Workload, max_tokens: int) -> int:
    """Return prompt + max_tokens of the longest request."""
    asked = workload.output_tokens.clip(min=max_tokens)
    return int((workload.prompt_tokens + asked).max())


def make_settings(
    args: argparse.Namespace, config: HeadraceConfig, workload: Workload
) -> SimulationSettings:
    """Return machine and engine; the prefix cache is of use only if the trace tells contents."""
    hardware = HARDWARE[args.hardware]
    engine = EngineSettings.from_config(
        config.engine,
        config.scheduler,
        config.policy,
        Limits(config.classes, {tenant.name: tenant for tenant in config.tenants}),
        max_model_len=config.engine.max_model_len,
        eos_token_ids=(END_OF_TEXT,),
        digest_secret=b"",
    )
    has_contents = engine.prefix_cache and bool(workload.hash_ids)
    return SimulationSettings(
        engine=replace(engine, prefix_cache=has_contents),
        hardware=hardware,
        num_blocks=config.engine.num_kv_blocks or hardware.kv_tokens // engine.block_size,
        num_replicas=config.engine.replicas,
        max_tokens=args.max_tokens,
        noise=NoiseSettings(args.noise, args.outliers),
        seed=args.seed,
    )


def show(terminal: Terminal, documents: list[dict[str, Any]]) -> None:
    """Print the tables."""
    for table in (overview_table(documents), class_table(documents)):
        for line in as_lines(table):
            terminal.print(line)
        terminal.print()


def write_report(
    args: argparse.Namespace, workload: Workload, outcomes: list[Outcome],
    documents: list[dict[str, Any]],
) -> None:  # fmt: skip
    """Write the page; raises CommandError if that fails."""
    about = {
        "trace": args.trace.name,
        "requests": f"{len(workload):,}",
        "over": f"{workload.duration_s:.0f} s",
        "machine": args.hardware,
        "noise": f"{args.noise:g}",
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
