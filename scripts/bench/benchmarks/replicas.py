"""Two executors instead of one, as replicas or as ranks: the same answers, also when one is killed.

Each way has an engine of its own, in float32. All cases of a reference are asked at once. Then
streams run twice, undisturbed and with one executor killed (SIGKILL) while it computes some of
them: every stream is compared id by id, and what the engine counted with what was delivered.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipc.pages import SCHEDULER_PAGE, SUPERVISOR_PAGE
from scripts.bench.benchmarks.greedy import OUTPUT_BARS, Case, ask, figures_of, read_cases
from scripts.bench.benchmarks.kill import HANG_S, Verdict, Wave, judge_stream, left_running, num_ids
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Timeline
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine, wait_until

COUNTED_WITHIN_S = 5.0
PATIENT = "classes.standard.ttft_ms=0"  # a slow machine refuses nobody for being late
RESTART_S = 60.0


@dataclass(frozen=True, slots=True)
class Way:
    """How the two executors work together, and which one is killed."""

    setting: str
    victim: str
    replica: int  # the victim's


WAYS = {
    "replicas": Way("engine.replicas=2", "executor.1.0", 1),
    "ranks": Way("engine.tensor_parallel=2", "executor.0.1", 0),
}


class Pages:
    """What an engine shows of its processes and replicas."""

    def __init__(self, engine: Engine) -> None:
        self._supervisor = engine.page("supervisor", SUPERVISOR_PAGE)
        self._scheduler = engine.page("scheduler", SCHEDULER_PAGE)

    def child(self, child_id: str) -> np.void:
        """Return the supervisor's row of a child."""
        rows = self._supervisor.read().page["children"]
        found: np.void = next(row for row in rows if row["name"] == child_id.encode())
        return found

    def num_running(self, replica: int) -> int:
        """Return how many sequences run on a replica."""
        return int(self._scheduler.read().page["replicas"][replica]["num_running"])

    def num_generated(self) -> int:
        """Return how many output tokens the scheduler has counted."""
        return int(self._scheduler.read().page["generated_tokens"])

    async def growth_to(self, before: int, expected: int) -> int:
        """Return by how much the count has grown, as soon as that is what is expected."""
        await wait_until(lambda: self.num_generated() == before + expected, COUNTED_WITHIN_S)
        return self.num_generated() - before


async def greedy(engine: Engine, cases: Sequence[Case]) -> dict[str, Any]:
    """Ask all cases at once."""
    async with Client(engine.url) as client:
        model = await client.model()
        return figures_of(await asyncio.gather(*(ask(client, model, case) for case in cases)))


def make_wave(model: str, args: argparse.Namespace) -> Wave:
    """Return the streams, which are told their usage."""
    wave = Wave.make(model, args.streams, args.output_tokens)
    usage = {"stream_options": {"include_usage": True}}
    return Wave(tuple(body | usage for body in wave.bodies))


async def kill_one(engine: Engine, way: Way, args: argparse.Namespace) -> dict[str, Any]:
    """Run the streams undisturbed, then again with a kill; return what came of it."""
    pages = Pages(engine)
    async with Client(engine.url) as client:
        wave = make_wave(await client.model(), args)
        first, undisturbed = pages.num_generated(), [Timeline() for _ in wave.bodies]
        await wave.run(client, undisturbed)
        if faults := [t.error for t in undisturbed if t.error or not t.done]:
            raise RuntimeError(f"the undisturbed run failed: {faults[0]}")
        before = first + await pages.growth_to(first, sum(map(num_ids, undisturbed)))
        timelines = [Timeline() for _ in wave.bodies]
        running = asyncio.create_task(wave.run(client, timelines))
        await wait_until(lambda: running.done() or min(map(num_ids, timelines)) > 3, HANG_S, 0.005)
        row, num_running = pages.child(way.victim), pages.num_running(way.replica)
        os.kill(int(row["pid"]), signal.SIGKILL)
        await running
        delivered = sum(map(num_ids, timelines))
        counted = await pages.growth_to(before, delivered)
    is_back = await wait_until(
        lambda: int(pages.child(way.victim)["epoch"]) > int(row["epoch"]), RESTART_S
    )
    reference = [t.token_ids for t in undisturbed]
    verdicts = [judge_stream(*pair) for pair in zip(reference, timelines, strict=True)]
    return {
        "victim": way.victim,
        "victim_running": num_running,
        **{verdict.value: verdicts.count(verdict) for verdict in Verdict},
        "error_examples": sorted({t.error for t in timelines if t.error})[:3],
        "longest_pause_s": round(max(gap for t in timelines for gap in [0.0, *t.itl_s()]), 3),
        "delivered_tokens": delivered,
        "wrong_usage": sum(t.output_tokens != num_ids(t) for t in timelines),
        "counted_too_much": counted - delivered,
        "restarted": int(is_back),
        "left_running": await left_running(engine),
    }


def bars(ways: Sequence[str], streams: int) -> list[report.Bar]:
    """Return the limits for each way."""
    result = []
    for way in ways:
        result += [
            report.Bar(f"{way}.greedy.{bar.name}", bar.relation, bar.limit, bar.unit)
            for bar in OUTPUT_BARS
        ]
        result += [
            report.Bar(f"{way}.kill.victim_running", ">=", 1),
            report.Bar(f"{way}.kill.equal", ">=", streams, "streams"),
            report.Bar(f"{way}.kill.restarted", ">=", 1),
        ]
        result += [
            report.Bar(f"{way}.kill.{name}", "<=", 0)
            for name in ("hung", "broken", "diverged", "wrong_usage", "left_running")
        ]
        result += [
            report.Bar(f"{way}.kill.counted_too_much", relation, 0, "tokens")
            for relation in ("<=", ">=")
        ]
    return result


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure each way and return the report."""
    cases = read_cases(args.cases)
    figures: dict[str, Any] = {}
    for name in args.ways:
        settings = ["engine.dtype=float32", PATIENT, WAYS[name].setting, *args.set]
        async with running_engine(name, settings) as engine:
            print(f"replicas: {name}: greedy", file=sys.stderr)
            compared = await greedy(engine, cases)
            print(f"replicas: {name}: kill {WAYS[name].victim}", file=sys.stderr)
            figures[name] = {"greedy": compared, "kill": await kill_one(engine, WAYS[name], args)}
    return report.build("replicas", figures, bars(args.ways, args.streams), command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("replicas", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--cases", required=True, metavar="FILE", help="JSON: {cases: [{id, kind, text, …}]}")
    add("--ways", nargs="+", choices=sorted(WAYS), default=sorted(WAYS, reverse=True))
    add("--streams", type=int, default=12)
    add("--output-tokens", type=int, default=96)
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
