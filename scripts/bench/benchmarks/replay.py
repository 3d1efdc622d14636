"""`scripts/bench/replay`: does the simulator foretell what the real engine does?

An engine of the benchmark's own serves a seeded mixture of tenants and classes, with a phase that
it cannot carry, so that some requests are refused. `headrace ctl record-trace` writes what came in,
`headrace simulate --hardware this-machine` replays it, and both are held against each other:

    real         as the clients saw it: time to the first token, gaps between tokens, refusals
    simulated    as the simulator says, for the same arrivals

The load is a share of what the engine carries, which a closed loop measures first; its requests are
not replayed. What http refuses at the door no recording knows of: refused requests are replayed as
the clients sent them. The first tenth of the requests is left out on both sides.
"""

import argparse
import asyncio
import csv
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.benchmarks.load.modes import Target
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.report import Bar

VOCABULARY = (1000, 40_000)
WARM_UP_SHARE = 0.1
WARM_UP_STREAMS = 16
PHASES = ((0.3, 0.5), (0.25, 0.8), (0.2, 3.0), (0.25, 0.4))  # share of the time, of the capacity
SERVED = ("length", "stopped")
REFUSED = "refused"
MAX_QUEUED = 24  # requests, so that the overload is felt within seconds


@dataclass(frozen=True, slots=True)
class Kind:
    """One tenant's requests of one class."""

    tenant: str
    traffic_class: str
    share: float
    prompt_tokens: tuple[int, int]  # from, to
    output_tokens: tuple[int, int]


