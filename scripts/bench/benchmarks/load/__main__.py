"""Load a server and measure it: closed loop, open loop, a trace, long prompts beside decoders.

Without a mode the two gates run: `closed` and `mixed`. With `--peer` another server is measured in
turns with the first, and the figures are medians and ratios.
"""

import argparse
import asyncio
import gc
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from scripts.bench.benchmarks.load.modes import RUNS, Figures, Load, Target
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts
from scripts.bench.harness.command import parser_of

GATES = ("closed", "mixed")


def default_bars(modes: Sequence[str], load: Load) -> list[report.Bar]:
    """Return the bars of the modes; those of a certain load are only held against that load."""
    bars = [report.Bar(f"{mode}.errors", "<=", 0) for mode in modes]
    if "closed" in modes and (load.streams, load.prompt_tokens, load.output_tokens) == (
        32,
        128,
        128,
    ):
        bars.append(report.Bar("closed.output_tok_s", ">=", 350, "tok/s"))
    if "mixed" in modes and (load.decoders, load.long_prompt, load.every) == (16, 2048, 3.0):
        bars.append(report.Bar("mixed.itl_ms.p99", "<=", 250, "ms"))
        bars.append(report.Bar("mixed.itl_ms.max", "<=", 500, "ms"))
    return bars


async def measure(args: argparse.Namespace, load: Load, url: str, model: str, seed: int) -> Figures:
    """Run every mode once against `url` and return its figures by mode."""
    figures: Figures = {}
    low, high = args.vocab
    async with Client(url, args.key) as client:
        target = Target(client, model or await client.model(), Prompts(low, high, seed))
        for mode in args.modes:
            await asyncio.gather(
                *(target.request(load.prompt_tokens, 4) for _ in range(load.warmup))
            )
            cpu_s, start = _cpu_s(), time.perf_counter()
            figures[mode] = await RUNS[mode](target, load)
            busy = (_cpu_s() - cpu_s) / (time.perf_counter() - start)
            figures[mode]["client_cpu_percent"] = round(100 * busy, 1)
    return figures


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure_pairs(args: argparse.Namespace, load: Load) -> tuple[Figures, list[Figures]]:
    """Alternate with the peer; return our medians, `peer` and `ratio` with them, and the pairs."""
    pairs: list[Figures] = []
    for index in range(args.pairs):
        pair: Figures = {}
        order = (("ours", args.url, args.model), ("peer", args.peer, args.peer_model))
        for name, url, model in order if index % 2 == 0 else order[::-1]:
            pair[name] = await measure(args, load, url, model, args.seed + index)
        pairs.append(pair)
    ours, peer = (medians([pair[name] for pair in pairs]) for name in ("ours", "peer"))
    ratio = medians([ratios(pair["ours"], pair["peer"]) for pair in pairs])
    return {**ours, "peer": peer, "ratio": ratio}, pairs


def medians(figures: Sequence[Mapping[str, Any]]) -> Figures:
    """Return the median of each number over several nested figures; other values are left out."""
    result: Figures = {}
    for name, first in figures[0].items():
        values = [each[name] for each in figures if name in each]
        if isinstance(first, Mapping):
            result[name] = medians(values)
        elif isinstance(first, int | float):
            result[name] = statistics.median(values)
    return result


def ratios(ours: Mapping[str, Any], peer: Mapping[str, Any]) -> Figures:
    """Return ours / peer for each number that both have and that is not zero at the peer."""
    result: Figures = {}
    for name, value in ours.items():
        other = peer.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            result[name] = ratios(value, other)
        elif isinstance(value, int | float) and isinstance(other, int | float) and other:
            result[name] = round(value / other, 4)
    return result


def id_range(text: str) -> tuple[int, int]:
    """Read `LOW:HIGH`."""
    low, _, high = text.partition(":")
    if not 0 <= int(low) < int(high):
        raise ValueError(text)
    return int(low), int(high)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("load", __doc__)
    add = parse.add_argument
    add(
        "mode",
        nargs="?",
        choices=[m for m in RUNS if m != "trace"],
        help="default: closed, then mixed",
    )
    add("--url", required=True, help="server under test, e.g. http://127.0.0.1:8000")
    add("--model", default="", help="default: the first of /v1/models")
    add("--key", default="", help="API key")
    add(
        "--seed",
        type=int,
        default=0,
        help="of the prompts; 0 = from the clock, so that runs differ",
    )
    add("--vocab", type=id_range, default=(1000, 40000), metavar="LOW:HIGH", help="ids for prompts")
    add("--streams", type=int, default=32, help="closed: requests going at once")
    add("--requests", type=int, default=0, help="closed: in all (default: twice the streams)")
    add("--prompt-tokens", type=int, default=128)
    add("--output-tokens", type=int, default=128)
    add("--rate", type=float, default=1.0, help="open: requests a second")
    add("--duration", type=float, default=30.0, help="open, mixed: seconds")
    add("--decoders", type=int, default=16, help="mixed: streams that decode")
    add("--long-prompt", type=int, default=2048, help="mixed, prefill: tokens")
    add("--every", type=float, default=3.0, help="mixed: seconds between long prompts")
    add("--quiet", type=float, default=6.0, help="mixed: seconds before the first long prompt")
    add("--repeats", type=int, default=5, help="prefill, single: requests")
    add("--warmup", type=int, default=4, help="short requests before each mode")
    add(
        "--trace",
        default="",
        metavar="CSV",
        help="arrival_s,prompt_tokens,output_tokens[,tenant,class]",
    )
    add("--scale", type=float, default=1.0, help="trace: times as fast")
    add("--limit", type=int, default=0, help="trace: only the first requests")
    add("--max-tokens", type=int, default=8192, help="trace: longer requests are cut to this")
    add("--peer", default="", metavar="URL", help="measure this server too, in turns")
    add("--peer-model", default="")
    add("--pairs", type=int, default=5, help="with --peer: turns")
    add("--bar", type=report.parse_bar, action="append", default=[], metavar="NAME>=LIMIT",
        help="a further limit, e.g. 'ratio.closed.output_tok_s>=1.05'")  # fmt: skip
    return parse


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure as the arguments say and return the report."""
    args.modes = ["trace"] if args.trace else [args.mode] if args.mode else list(GATES)
    args.seed = args.seed or time.time_ns() % 2**32
    load = Load(**{name: getattr(args, name) for name in Load.__slots__})
    if args.peer:
        figures, pairs = await measure_pairs(args, load)
    else:
        figures, pairs = await measure(args, load, args.url, args.model, args.seed), []
    bars = [*default_bars(args.modes, load), *args.bar]
    return report.build("load", figures, bars, command=sys.argv[1:], seed=args.seed, pairs=pairs)


def main() -> int:
    """Run the command line; the exit status is 1 if a bar fails."""
    args = parser().parse_args()
    gc.freeze()
    try:
        return report.emit(uvloop.run(run(args)), args.json)
    except (RuntimeError, OSError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
