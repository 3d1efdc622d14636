"""Measure whether memory stays flat: PSS of all processes over ten thousand requests.

The executor is simulated, prompts differ, so that everything that is kept for a request (prefix
blocks, records, rows of the trace) fills up. After `--warmup` requests the memory is the base; it
is read again after every fifth of `--requests`. Then the engine is started again with warm caches:
`restart_ready_s` is from the command to the first `ready`, `restart_cpu_s` what all its processes
computed for that, which other work on the machine changes less. `--local` starts the real model
for both, with fewer requests.
"""

import argparse
import asyncio
import sys
from typing import Any

import orjson

from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.raw_process import raw_streams
from scripts.bench.harness.raw_streams import Load

MIB = 2**20
VOCABULARY = (1000, 40000)
READINGS = 5
NUM_PROMPTS = 1000
NUM_KV_BLOCKS = 1024
POLL_S = 0.2
BARS = (
    report.Bar("pss_mib", "<=", 1536, "MiB"),
    report.Bar("growth_mib", "<=", 16, "MiB"),
    report.Bar("restart_ready_s", "<=", 6, "s"),
    report.Bar("failures", "<=", 0, "requests"),
)


def pss_mib(engine: Engine) -> dict[str, float]:
    """Return the proportional share of memory of each process, MiB."""
    return {
        f"{process.kind}.{number}": process.pss_bytes() / MIB
        for number, process in enumerate(engine.processes())
    }


async def load_of(engine: Engine, args: argparse.Namespace) -> Load:
    """Return short streams with a thousand different prompts, more than the prefix cache keeps."""
    async with Client(engine.url) as client:
        model = await client.model()
    prompts = Prompts(*VOCABULARY, seed=1)
    bodies = [
        orjson.dumps(
            {
                "model": model,
                "prompt": prompts.make(args.prompt_tokens),
                "max_tokens": args.output_tokens,
                "stream": True,
            }
        ).decode()
        for _ in range(NUM_PROMPTS)
    ]
    return Load(engine.port, "/v1/completions", args.connections, bodies)


async def read_memory(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Return memory before and after the requests, and in between."""
    readings: list[dict[str, float]] = []
    async with raw_streams(await load_of(engine, args)) as client:
        for reading in range(READINGS + 1):
            wanted = args.warmup + reading * args.requests // READINGS
            while (counts := await client.counts()).num_answers < wanted:
                if counts.num_failures:
                    raise RuntimeError(f"{counts.num_failures} requests failed")
                await asyncio.sleep(POLL_S)
            readings.append(pss_mib(engine))
        counts = await client.counts()
    totals = [sum(reading.values()) for reading in readings]
    return {
        "requests": counts.num_answers,
        "failures": counts.num_failures,
        "pss_mib": totals[-1],
        "growth_mib": totals[-1] - totals[0],
        "pss_mib_over_time": {f"{k}_of_{READINGS}": total for k, total in enumerate(totals)},
        "pss_mib_by_process": readings[-1],
        "growth_mib_by_process": {
            name: value - readings[0].get(name, 0.0) for name, value in readings[-1].items()
        },
    }


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Load an engine, then start it once more."""
    settings = [f"engine.max_num_seqs={args.connections}", *args.set]
    if not args.local:
        settings += ["engine.executor=simulated", "engine.simulated_step_us=0"]
        settings += ["engine.simulated_token_us=0", "engine.max_num_batched_tokens=1024"]
        settings += [f"engine.num_kv_blocks={NUM_KV_BLOCKS}"]
    async with running_engine("memory", settings) as engine:
        figures = {"ready_s": engine.ready_s, **await read_memory(engine, args)}
    async with running_engine("memory", settings) as engine:
        figures["restart_ready_s"] = engine.ready_s
        figures["restart_cpu_s"] = sum(process.cpu_s() for process in engine.processes())
    return report.build("memory", figures, BARS, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("memory", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--requests", type=int, default=10_000, help="requests between first and last reading")
    add("--warmup", type=int, default=2_000, help="requests before the first reading")
    add("--connections", type=int, default=64, help="requests at once")
    add("--prompt-tokens", type=int, default=64, help="tokens of a prompt")
    add("--output-tokens", type=int, default=16, help="tokens of an answer")
    add("--local", action="store_true", help="the real model instead of a simulated one")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
