"""Put load on the tenants of configs/demo-tenants.toml and hold the promises against it.

Phases, each after the engine has become quiet:

    solo       an engine with one tenant and policy fcfs: what batch work could get at the most
    alone      the interactive tenant, then the canary, without anybody else
    idle       batch, all others quiet
    beside     batch beside the interactive tenant alone
    crowd      batch floods, a standard tenant is noisy, interactive trickles, the canary looks, an
               operator gives commands
    equal      two standard tenants of one weight with 1 and 10 long prompts in flight
    weighted   the same two with 10 each and weights 1 : 3, set by control command

Service is what the policy has charged, from the scheduler's page. "Own step" is the median time to
first token alone, a step under load the p99 gap between two tokens of the interactive tenant.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.config.file import load_config
from scripts.bench.benchmarks.tenants.figures import (
    CONFIG,
    Figures,
    answer_figures,
    comparisons,
    error_examples,
    sent_after,
    throughput,
)
from scripts.bench.benchmarks.tenants.loads import (
    Operator,
    Pages,
    Progress,
    Sizes,
    Tenant,
    tokens_of,
)
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine

VOCABULARY = (1000, 40000)
CHAT, CANARY = Sizes(48, 12), Sizes(16, 1)
CHAT_EVERY_S, CANARY_EVERY_S = 0.3, 1.0
BATCH, BATCH_STREAMS = Sizes(512, 128), 64
NOISE, NOISE_STREAMS = Sizes(512, 64), 16
LONG = Sizes(2048, 8)
SET_ATTEMPTS = 10
PHASES = ("solo", "alone", "idle", "beside", "crowd", "equal", "weighted")

BARS: Mapping[str, Sequence[report.Bar]] = {
    "idle": (report.Bar("idle.of_solo", ">=", 0.95),),
    "beside": (
        report.Bar("beside.of_solo", ">=", 0.60),
        report.Bar("beside.chat.missed_percent", "<=", 1, "%"),
    ),
    "crowd": (
        report.Bar("crowd.chat.missed_percent", "<=", 1, "%"),
        report.Bar("crowd.chat.rejected", "<=", 0),
        report.Bar("crowd.chat.ttft_over_allowed_ms", "<=", 0, "ms"),
        report.Bar("crowd.canary.ttft_over_allowed_ms", "<=", 0, "ms"),
        report.Bar("crowd.control.answer_ms.p99", "<=", 100, "ms"),
        report.Bar("crowd.control.unconfirmed", "<=", 0),
    ),
    "equal": (
        report.Bar("equal.ratio", ">=", 0.9),
        report.Bar("equal.ratio", "<=", 1.1),
    ),
    "weighted": (
        report.Bar("weighted.ratio", ">=", 2.7),
        report.Bar("weighted.ratio", "<=", 3.3),
    ),
}


@dataclass(frozen=True, slots=True)
class Rig:
    """A running engine, its tenants, and how long a phase takes."""

    engine: Engine
    pages: Pages
    tenants: Mapping[str, Tenant]
    admin: Client
    seconds: float
    settle_s: float

    def ends(self) -> tuple[float, float]:
        """Return when measuring begins and ends."""
        start = time.perf_counter() + self.settle_s
        return start, start + self.seconds

    async def between(self, since: float, until: float) -> tuple[Progress, Progress]:
        """Return the engine's progress at both moments."""
        await asyncio.sleep(max(0.0, since - time.perf_counter()))
        before = self.pages.read()
        await asyncio.sleep(max(0.0, until - time.perf_counter()))
        return before, self.pages.read()

    async def set(self, path: str, value: str) -> None:
        """Change a setting of the running engine; raises RuntimeError if it is refused.

        An answer that does not come in time is asked for again: asking twice is asking once.
        """
        body = {"path": path, "value": value}
        for _ in range(SET_ATTEMPTS):
            status, answer = await self.admin.post("/admin/commands/set", body)
            if status == 200:
                return
            if status != 504:
                break
        raise RuntimeError(f"set {path} {value}: {status} {answer}")


async def alone(rig: Rig) -> Figures:
    """Measure the interactive tenant and the canary without anybody else."""
    figures: Figures = {}
    for name, sizes, every_s in (("chat", CHAT, CHAT_EVERY_S), ("ops", CANARY, CANARY_EVERY_S)):
        tenant = rig.tenants[name]
        await tenant.request(sizes)
        tenant.timelines.clear()
        await tenant.trickle(every_s, sizes, time.perf_counter() + rig.seconds)
        figures["canary" if name == "ops" else name] = answer_figures(tenant.timelines)
    return figures


async def batch_alone(rig: Rig) -> Figures:
    """Measure the flood of batch work, all others quiet."""
    since, until = rig.ends()
    flood = asyncio.create_task(rig.tenants["nightly"].flood(BATCH_STREAMS, BATCH, until))
    before, after = await rig.between(since, until)
    await flood
    return throughput(before, after, 0)


async def beside(rig: Rig) -> Figures:
    """Measure batch work beside the interactive tenant, and that one's promises."""
    since, until = rig.ends()
    chat = rig.tenants["chat"]
    loads = asyncio.gather(
        rig.tenants["nightly"].flood(BATCH_STREAMS, BATCH, until),
        chat.trickle(CHAT_EVERY_S, CHAT, until),
    )
    before, after = await rig.between(since, until)
    await loads
    others = tokens_of(chat.timelines, before.at_s, after.at_s)
    figures = throughput(before, after, others)
    return figures | {"chat": answer_figures(sent_after(chat.timelines, since))}


