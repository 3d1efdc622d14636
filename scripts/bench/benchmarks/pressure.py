"""Run an engine out of KV memory, and compare it with one that has enough.

Long batch outputs come all at once, interactive requests in between, in a pool for a few of them.
Many short batch outputs before have let admission expect short ones, so it takes in more than fits,
and those that run must give memory back to each other, by copies to the host or by computing anew.
The same requests on an engine with room, no more of them at a time than ran on average in the small
pool, tell what every request should have said, and what throughput without pressure is.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import running_engine

SETTINGS = (
    "engine.dtype=float32",
    "engine.max_num_seqs=16",
    "engine.prefix_cache=false",
    "classes.interactive.sheddable=false",  # on a busy machine all are late
)
ROOMY_BLOCKS = 400
SHORT_OUTPUTS = 24  # more than admission needs to believe in a history
SHORT_TOKENS = 4
POLL_S = 0.2
INTERACTIVE_EVERY_S = 1.5
COUNTERS = {
    "steps": "headrace_steps_total",
    "preemptions": "vllm:num_preemptions_total",
    "recomputed_tokens": "headrace_recomputed_tokens_total",
    "swapped_out_tokens": "headrace_swapped_out_tokens_total",
    "swapped_in_tokens": "headrace_swapped_in_tokens_total",
    "recomputed_after_swap_tokens": "headrace_recomputed_after_swap_tokens_total",
}
RUNNING = "vllm:num_requests_running"
BARS = (
    report.Bar("errors", "<=", 0),
    report.Bar("output_mismatches", "<=", 0),
    report.Bar("pressed.preemptions", ">=", 5),
    report.Bar("pressed.swapped_out_tokens", ">=", 1),
    report.Bar("pressed.swapped_in_tokens", ">=", 1),
    report.Bar("pressed.recomputed_after_swap_tokens", "<=", 0),
    report.Bar("pressed.recomputed_share", "<=", 0.05),
    report.Bar("throughput_ratio", ">=", 0.9),
    report.Bar("step_ratio", ">=", 0.9),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One request, and when it is sent, in seconds after the first."""

    traffic_class: str
    prompt: list[int] = field(repr=False)
    output_tokens: int
    send_s: float = 0.0

    async def ask(self, client: Client, model: str) -> Timeline:
        """Send it and return what came."""
        body = {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        headers = {"x-headrace-class": self.traffic_class}
        return await client.stream("/v1/completions", body, Timeline(), headers=headers)


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Return the batch requests, then the interactive ones."""
    prompts = Prompts(1000, 40000, args.seed)
    batch = [
        Job("batch", prompts.make(args.prompt_tokens), args.output_tokens)
        for _ in range(args.batch)
    ]
    return batch + [
        Job("interactive", prompts.make(32), 16, 1 + number * INTERACTIVE_EVERY_S)
        for number in range(args.interactive)
    ]


@dataclass(frozen=True, slots=True)
class Run:
    """The jobs on one engine."""

    timelines: list[Timeline] = field(repr=False)
    elapsed_s: float
    mean_running: float
    counted: dict[str, int]

    def figures(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Return what is reported of it."""
        output = sum(len(timeline.token_ids) for timeline in self.timelines)
        computed = output + sum(len(job.prompt) for job in jobs)
        first = [t.ttft_s for j, t in self.of("interactive", jobs) if t.chunk_s]
        return {
            **self.counted,
            "recomputed_share": self.counted["recomputed_tokens"] / max(1, computed),
            "elapsed_s": round(self.elapsed_s, 2),
            "mean_running": round(self.mean_running, 2),
            "output_tok_s": output / self.elapsed_s,
            "output_tok_step": output / max(1, self.counted["steps"]),
            "interactive_ttft_ms": report.spread_ms(first),
        }

    def of(self, traffic_class: str, jobs: Sequence[Job]) -> list[tuple[Job, Timeline]]:
        """Return the jobs of one class with what came of them."""
        pairs = zip(jobs, self.timelines, strict=True)
        return [(job, timeline) for job, timeline in pairs if job.traffic_class == traffic_class]


async def counters(client: Client) -> dict[str, float]:
    """Return the metrics looked at, each summed over its labels; raises RuntimeError."""
    status, raw = await client.get("/metrics")
    if status != 200:
        raise RuntimeError(f"GET /metrics: {status}")
    found = dict.fromkeys((*COUNTERS.values(), RUNNING), 0.0)
    for line in raw.decode().splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found


async def mislead(client: Client, model: str, seed: int) -> None:
    """Let batch outputs be short for a while."""
    prompts = Prompts(1000, 40000, seed + 1)
    short = [Job("batch", prompts.make(16), SHORT_TOKENS) for _ in range(SHORT_OUTPUTS)]
    await asyncio.gather(*(job.ask(client, model) for job in short))


async def carry_out(client: Client, model: str, jobs: Sequence[Job], at_once: int) -> Run:
    """Send all jobs, no more than `at_once` batch requests at a time."""
    turns = asyncio.Semaphore(at_once)
    running: list[float] = []

    async def one(job: Job) -> Timeline:
        await asyncio.sleep(job.send_s)
        if job.traffic_class != "batch":
            return await job.ask(client, model)
        async with turns:
            return await job.ask(client, model)

    async def poll() -> None:
        while True:
            await asyncio.sleep(POLL_S)
            running.append((await counters(client))[RUNNING])

    before, begin_s = await counters(client), time.perf_counter()
    poller = asyncio.create_task(poll())
    try:
        timelines = await asyncio.gather(*(one(job) for job in jobs))
        elapsed_s = time.perf_counter() - begin_s
    finally:
        poller.cancel()
        await asyncio.gather(poller, return_exceptions=True)
    after = await counters(client)
    counted = {name: int(after[key] - before[key]) for name, key in COUNTERS.items()}
    return Run(list(timelines), elapsed_s, fmean(running or [0.0]), counted)


async def on_engine(
    kind: str, settings: Sequence[str], jobs: Sequence[Job], at_once: int, seed: int
) -> Run:
    """Start an engine, mislead it, and carry the jobs out."""
    async with running_engine(kind, settings) as engine, Client(engine.url) as client:
        model = await client.model()
        await mislead(client, model, seed)
        return await carry_out(client, model, jobs, at_once)


def compared(jobs: Sequence[Job], pressed: Run, roomy: Run) -> dict[str, Any]:
    """Return the figures of both runs and how they differ."""
    pairs = list(zip(pressed.timelines, roomy.timelines, strict=True))
    both = [timeline for pair in pairs for timeline in pair]
    figures = {"pressed": pressed.figures(jobs), "roomy": roomy.figures(jobs)}
    ratios = {
        name: figures["pressed"][figure] / max(figures["roomy"][figure], 1e-9)
        for name, figure in (
            ("throughput_ratio", "output_tok_s"),
            ("step_ratio", "output_tok_step"),
        )
    }
    return {
        **figures,
        "errors": sum(1 for timeline in both if timeline.error),
        "error_examples": sorted({timeline.error for timeline in both if timeline.error})[:3],
        "output_mismatches": sum(1 for a, b in pairs if a.token_ids != b.token_ids),
        **ratios,
    }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both engines, one after the other, and return the report."""
    jobs, settings = jobs_of(args), [*SETTINGS, *args.set]
    small = [*settings, f"engine.num_kv_blocks={args.blocks}"]
    pressed = await on_engine("pressed", small, jobs, len(jobs), args.seed)
    at_once = max(1, round(pressed.mean_running))
    large = [*settings, f"engine.num_kv_blocks={ROOMY_BLOCKS}"]
    roomy = await on_engine("roomy", large, jobs, at_once, args.seed)
    figures = compared(jobs, pressed, roomy)
    return report.build("pressure", figures, BARS, command=sys.argv[1:], seed=args.seed)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("pressure", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--blocks", type=int, default=64, help="KV blocks of the small pool")
    add("--batch", type=int, default=20, help="batch requests, all at once")
    add("--interactive", type=int, default=8, help="interactive requests, one by one")
    add("--prompt-tokens", type=int, default=64, help="of a batch request")
    add("--output-tokens", type=int, default=192, help="of a batch request")
    add("--seed", type=int, default=1, help="of the prompts")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
