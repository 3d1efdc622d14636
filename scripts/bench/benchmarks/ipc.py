"""Measure the way between scheduler and executor: the rings, the doorbells, and the time lost.

`round_trip`: a plan of `--rows` rows goes through a ring to a second process, which answers with a
result of as many rows; each end sleeps on its doorbell, as process loops do, and never spins. The
time is from before the plan is made bytes until the result is read.

`pipeline`: an engine whose simulated steps take `--step-us`, at both pipeline depths. From the
headers of the results in its ring: the time from one step's end to the next one's start; from the
heads of both rings: in how many steps the next plan was there before the step's end. Steps of which
the watcher, who looks every half millisecond, missed the end are left out.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from core.clock import NS_PER_MS, NS_PER_US
from core.runtime.loop import Wakeups
from core.scheduler.frames import (
    PLAN_HEADER,
    RESULT_HEADER,
    RESULT_MAGIC,
    plan_parts,
    read_plan,
    read_result,
    result_parts,
)
from core.scheduler.plan import PLAN_ROW, RESULT_ROW, StepPlan, StepResult
from ipc.doorbell import Doorbell
from ipc.layout import read_parameters
from ipc.ring import RingReader, RingWriter, format_ring, ring_bytes, ring_layout
from ipc.segment import Segment
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts
from scripts.bench.harness.command import parser_of
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.report import percentile

NUM_SLOTS = 4
WAIT_NS = 10_000 * NS_PER_MS
SLOT_HEADER_BYTES = 32
LOOK_S = 0.0005
PROMPT_TOKENS = 16
SETTLE_S = 2.0
BARS = (
    report.Bar("round_trip.p50_us", "<=", 45, "µs"),
    report.Bar("depth_2.idle_us.p50", "<=", 150, "µs"),
    report.Bar("depth_2.planned_ahead", ">=", 0.99, "of the steps"),
)


@dataclass(frozen=True, slots=True)
class Ends:
    """One process's ends of the two rings, and what it sleeps on."""

    writer: RingWriter
    reader: RingReader
    wakeups: Wakeups

    def wait_frame(self) -> memoryview:
        """Sleep until a frame is there."""
        while (frame := self.reader.receive()) is None:
            self.wakeups.wait(WAIT_NS)
        return frame


def ends_of(folder: Path, sends: str, receives: str, bells: dict[str, Doorbell]) -> Ends:
    """Attach to the rings `sends` and `receives` in `folder`."""
    bell = bells[receives]
    reader = RingReader(Segment.open(folder / receives), 0, bell)
    writer = RingWriter(Segment.open(folder / sends), [bells[sends]])
    return Ends(writer, reader, Wakeups([bell]))


def echo(folder: Path, plan_bell: int, result_bell: int) -> None:
    """Answer every plan with as many rows, until one without rows."""
    bells = {"plans": Doorbell(plan_bell), "results": Doorbell(result_bell)}
    ends = ends_of(folder, "results", "plans", bells)
    rows = np.zeros(0, RESULT_ROW)
    while True:
        plan = read_plan(ends.wait_frame())
        if not len(plan.rows):
            return
        if len(rows) != len(plan.rows):
            rows = np.zeros(len(plan.rows), RESULT_ROW)
        rows["row"] = plan.rows["row"]
        answer = StepResult(plan.replica, plan.epoch, plan.step, 0, 0, rows)
        ends.writer.send(result_parts(answer))
        ends.reader.acknowledge()


@contextmanager
def other_process(num_rows: int) -> Iterator[Ends]:
    """Make the rings, start the process that echoes, and yield our ends."""
    sizes = {
        "plans": PLAN_HEADER.itemsize + num_rows * PLAN_ROW.itemsize,
        "results": RESULT_HEADER.itemsize + num_rows * RESULT_ROW.itemsize,
    }
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        for ring, slot_bytes in sizes.items():
            segment = Segment.create(folder / ring, ring_bytes(NUM_SLOTS, slot_bytes))
            format_ring(segment, NUM_SLOTS, slot_bytes)
        bells = {ring: Doorbell.create() for ring in sizes}
        fds = [bells[ring].fileno() for ring in sizes]
        command = [
            sys.executable,
            "-m",
            "scripts.bench.benchmarks.ipc",
            "--echo",
            name,
            *map(str, fds),
        ]
        process = subprocess.Popen(command, pass_fds=fds)
        ends = ends_of(folder, "plans", "results", bells)
        try:
            yield ends
        finally:
            ends.writer.send(plan_parts(StepPlan(0, 1, 1, np.zeros(0, PLAN_ROW))))
            process.wait(10)