KINDS = (
    Kind("chat", "interactive", 0.45, (30, 250), (10, 60)),
    Kind("tools", "standard", 0.35, (100, 600), (20, 80)),
    Kind("nightly", "batch", 0.2, (300, 1200), (20, 60)),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to be sent `at_s` after the start."""

    at_s: float
    kind: Kind
    prompt_tokens: int
    output_tokens: int


def plan(seconds: float, capacity_rps: float, seed: int) -> list[Planned]:
    """Return Poisson arrivals over `seconds`, phase by phase."""
    source, planned, start_s = random.Random(seed), [], 0.0
    for share, load in PHASES:
        end_s = start_s + share * seconds
        now_s = start_s + source.expovariate(load * capacity_rps)
        while now_s < end_s:
            planned.append(drawn(source, now_s))
            now_s += source.expovariate(load * capacity_rps)
        start_s = end_s
    return planned


def drawn(source: random.Random, at_s: float) -> Planned:
    """Return a request of a random kind and size."""
    [kind] = source.choices(KINDS, [kind.share for kind in KINDS])
    return Planned(
        at_s, kind, source.randint(*kind.prompt_tokens), source.randint(*kind.output_tokens)
    )


def key_of(tenant: str) -> str:
    """Return the API key of a tenant of this benchmark's own engine."""
    return f"bench-{tenant}"


def settings() -> list[str]:
    """Return the `--set` settings of the engine, the same for the simulation."""
    tenants = ", ".join(
        f'{{name = "{name}", key_sha256 = ["{hashlib.sha256(key_of(name).encode()).hexdigest()}"]}}'
        for name in (kind.tenant for kind in KINDS)
    )
    return [f"tenants=[{tenants}]", f"scheduler.max_queued_requests={MAX_QUEUED}"]


class Clients:
    """A client for each tenant."""

    def __init__(self, engine: Engine, seed: int) -> None:
        """Speak to `engine`; prompts never share a prefix."""
        self._engine = engine
        self._prompts = Prompts(*VOCABULARY, seed)
        self._targets: dict[str, Target] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Clients":
        """Open the sessions."""
        for kind in KINDS:
            client = Client(self._engine.url, key_of(kind.tenant))
            await self._stack.enter_async_context(client)
            self._targets[kind.tenant] = Target(client, await client.model(), self._prompts)
        return self

    async def __aexit__(self, *fault: object) -> None:
        """Close them."""
        await self._stack.aclose()

    async def send(self, each: Planned, intended_s: float = 0.0) -> Timeline:
        """Send one request now and read its answer to the end."""
        return await self._targets[each.kind.tenant].request(
            each.prompt_tokens,
            each.output_tokens,
            intended_s,
            headers={"x-headrace-class": each.kind.traffic_class},
        )

    async def capacity_rps(self, seconds: float, seed: int) -> tuple[float, int]:
        """Return requests a second in a closed loop, and how many were sent for it."""
        source, start_s, num_done = random.Random(seed), time.perf_counter(), 0

        async def worker() -> None:
            nonlocal num_done
            while time.perf_counter() < start_s + seconds:
                await self.send(drawn(source, 0.0))
                num_done += 1

        await asyncio.gather(*(worker() for _ in range(WARM_UP_STREAMS)))
        return num_done / (time.perf_counter() - start_s), num_done

    async def run(self, planned: Sequence[Planned]) -> list[Timeline]:
        """Send each request at its time, however the engine is doing."""
        start_s = time.perf_counter()

        async def at_its_time(each: Planned) -> Timeline:
            intended_s = start_s + each.at_s
            await asyncio.sleep(max(0.0, intended_s - time.perf_counter()))
            return await self.send(each, intended_s)

        return await asyncio.gather(*(at_its_time(each) for each in planned))


def real_figures(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return what clients saw, the first tenth left out."""
    chosen = timelines[int(WARM_UP_SHARE * len(timelines)) :]
    served = [each for each in chosen if each.chunk_s and not each.error]
    gaps = [gap for each in served for gap in each.itl_s()]
    return {
        "requests": len(chosen),
        "refused": len(chosen) - len(served),
        "ttft_ms": report.spread_ms([each.ttft_s for each in served]),
        "itl_ms": report.spread_ms(gaps),
        "client_lag_ms": report.spread_ms([each.lag_s for each in chosen]),
    }


def simulated_figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the simulator says, in the same form."""
    overall = document["cases"][0]["all"]
    return {
        "requests": overall["num_requests"],
        "refused": overall["num_refused"],
        "ttft_ms": {name: 1e3 * value for name, value in overall["ttft_s"].items()},
        "itl_ms": {name: 1e3 * value for name, value in overall["itl_s"].items()},
    }


def errors(real: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, float]:
    """Return how far off the simulator is: of times as a share, of refusals in shares of all."""
    found = {
        f"{name}_{point}": abs(simulated[f"{name}_ms"][point] / real[f"{name}_ms"][point] - 1)
        for name in ("ttft", "itl")
        for point in ("p50", "p99")
    }
    apart = abs(simulated["refused"] - real["refused"])
    return found | {"refused": apart / max(1, real["requests"])}


BARS = (
    *(Bar(f"error.{name}_p50", "<=", 0.15) for name in ("ttft", "itl")),
    *(Bar(f"error.{name}_p99", "<=", 0.30) for name in ("ttft", "itl")),
    Bar("error.refused", "<=", 0.05),
    Bar("real.refused", ">=", 1),
)


def headrace(module: str, *arguments: str) -> str:
    """Run one of our commands and return its output; raises RuntimeError with its complaint."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


async def record(engine: Engine, first: int, path: Path) -> dict[str, Any]:
    """Write what the engine has served from row `first` on; return what the command says."""
    arguments = ("ctl", "record-trace", str(path), "--first", str(first))
    text = await asyncio.to_thread(
        headrace, "frontends.cli.main", *arguments, "--name", engine.name, "--json"
    )
    recorded: dict[str, Any] = json.loads(text)
    return recorded


def complete(path: Path, planned: Sequence[Planned], timelines: Sequence[Timeline]) -> None:
    """Put the requests that were refused into a recorded trace, all of them as they were sent."""
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or ())
    served = [row for row in rows if row["outcome"] in SERVED]
    refused = [
        dict.fromkeys(columns, "")
        | {
            "arrival_s": f"{each.at_s - planned[0].at_s:.6f}",
            "prompt_tokens": str(each.prompt_tokens),
            "output_tokens": str(each.output_tokens),
            "tenant": each.kind.tenant,
            "class": each.kind.traffic_class,
            "outcome": REFUSED,
        }
        for each, timeline in zip(planned, timelines, strict=True)
        if timeline.error or not timeline.chunk_s
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(sorted(served + refused, key=lambda row: float(row["arrival_s"])))


async def simulate(path: Path, seed: int, more: Sequence[str]) -> dict[str, Any]:
    """Replay a recorded trace on this machine, with the settings of the engine."""
    flags = [word for each in [*settings(), *more] for word in ("--set", each)]
    text = await asyncio.to_thread(
        headrace, "core.simulation.cli", "--trace", str(path), "--hardware", "this-machine",
        "--seed", str(seed), "--json", *flags,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(text)
    return document


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Serve, record, replay, compare."""
    with tempfile.TemporaryDirectory(prefix="headrace-replay-") as folder:
        path = args.trace or Path(folder) / "recorded.csv"
        async with running_engine("replay", [*settings(), *args.set]) as engine:
            async with Clients(engine, args.seed) as clients:
                capacity, num_before = await clients.capacity_rps(args.warm_up, args.seed)
                planned = plan(args.seconds, capacity, args.seed + 1)
                timelines = await clients.run(planned)
            recorded = await record(engine, num_before, path)
            complete(path, planned, timelines)
        if not recorded["machine"]:
            raise RuntimeError("the engine ran too few steps to be known: give it more --seconds")
        document = await simulate(path, args.seed, args.set)
        outcomes = count_outcomes(path)
    real, simulated = real_figures(timelines), simulated_figures(document)
    figures = {
        "capacity_rps": capacity,
        "recorded_requests": recorded["num_requests"],
        "outcomes": outcomes,
        "simulated_refusals": document["cases"][0]["refusals"],
        "real": real,
        "simulated": simulated,
        "error": errors(real, simulated),
    }
    return report.build("replay", figures, BARS, command=sys.argv[1:], seed=args.seed)


def count_outcomes(path: Path) -> dict[str, int]:
    """Return how many requests of a recorded trace ended in which way."""
    counts: dict[str, int] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
    return counts


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("replay", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--seconds", type=float, default=180.0, help="of the load (default: 180)")
    add("--warm-up", type=float, default=20.0, help="seconds of the closed loop before it (20)")
    add("--seed", type=int, default=1, help="of the load and of the simulation")
    add("--trace", type=Path, metavar="FILE", help="keep the recorded trace here")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
