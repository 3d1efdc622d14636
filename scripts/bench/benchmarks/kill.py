"""Kill each process of an engine in turn while streams run, and check what their clients saw.

Every stream is compared, id by id, with the same stream on the undisturbed engine. Then the
supervisor is killed: nothing may be left after two seconds, and the next start must work.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, launch, running_engine, wait_until

GOES_ON = ("executor", "scheduler", "admin")  # streams survive the death of these
ENDS = ("tokenizer", "http")  # streams end soon after the death of these
HANG_S = 120.0  # no stream takes this long by itself
SHIFT_IDS = 6  # so many equal ids in a row at another place mean a loss or a repetition
LEFTOVER_S = 2.0


class Verdict(Enum):
    """What became of a stream, compared with the undisturbed one."""

    EQUAL = "equal"
    PREFIX = "prefix"  # ended early with an error; what was delivered is right
    DIVERGED = "diverged"  # other ids from some place on, in step: a near tie fell otherwise
    BROKEN = "broken"  # ids lost or repeated
    HUNG = "hung"


def judge_stream(reference: Sequence[int], timeline: Timeline) -> Verdict:
    """Compare the ids of a stream with the reference."""
    ids = timeline.token_ids
    if timeline.cut:
        return Verdict.HUNG
    same = next((k for k, (a, b) in enumerate(zip(ids, reference, strict=False)) if a != b), None)
    if same is None:
        if len(ids) == len(reference):
            return Verdict.EQUAL
        early = len(ids) < len(reference) and bool(timeline.error)
        return Verdict.PREFIX if early else Verdict.BROKEN
    if _is_shifted(reference, ids, same) or len(ids) > len(reference):
        return Verdict.BROKEN
    complete = len(ids) == len(reference) or timeline.error
    return Verdict.DIVERGED if complete else Verdict.BROKEN


def _is_shifted(reference: Sequence[int], ids: Sequence[int], at: int) -> bool:
    piece = list(ids[at : at + SHIFT_IDS])
    if len(piece) < SHIFT_IDS:
        return False
    places = range(max(0, at - 64), at + 64)
    return any(
        place != at and list(reference[place : place + SHIFT_IDS]) == piece for place in places
    )


@dataclass(frozen=True, slots=True)
class Wave:
    """The streams of one round: the same bodies every time, half greedy and half seeded."""

    bodies: tuple[dict[str, Any], ...]

    @classmethod
    def make(cls, model: str, streams: int, output_tokens: int) -> "Wave":
        """Return `streams` requests of 24 to 200 prompt tokens."""
        prompts = Prompts(1000, 40000, seed=7)
        return cls(
            tuple(
                {
                    "model": model,
                    "prompt": prompts.make(24 + 176 * index // max(1, streams - 1)),
                    "max_tokens": output_tokens,
                    "temperature": index % 2,
                    "seed": index,
                    "ignore_eos": True,
                    "return_token_ids": True,
                }
                for index in range(streams)
            )
        )

    async def run(self, client: Client, timelines: list[Timeline]) -> None:
        """Send all; `timelines` can be watched while they fill."""
        until = time.perf_counter() + HANG_S
        await asyncio.gather(
            *(
                client.stream("/v1/completions", body, timeline, until)
                for body, timeline in zip(self.bodies, timelines, strict=True)
            )
        )


def num_ids(timeline: Timeline) -> int:
    """Return how many output ids have arrived."""
    return len(timeline.token_ids)


async def kill_one(engine: Engine, wave: Wave, reference: list[list[int]], kind: str) -> Any:
    """Kill a process of `kind` when every stream has begun; return what came of it."""
    timelines = [Timeline() for _ in wave.bodies]
    async with Client(engine.url) as client:
        running = asyncio.create_task(wave.run(client, timelines))
        await wait_until(lambda: running.done() or min(map(num_ids, timelines)) > 3, HANG_S, 0.005)
        victim = engine.children(kind)[0]
        was_running = not running.done()
        killed_s = time.perf_counter()
        os.kill(victim.pid, signal.SIGKILL)
        recovered_s = await recover(engine, wave, killed_s)
        await running
    verdicts = [judge_stream(*pair) for pair in zip(reference, timelines, strict=True)]
    ended_s = [t.ended_s - killed_s for t in timelines if t.error]
    return {
        "was_running": int(was_running),
        **{verdict.value: verdicts.count(verdict) for verdict in Verdict},
        "completed": sum(t.done for t in timelines),
        "longest_pause_s": round(max(gap for t in timelines for gap in [0.0, *t.itl_s()]), 3),
        "error_after_s": round(max(ended_s, default=0.0), 3),
        "error_examples": sorted({t.error for t in timelines if t.error})[:3],
        "recovered_s": recovered_s,
        "left_running": await left_running(engine),
    }


async def recover(engine: Engine, wave: Wave, killed_s: float) -> float:
    """Return the seconds from the kill until a new request is answered; infinite if it never is."""
    body = {**wave.bodies[0], "max_tokens": 1}
    while time.perf_counter() < killed_s + HANG_S:
        async with Client(engine.url) as client:
            status, _ = await client.post("/v1/completions", body)
        if status == 200:
            return round(time.perf_counter() - killed_s, 3)
        await asyncio.sleep(0.05)
    return float("inf")


async def left_running(engine: Engine, within_s: float = 10.0) -> int:
    """Return how many requests the engine still counts when all streams have ended."""
    deadline = time.perf_counter() + within_s
    while True:
        async with Client(engine.url) as client:
            _, raw = await client.get("/metrics")
        lines = [line for line in raw.decode().splitlines() if line.startswith("vllm:num_requests")]
        left = sum(int(float(line.rpartition(" ")[2])) for line in lines)
        if (lines and left == 0) or time.perf_counter() > deadline:
            return left if lines else -1
        await asyncio.sleep(0.1)


async def kill_supervisor(engine: Engine, wave: Wave, log: Path) -> dict[str, Any]:
    """Kill the supervisor under load; return what is left after it, and how a new start goes."""
    timelines = [Timeline() for _ in wave.bodies]
    before = engine.processes()
    async with Client(engine.url) as client:
        running = asyncio.create_task(wave.run(client, timelines))
        await wait_until(lambda: running.done() or max(map(num_ids, timelines)) > 3, HANG_S, 0.005)
        os.kill(engine.process.pid, signal.SIGKILL)
        killed_s = time.perf_counter()
        engine.process.wait()
        await wait_until(lambda: not engine.leftovers(before), LEFTOVER_S)
        gone_s = time.perf_counter() - killed_s
        left = engine.leftovers(before)
        await running
    again = launch(engine.name, engine.settings, log)
    try:
        start = time.perf_counter()
        await again.wait_ready()
        restarted_s = time.perf_counter() - start
    finally:
        status = await again.stop()
    return {
        "processes": len(before),
        "leftovers": len(left),
        "leftover_names": left,
        "gone_s": round(gone_s, 3),
        "restarted_s": round(restarted_s, 3),
        "restart_exit_status": status,
        "left_after_stop": len(again.leftovers([])),
    }


def bars(streams: int) -> list[report.Bar]:
    """Return the limits for every kind of process."""
    result = [
        report.Bar("supervisor.leftovers", "<=", 0),
        report.Bar("supervisor.restarted_s", "<=", 60, "s"),
        report.Bar("supervisor.restart_exit_status", "<=", 0),
        report.Bar("supervisor.left_after_stop", "<=", 0),
    ]
    for kind in (*GOES_ON, *ENDS):
        result.append(report.Bar(f"{kind}.was_running", ">=", 1))
        result += [
            report.Bar(f"{kind}.{name}", "<=", 0)
            for name in ("hung", "broken", "diverged", "left_running")
        ]
        result.append(report.Bar(f"{kind}.recovered_s", "<=", 30, "s"))
        if kind in GOES_ON:
            result.append(report.Bar(f"{kind}.equal", ">=", streams, "streams"))
        else:
            result.append(report.Bar(f"{kind}.error_after_s", "<=", 2, "s"))
    return result


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine, kill its parts one after the other, then its supervisor."""
    settings = ["engine.dtype=float32", *args.set]
    figures: dict[str, Any] = {}
    async with running_engine("kill", settings) as engine:
        async with Client(engine.url) as client:
            wave = Wave.make(await client.model(), args.streams, args.output_tokens)
            undisturbed = [Timeline() for _ in wave.bodies]
            await wave.run(client, undisturbed)
        if faults := [t.error for t in undisturbed if t.error or not t.done]:
            raise RuntimeError(f"the undisturbed run failed: {faults[0]}")
        reference = [t.token_ids for t in undisturbed]
        for kind in (*GOES_ON, *ENDS):
            print(f"kill: {kind}", file=sys.stderr)
            figures[kind] = await kill_one(engine, wave, reference, kind)
        print("kill: supervisor", file=sys.stderr)
        figures["supervisor"] = await kill_supervisor(engine, wave, engine.log)
    return report.build("kill", figures, bars(args.streams), command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("kill", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--streams", type=int, default=12)
    add("--output-tokens", type=int, default=96)
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