def round_trips(num_rows: int, count: int) -> dict[str, float]:
    """Return the spread of `count` round trips, µs, and what both processes computed for one."""
    rows = np.zeros(num_rows, PLAN_ROW)
    rows["row"] = np.arange(num_rows)
    times_us = []
    with other_process(num_rows) as ends:
        for step in range(1, count + 1):
            began_ns = time.perf_counter_ns()
            ends.writer.send(plan_parts(StepPlan(0, 1, step, rows)))
            result = read_result(ends.wait_frame())
            times_us.append((time.perf_counter_ns() - began_ns) / NS_PER_US)
            assert (result.step, len(result.rows)) == (step, num_rows)
            ends.reader.acknowledge()
    measured = times_us[count // 10 :]  # the other process starts during the first
    return {f"p{p}_us": percentile(measured, p) for p in (10, 50, 99)}


class RingGlance:
    """Looks at a ring without being one of its readers."""

    def __init__(self, path: Path) -> None:
        """Map the ring of a running engine, read-only."""
        segment = Segment.open(path, readonly=True)
        num_slots, slot_bytes, num_readers, *_ = read_parameters(segment)
        views = ring_layout(num_slots, slot_bytes, num_readers).views(segment)
        self._writer, self._slots = views["writer"], views["slots"]

    @property
    def head(self) -> int:
        """The sequence number of the next frame."""
        return int(self._writer[0])

    def result_header(self, sequence: int) -> np.void | None:
        """Return the header of result frame `sequence`, or None if it is overwritten."""
        slot = bytes(self._slots[sequence % len(self._slots)][: 32 + RESULT_HEADER.itemsize])
        header: np.void = np.frombuffer(slot, RESULT_HEADER, 1, SLOT_HEADER_BYTES)[0]
        is_whole = int.from_bytes(slot[:8], "little") == sequence
        return header if is_whole and int(header["magic"]) == RESULT_MAGIC else None


@dataclass(slots=True)
class Watch:
    """What was seen of an engine's steps: by number, (started_ns, finished_ns)."""

    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    num_planned: int = 0  # steps at whose last sight before the end the next plan was there
    num_seen: int = 0

    def idle_us(self) -> list[float]:
        """Return the time between the end of a step and the start of the one after it."""
        return [
            (self.steps[late][0] - self.steps[early][1]) / NS_PER_US
            for early, late in pairwise(sorted(self.steps))
            if late == early + 1
        ]


async def watch_steps(engine: Engine, seconds: float) -> Watch:
    """Look at both rings every half millisecond."""
    directory, watch = engine.run_directory(), Watch()
    plans, results = RingGlance(directory.plans(0)), RingGlance(directory.results(0))
    until = time.monotonic() + seconds
    head, ahead = results.head, 0
    while time.monotonic() < until:
        new_head, new_ahead = results.head, plans.head
        if new_head == head + 1:
            _note(watch, results, head)
            watch.num_seen += 1
            watch.num_planned += ahead > head + 1
        head, ahead = new_head, new_ahead
        await asyncio.sleep(LOOK_S)
    return watch


def _note(watch: Watch, results: RingGlance, sequence: int) -> None:
    header = results.result_header(sequence)
    if header is not None:
        times = int(header["started_ns"]), int(header["finished_ns"])
        watch.steps[int(header["step"])] = times


@asynccontextmanager
async def all_rows_taken(client: Client, num_rows: int, max_tokens: int) -> AsyncIterator[None]:
    """Keep rows busy with whole answers, which nothing is streamed of; they are cut at the end."""
    model, prompts = await client.model(), Prompts(1000, 40000, seed=1)
    bodies = [
        {"model": model, "prompt": prompts.make(PROMPT_TOKENS), "max_tokens": max_tokens}
        for _ in range(num_rows)
    ]
    tasks = [asyncio.create_task(client.post("/v1/completions", body)) for body in bodies]
    try:
        await asyncio.sleep(SETTLE_S)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pipeline(args: argparse.Namespace, depth: int) -> dict[str, Any]:
    """Watch an engine whose rows are all taken."""
    settings = [
        "engine.executor=simulated",
        f"engine.simulated_step_us={args.step_us}",
        "engine.simulated_token_us=0",
        f"engine.pipeline_depth={depth}",
        f"engine.max_num_seqs={args.rows}",
        f"engine.max_num_batched_tokens={4 * args.rows}",
        "engine.num_kv_blocks=65536",
        *args.set,
    ]
    output_tokens = round(3 * args.seconds / args.step_us * 1e6)
    async with (
        running_engine("ipc", settings) as engine,
        Client(engine.url) as client,
        all_rows_taken(client, args.rows, output_tokens),
    ):
        watch = await watch_steps(engine, args.seconds)
    idle_us = watch.idle_us()
    if not idle_us:
        raise RuntimeError("no two steps in a row were seen")
    return {
        "steps": watch.num_seen,
        "idle_us": {f"p{p}": percentile(idle_us, p) for p in (10, 50, 90, 99)},
        "planned_ahead": watch.num_planned / watch.num_seen,
    }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all three."""
    figures: dict[str, Any] = {
        "round_trip": await asyncio.to_thread(round_trips, args.rows, args.trips)
    }
    for depth in (1, 2):
        figures[f"depth_{depth}"] = await pipeline(args, depth)
    return report.build("ipc", figures, BARS, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("ipc", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--rows", type=int, default=256, help="rows of a plan, streams of the engine")
    add("--trips", type=int, default=20_000, help="round trips")
    add("--step-us", type=int, default=5000, help="time of a simulated step, µs")
    add("--seconds", type=float, default=5.0, help="time for which each engine is watched")
    add("--echo", nargs=3, default=(), help=argparse.SUPPRESS)
    return parse


def main() -> int:
    """Run the command line; the exit status is 1 if a bar fails, 2 if nothing could be measured."""
    args = parser().parse_args()
    if args.echo:
        folder, *bells = args.echo
        echo(Path(folder), *map(int, bells))
        return os.EX_OK
    return report.run("ipc", lambda: run(args), args.json)


if __name__ == "__main__":
    sys.exit(main())
