"""Measure what a streamed token costs in front of the scheduler: CPU of http and of the tokenizer.

The executor is simulated; the client counts bytes and parses nothing, in a process of its own. Two
loads: `paced`, where a step takes as long as `--step-us` says and every token of every stream is an
event of its own, and `full`, where a step takes no time and whoever is slowest sets the pace. CPU
time is the kernel's count for each process over the window, so other work on the machine changes
it little; tokens are those that the tokenizer has decoded. `tokens_s_by_cpu` is what the cores of
this machine would carry by that count, the client included, if nothing else ran on them.
"""

import argparse
import asyncio
import os
import sys
import time
from typing import Any

import orjson

from ipc.pages import TOKENIZER_PAGE
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.processes import Process, look_up
from scripts.bench.harness.raw_process import RawStreams, raw_streams
from scripts.bench.harness.raw_streams import Load

VOCABULARY = (1000, 40000)
PROMPT_TOKENS = 16
NUM_CORES = len(os.sched_getaffinity(0))
BARS = (
    report.Bar("full.tokens_s", ">=", 30_000, "tok/s"),
    report.Bar("paced.http_us", "<=", 20, "µs of CPU a token"),
    report.Bar("paced.tokenizer_us", "<=", 15, "µs of CPU a token"),
    report.Bar("full.failures", "<=", 0, "streams"),
    report.Bar("paced.failures", "<=", 0, "streams"),
)


async def load_of(engine: Engine, args: argparse.Namespace) -> Load:
    """Return completions of `--output-tokens`, each with a prompt of its own."""
    async with Client(engine.url) as client:
        model = await client.model()
    prompts = Prompts(*VOCABULARY, seed=1)
    bodies = [
        orjson.dumps(
            {
                "model": model,
                "prompt": prompts.make(PROMPT_TOKENS),
                "max_tokens": args.output_tokens,
                "ignore_eos": True,
                "stream": True,
            }
        ).decode()
        for _ in range(args.connections)
    ]
    return Load(engine.port, "/v1/completions", args.connections, bodies)


def decoded_tokens(engine: Engine, num_tokenizers: int) -> int:
    """Return what all tokenizers have decoded since the start."""
    pages = (engine.page(f"tokenizer.{k}", TOKENIZER_PAGE) for k in range(num_tokenizers))
    return sum(int(page.read().page["decoded_tokens"]) for page in pages)


async def watch(engine: Engine, client: RawStreams, seconds: float) -> dict[str, Any]:
    """Return rates and CPU by process over a window."""
    processes = [*engine.processes(), _process_of(client)]
    num_tokenizers = len(engine.children("tokenizer"))
    before = await client.counts()
    tokens, start = decoded_tokens(engine, num_tokenizers), time.perf_counter()
    cpu_s = [process.cpu_s() for process in processes]
    await asyncio.sleep(seconds)
    used_s = [process.cpu_s() - old for process, old in zip(processes, cpu_s, strict=True)]
    tokens = decoded_tokens(engine, num_tokenizers) - tokens
    wall_s = time.perf_counter() - start
    after = await client.counts()
    by_kind: dict[str, float] = {}
    for process, used in zip(processes, used_s, strict=True):
        by_kind[process.kind] = by_kind.get(process.kind, 0.0) + used
    total_us = 1e6 * sum(used_s) / max(1, tokens)
    return {
        "tokens_s": tokens / wall_s,
        "tokens_s_by_cpu": NUM_CORES * 1e6 / total_us,
        "tokens_an_event": tokens / max(1, after.num_events - before.num_events),
        "bytes_a_token": (after.num_bytes - before.num_bytes) / max(1, tokens),
        "failures": after.num_failures,
        **{f"{kind}_us": 1e6 * used / max(1, tokens) for kind, used in by_kind.items()},
    }


def _process_of(client: RawStreams) -> Process:
    process = look_up(client.process.pid)
    assert process is not None, "the client has ended"
    return process


async def measure(args: argparse.Namespace, step_us: int) -> dict[str, Any]:
    """Run one load against an engine of its own."""
    settings = [
        "engine.executor=simulated",
        f"engine.simulated_step_us={step_us}",
        "engine.simulated_token_us=0",
        f"engine.max_num_seqs={args.connections}",
        f"engine.max_num_batched_tokens={4 * args.connections}",
        "engine.num_kv_blocks=65536",
        f"http.processes={args.http_processes}",
        *args.set,
    ]
    async with (
        running_engine("frontend", settings) as engine,
        raw_streams(await load_of(engine, args)) as client,
    ):
        await asyncio.sleep(args.settle)
        return await watch(engine, client, args.seconds)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure both loads."""
    figures = {"paced": await measure(args, args.step_us), "full": await measure(args, 0)}
    return report.build("frontend", figures, BARS, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("frontend", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--connections", type=int, default=256, help="streams at once")
    add("--output-tokens", type=int, default=1024, help="tokens of a stream")
    add("--step-us", type=int, default=8000, help="time of a step in `paced`, µs")
    add("--http-processes", type=int, default=1, help="http processes of the engine")
    add("--settle", type=float, default=2.0, help="seconds of load before the window")
    add("--seconds", type=float, default=8.0, help="length of the window")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
