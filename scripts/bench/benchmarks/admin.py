"""Measure how soon control commands are answered: idle, overloaded, and with each process stopped.

Ten commands, two of them changes, are given one after the other as `headrace ctl` gives them: a
connection each, over the admin workers' sockets. Then the engine gets ten times the streams that
it runs at once; then, beside a few streams, each process outside the admin pool is stopped in turn
(SIGSTOP). An answer is what comes back, be it that a process is silent; how many of which kind is
in the figures. The load runs in a process of its own, so that it does not delay the clock.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from core.config.engine import EngineConfig
from frontends.cli.control_client import Engine as Target
from frontends.cli.control_client import call, find_engine
from ipc.messages import ControlReply
from scripts.bench.harness import report
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine, wait_until
from scripts.bench.harness.processes import stopped
from scripts.bench.harness.report import ROOT

LIMIT_MS = 100.0
OVERLOAD = 10
FEW_STREAMS = 8
RUNNING_S = 60.0
PATIENT = (  # nobody is killed for being stopped
    "supervision.hang_timeout_ms=3600000",
    "supervision.step_timeout_ms=3600000",
)
STOPPED = ("executor", "scheduler", "tokenizer", "http", "janitor", "supervisor")
SITUATIONS = ("idle", "overload", *(f"{kind}_stopped" for kind in STOPPED))
OK = "ok"

Asked = tuple[str, Mapping[str, object]]


def commands(number: int, request_id: str) -> list[Asked]:
    """Return the ten commands of round `number`; `set` changes something in each."""
    weight = {"path": "classes.batch.weight", "value": str(1 + number % 2)}
    return [
        ("status", {}),
        ("tenants", {}),
        ("requests", {"limit": 100}),
        ("show", {"request": request_id}),
        ("events", {"limit": 100}),
        ("price", {}),
        ("usage", {}),
        ("cache-stats", {}),
        ("set", weight),
        ("cancel", {"request": "nobody"}),
    ]


class Asking:
    """Gives rounds of commands and notes how long each answer took and of what kind it was."""

    def __init__(self, target: Target) -> None:
        """Ask the admin workers of `target`."""
        self._target = target
        self._durations_s: dict[str, list[float]] = {}
        self._answers: dict[str, Counter[str]] = {}

    def work(self, seconds: float) -> None:
        """Give rounds for so long; raises CommandError if nobody answers at all."""
        until, number, request_id = time.perf_counter() + seconds, 0, "0"
        while time.perf_counter() < until:
            for command, args in commands(number, request_id):
                reply = self._ask(command, args)
                request_id = first_request(reply) if command == "requests" else request_id
            number += 1

    def _ask(self, command: str, args: Mapping[str, object]) -> ControlReply:
        start = time.perf_counter()
        reply = call(self._target, command, args)
        self._durations_s.setdefault(command, []).append(time.perf_counter() - start)
        self._answers.setdefault(command, Counter())[kind_of(reply)] += 1
        return reply

    def figures(self) -> dict[str, Any]:
        """Return the spread over all commands, by command, and the kinds of answers."""
        return {
            "all": report.spread_ms([each for some in self._durations_s.values() for each in some]),
            "answers": sum(map(len, self._durations_s.values())),
            **{
                command: {**report.spread_ms(durations_s), **self._answers[command]}
                for command, durations_s in self._durations_s.items()
            },
        }


def kind_of(reply: ControlReply) -> str:
    """Return what an answer amounts to: ok, stale, late (published, not taken over yet), a code."""
    if reply.code:
        return reply.code
    if reply.result.get("stale") is True:
        return "stale"
    return "late" if reply.result.get("in_force") is False else OK


def first_request(reply: ControlReply) -> str:
    """Return the number of a live request, one that nobody has if there is none."""
    rows = reply.result.get("requests")
    assert isinstance(rows, list), reply
    return str(rows[0]["request_id"]) if rows else "0"


@contextmanager
def load(engine: Engine, streams: int) -> Iterator[None]:
    """Keep `streams` requests in flight, from a process of its own; 0 = none."""
    if not streams:
        yield
        return
    command = [sys.executable, "-m", "scripts.bench.benchmarks.load", "--url", engine.url, "closed"]
    command += ["--streams", str(streams), "--requests", "10000000"]
    command += ["--prompt-tokens", "64", "--output-tokens", "64"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def until_running(target: Target) -> None:
    """Wait until requests run; raises RuntimeError if they never do."""

    def runs() -> bool:
        status: Any = call(target, "status", {}).result
        return int(status["load"]["num_running"]) > 0

    if not await wait_until(runs, RUNNING_S, 0.2):
        raise RuntimeError(f"nothing runs {RUNNING_S:.0f} s after the load began")


async def measure(
    engine: Engine, target: Target, seconds: float, streams: int, pids: Sequence[int] = ()
) -> dict[str, Any]:
    """Return how commands were answered beside so many streams, with processes stopped."""
    asking = Asking(target)
    with load(engine, streams):
        if streams:
            await until_running(target)
        with stopped(pids):
            await asyncio.sleep(1.5 if pids else 0.0)  # so that the heartbeat is old
            await asyncio.to_thread(asking.work, seconds)
    return asking.figures()


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine and ask it in every situation."""
    streams = {"idle": 0, "overload": OVERLOAD * args.max_num_seqs}
    settings = [*PATIENT, f"engine.max_num_seqs={args.max_num_seqs}", *args.set]
    chosen = args.situation or SITUATIONS
    figures: dict[str, Any] = {}
    async with running_engine("admin", settings) as engine:
        target = find_engine(engine.name, os.environ)
        for each in chosen:
            pids = pids_of(engine, each)
            figures[each] = await measure(
                engine, target, args.seconds, streams.get(each, FEW_STREAMS), pids
            )
    bars = [report.Bar(f"{each}.all.p99", "<=", LIMIT_MS, "ms") for each in chosen]
    return report.build("admin", figures, bars, command=sys.argv[1:])


def pids_of(engine: Engine, situation: str) -> list[int]:
    """Return the processes that are stopped in a situation."""
    kind = situation.removesuffix("_stopped")
    if kind == "supervisor":
        return [engine.process.pid]
    return [process.pid for process in engine.children(kind)]


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("admin", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--seconds", type=float, default=10.0, help="time in each situation")
    add(
        "--max-num-seqs", type=int, default=EngineConfig().max_num_seqs,
        help=f"requests running at once; the overload is {OVERLOAD} times as many streams",
    )  # fmt: skip
    add("--situation", action="append", choices=SITUATIONS, help="only this one; may be repeated")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
