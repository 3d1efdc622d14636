"""The ways to load a server, each a coroutine that applies one load and returns its figures.

Owns: when a request is sent and how big it is. Never knows: the command line, bars, a second
server. Latency counts from the moment the load wanted a request sent, so a server that stalls the
client cannot hide it. Prompts are token ids that never share a prefix.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scripts.bench.benchmarks.load.arrivals import Arrival, poisson, read_trace
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """What to apply; the fields are the command-line options of the same name."""

    streams: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    rate: float
    duration: float
    decoders: int
    long_prompt: int
    every: float
    quiet: float
    repeats: int
    warmup: int
    trace: str
    scale: float
    limit: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Target:
    """A server under load, the model to ask for, and a source of fresh prompts."""

    client: Client
    model: str
    prompts: Prompts

    async def request(
        self,
        prompt_tokens: int,
        output_tokens: int,
        intended_s: float = 0.0,
        until: float = float("inf"),
        headers: Mapping[str, str] | None = None,
    ) -> Timeline:
        """Stream one greedy completion of exactly that size."""
        body = {
            "model": self.model,
            "prompt": self.prompts.make(prompt_tokens),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        timeline = Timeline(intended_s=intended_s)
        return await self.client.stream("/v1/completions", body, timeline, until, headers=headers)


def summarize(timelines: Sequence[Timeline], wall_s: float) -> Figures:
    """Return counts, rates and latencies of some requests that ran within `wall_s` seconds."""
    good = [t for t in timelines if t.chunk_s and not t.error]
    failed = [t for t in timelines if t.error]
    output_tokens = sum(t.output_tokens or len(t.chunk_s) for t in good)
    prompt_tokens = sum(t.prompt_tokens for t in good)
    return {
        "requests": len(timelines),
        "completed": len(good),
        "errors": len(failed),
        "error_examples": sorted({t.error for t in failed})[:3],
        "wall_s": round(wall_s, 3),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "prompt_tok_s": round(prompt_tokens / wall_s, 2),
        "output_tok_s": round(output_tokens / wall_s, 2),
        "ttft_ms": report.spread_ms([t.ttft_s for t in good]),
        "itl_ms": report.spread_ms([gap for t in good for gap in t.itl_s()]),
        "e2e_ms": report.spread_ms([t.e2e_s for t in good]),
        "client_lag_ms": report.spread_ms([t.lag_s for t in timelines]),
    }


async def run_closed(target: Target, load: Load) -> Figures:
    """Keep `streams` requests going until `requests` are done."""
    left = iter(range(load.requests or 2 * load.streams))
    timelines: list[Timeline] = []

    async def worker() -> None:
        for _ in left:
            timeline = await target.request(load.prompt_tokens, load.output_tokens)
            timelines.append(timeline)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(load.streams)))
    return summarize(timelines, time.perf_counter() - start)


async def run_arrivals(target: Target, arrivals: Sequence[Arrival]) -> Figures:
    """Send each request at its time, however the server is doing."""
    start = time.perf_counter()

    async def send(arrival: Arrival) -> Timeline:
        intended = start + arrival.at_s
        await asyncio.sleep(max(0.0, intended - time.perf_counter()))
        headers = {"x-headrace-class": arrival.traffic_class} if arrival.traffic_class else None
        return await target.request(
            arrival.prompt_tokens, arrival.output_tokens, intended, headers=headers
        )

    timelines = await asyncio.gather(*(send(arrival) for arrival in arrivals))
    figures = summarize(timelines, time.perf_counter() - start)
    figures["offered_req_s"] = round(len(arrivals) / max(arrivals[-1].at_s, 1e-9), 3)
    return figures


async def run_open(target: Target, load: Load) -> Figures:
    """Poisson arrivals at `rate` a second for `duration` seconds."""
    arrivals = poisson(load.rate, load.duration, load.prompt_tokens, load.output_tokens)
    return await run_arrivals(target, arrivals)


async def run_trace(target: Target, load: Load) -> Figures:
    """The arrivals of a CSV file, `scale` times as fast."""
    arrivals, num_clipped = read_trace(load.trace, load.scale, load.limit, load.max_tokens)
    return {**await run_arrivals(target, arrivals), "clipped_requests": num_clipped}


async def run_mixed(target: Target, load: Load) -> Figures:
    """`decoders` streams go on; after a quiet time a long prompt arrives every `every` seconds."""
    start = time.perf_counter()
    loaded = start + load.quiet
    end = loaded + load.duration
    decoding: list[Timeline] = []

    async def decoder() -> None:
        while time.perf_counter() < end:
            decoding.append(await target.request(load.prompt_tokens, 1024, until=end))
            if decoding[-1].error:
                await asyncio.sleep(0.2)

    async def long_prompt(intended: float) -> Timeline:
        await asyncio.sleep(max(0.0, intended - time.perf_counter()))
        return await target.request(load.long_prompt, 8, intended)

    times = [loaded + k * load.every for k in range(int(load.duration / load.every))]
    long, _ = await asyncio.gather(
        asyncio.gather(*(long_prompt(at) for at in times)),
        asyncio.gather(*(decoder() for _ in range(load.decoders))),
    )
    return mixed_figures(decoding, long, loaded, end)


def mixed_figures(
    decoding: Sequence[Timeline], long: Sequence[Timeline], loaded: float, end: float
) -> Figures:
    """Return the decoders' inter-token latencies from `loaded` to `end`, and of the time before.

    A stream that was still waiting at the end counts with the time it had waited.
    """
    gaps: list[float] = []
    quiet: list[float] = []
    for timeline in decoding:
        times = [*timeline.chunk_s, end] if timeline.cut and timeline.chunk_s else timeline.chunk_s
        for early, late in pairwise(times):
            (gaps if late > loaded else quiet).append(late - early)
    num_chunks = sum(1 for t in decoding for at in t.chunk_s if loaded <= at <= end)
    done = [t for t in long if t.chunk_s and not t.error]
    failed = [t.error for t in (*decoding, *long) if t.error]
    return {
        "itl_ms": report.spread_ms(gaps),
        "quiet_itl_ms": report.spread_ms(quiet),
        "decoder_tok_s": round(num_chunks / (end - loaded), 2),
        "long_prompts": len(long),
        "long_completed": len(done),
        "long_ttft_ms": report.spread_ms([t.ttft_s for t in done]),
        "errors": len(failed),
        "error_examples": sorted(set(failed))[:3],
    }


async def run_prefill(target: Target, load: Load) -> Figures:
    """Long prompts one after the other, one output token each."""
    start = time.perf_counter()
    timelines = [await target.request(load.long_prompt, 1) for _ in range(load.repeats)]
    figures = summarize(timelines, time.perf_counter() - start)
    if ttft_ms := figures["ttft_ms"]:
        figures["prefill_tok_s"] = round(load.long_prompt / ttft_ms["p50"] * 1e3, 2)
    return figures


async def run_single(target: Target, load: Load) -> Figures:
    """One stream after the other: the latency of an idle engine."""
    start = time.perf_counter()
    timelines = [
        await target.request(load.prompt_tokens, load.output_tokens) for _ in range(load.repeats)
    ]
    figures = summarize(timelines, time.perf_counter() - start)
    rates = [
        (t.output_tokens - 1) / (t.chunk_s[-1] - t.chunk_s[0])
        for t in timelines
        if len(t.chunk_s) > 1
    ]
    if rates:
        figures["decode_tok_s"] = round(statistics.median(rates), 2)
    return figures


RUNS: dict[str, Callable[[Target, Load], Awaitable[Figures]]] = {
    "closed": run_closed,
    "open": run_open,
    "mixed": run_mixed,
    "prefill": run_prefill,
    "single": run_single,
    "trace": run_trace,
}