async def crowd(rig: Rig) -> Figures:
    """Measure the interactive tenant and the canary under everything at once."""
    since, until = rig.ends()
    chat, canary = rig.tenants["chat"], rig.tenants["ops"]
    operator = Operator(rig.admin)
    before = rig.pages.read()
    await asyncio.gather(
        operator.work(until),
        rig.tenants["nightly"].flood(BATCH_STREAMS, BATCH, until),
        rig.tenants["alpha"].flood(NOISE_STREAMS, NOISE, until),
        chat.trickle(CHAT_EVERY_S, CHAT, until),
        canary.trickle(CANARY_EVERY_S, CANARY, until),
    )
    figures = {
        "chat": answer_figures(sent_after(chat.timelines, since)),
        "canary": answer_figures(sent_after(canary.timelines, since)),
        "control": operator.figures(),
        **throughput(before, rig.pages.read(), 0),
    }
    refused = rig.pages.read().rejections.get("chat", 0) - before.rejections.get("chat", 0)
    figures["chat"]["rejected"] = max(refused, figures["chat"]["rejected"])
    return figures


async def compete(rig: Rig, first: int, second: int) -> Figures:
    """Measure the service of two standard tenants with so many long prompts in flight."""
    since, until = rig.ends()
    loads = asyncio.gather(
        rig.tenants["alpha"].flood(first, LONG, until),
        rig.tenants["beta"].flood(second, LONG, until),
    )
    before, after = await rig.between(since, until)
    await loads
    names = ("alpha", "beta")
    service = [after.service[name] - before.service.get(name, 0) for name in names]
    ended = [
        sum(1 for each in rig.tenants[n].timelines if each.done and each.ended_s >= since)
        for n in names
    ]
    return {
        "ratio": round(service[1] / max(1, service[0]), 4),
        "service": dict(zip(names, service, strict=True)),
        "requests": dict(zip(names, ended, strict=True)),
        "error_examples": error_examples([t for n in names for t in rig.tenants[n].timelines]),
        **throughput(before, after, 0),
    }


async def equal(rig: Rig) -> Figures:
    """Measure two tenants of one weight, one of which asks for ten times as much."""
    return await compete(rig, 1, 10)


async def weighted(rig: Rig) -> Figures:
    """Measure two tenants of weights 1 and 3 that ask for the same."""
    await rig.set("tenants.beta.weight", "3")
    figures = await compete(rig, 10, 10)
    await rig.set("tenants.beta.weight", "1")
    return figures


RUNS = {
    "alone": alone,
    "idle": batch_alone,
    "beside": beside,
    "crowd": crowd,
    "equal": equal,
    "weighted": weighted,
}


@asynccontextmanager
async def rig_of(
    args: argparse.Namespace, config: Path | None, settings: Sequence[str]
) -> AsyncIterator[Rig]:
    """Start an engine, with the demo's tenants or, without `config`, one that plays them all."""
    names = [tenant.name for tenant in load_config(CONFIG).tenants]
    prompts = Prompts(*VOCABULARY, args.seed)
    settings = [*settings, *args.set]
    async with running_engine("tenants", settings, config) as engine, AsyncExitStack() as stack:
        admin = await stack.enter_async_context(engine.admin())
        tenants = {}
        for name in names:
            key = f"sk-demo-{name}" if config else ""
            client = await stack.enter_async_context(Client(engine.url, key))
            tenants[name] = Tenant(client, await client.model(), prompts)
        yield Rig(engine, Pages(engine), tenants, admin, args.seconds, args.settle)


async def measure(args: argparse.Namespace) -> Figures:
    """Run the phases that were asked for and return their figures by phase."""
    figures: Figures = {}
    if "solo" in args.phases:
        print("tenants: solo", file=sys.stderr)
        async with rig_of(args, None, ["scheduler.policy=fcfs"]) as rig:
            figures["solo"] = await batch_alone(rig)
    async with rig_of(args, CONFIG, []) as rig:
        for phase in args.phases:
            if phase == "solo":
                continue
            print(f"tenants: {phase}", file=sys.stderr)
            for tenant in rig.tenants.values():
                tenant.timelines.clear()
            figures[phase] = await RUNS[phase](rig)
            print(f"tenants: {json.dumps(figures[phase])}", file=sys.stderr)
            await rig.pages.wait_quiet()
    return figures | comparisons(figures)


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure and return the report; the bars are those of the phases that ran."""
    figures = await measure(args)
    bars = [bar for phase in args.phases for bar in BARS.get(phase, ())]
    return report.build("tenants", figures, bars, command=sys.argv[1:], seed=args.seed)


def phases(text: str) -> tuple[str, ...]:
    """Read a list of phases, returned in the order in which they run."""
    wanted = text.split(",")
    unknown = set(wanted) - set(PHASES)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: use {', '.join(PHASES)}")
    return tuple(phase for phase in PHASES if phase in wanted)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("tenants", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--seconds", type=float, default=30.0, help="how long each phase is measured")
    add("--settle", type=float, default=8.0, help="load before that, seconds")
    add("--phases", type=phases, default=PHASES, help=f"of {', '.join(PHASES)} (default: all)")
    add("--seed", type=int, default=1, help="of the prompts")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
