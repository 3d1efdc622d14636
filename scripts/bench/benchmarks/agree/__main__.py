"""Hold every place that shows numbers against what clients counted themselves.

A seeded mix of requests runs against an engine of our own: streams and whole answers, several
tenants in several classes, refusals for several reasons, clients that leave, and one process (the
executor, or the scheduler) killed meanwhile. Then `/metrics` of both ports, `ctl status`, `ctl
usage`, `top --once` and the clients' own counts must be the same for counters, and within one
bucket for quantiles of times; the sums over tenants must be the totals; and no counter may have
fallen at any time. A scheduler that is killed takes what it had counted after it published last
with it, up to 50 ms: what clients have counted is not held against it then.
"""

import argparse
import asyncio
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipc.pages import HTTP_PAGE, SCHEDULER_PAGE
from scripts.bench.benchmarks.agree.sources import (
    Places,
    Watch,
    differences,
    differs,
    read_places,
    scraped,
    told,
)
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Timeline
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine

SEED = 11
MAX_MODEL_LEN = 1024
SETTINGS = (
    "engine.executor=simulated", "engine.simulated_step_us=4000", "engine.max_num_seqs=16",
    f"engine.max_model_len={MAX_MODEL_LEN}", "engine.num_kv_blocks=512",
)  # fmt: skip
SETTLE_S = 20.0
VOCABULARY = range(10, 200)  # ids that every model has
CONCURRENCY = 24
EXACT = ("ports", "status", "top", "usage", "sums", "monotone", "quantiles", "faults")
BARS = (
    *(report.Bar(f"differences.{name}", "<=", 0) for name in EXACT),
    report.Bar("restarts", ">=", 1),
    report.Bar("completed", ">=", 1),
    report.Bar("cut", ">=", 1),
    report.Bar("reasons", ">=", 3),
)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant of the mix: its part of all requests, and how its requests are."""

    name: str
    share: float
    default_class: str
    settings: str = ""
    stream: float = 0.5  # share of its requests that are streams
    prompt_tokens: tuple[int, int] = (4, 160)
    leaves: bool = False

    @property
    def key(self) -> str:
        """Its API key, of no value to anybody: the engine is ours and on loopback."""
        return f"sk-agree-{self.name}"

    def toml(self) -> str:
        """Return its part of the configuration."""
        digest = hashlib.sha256(self.key.encode()).hexdigest()
        return (
            f'[[tenants]]\nname = "{self.name}"\nkey_sha256 = ["{digest}"]\n'
            f'default_class = "{self.default_class}"\n{self.settings}\n'
        )


TENANTS = (
    Tenant("streams", 0.25, "interactive", stream=1.0),
    Tenant("whole", 0.2, "standard", stream=0.0),
    Tenant("mixed", 0.2, "batch"),
    Tenant("leaver", 0.1, "standard", stream=1.0, leaves=True),
    Tenant("poor", 0.1, "standard", settings="tokens_per_minute = 300\nburst_tokens = 200"),
    Tenant("halted", 0.05, "standard"),
    Tenant("long", 0.05, "standard", prompt_tokens=(MAX_MODEL_LEN, MAX_MODEL_LEN + 50)),
    Tenant("narrow", 0.05, "batch", settings="max_queued_requests = 1\nmax_concurrency = 1"),
)


@dataclass(slots=True)
class Counts:
    """What the clients of one tenant have counted."""

    completed: int = 0
    cut: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Load:
    """What runs in parallel, and what came of it."""

    engine: Engine
    model: str
    random: random.Random
    counts: dict[str, Counts]

    async def send(self, tenant: Tenant, client: Client) -> None:
        """Send one request of a tenant and count what came of it."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": self.random.choices(VOCABULARY, k=self.random.randint(*tenant.prompt_tokens)),
            "max_tokens": 200 if tenant.leaves else self.random.randint(1, 24),
            "ignore_eos": True,
        }
        if self.random.random() < tenant.stream:
            leave_after = 2 if tenant.leaves else float("inf")
            timeline = await client.stream(
                "/v1/completions", body, Timeline(), leave_after=leave_after
            )
            self._count_stream(self.counts[tenant.name], timeline)
        else:
            await self._send_whole(self.counts[tenant.name], client, body)

    def _count_stream(self, counts: Counts, timeline: Timeline) -> None:
        if timeline.cut:
            counts.cut += 1
        elif timeline.done:
            counts.completed += 1
            counts.prompt_tokens += timeline.prompt_tokens
            counts.generated_tokens += timeline.output_tokens
            counts.ttft_s.append(timeline.ttft_s)
            counts.e2e_s.append(timeline.e2e_s)
        else:
            _count_refusal(counts, timeline.error_code, timeline.error)

    async def _send_whole(self, counts: Counts, client: Client, body: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        status, answer = await client.post("/v1/completions", body)
        if status != 200:
            code = answer["error"]["code"] if isinstance(answer, dict) else None
            _count_refusal(counts, code or "", f"{status} {answer}")
            return
        counts.completed += 1
        counts.prompt_tokens += answer["usage"]["prompt_tokens"]
        counts.generated_tokens += answer["usage"]["completion_tokens"]
        counts.e2e_s.append(loop.time() - start_s)


def _count_refusal(counts: Counts, code: str, text: str) -> None:
    if code:
        counts.rejections[code] += 1
    else:
        counts.faults.append(text)


async def apply(load: Load, requests: int, seed: int, victim: str) -> None:
    """Send so many requests, CONCURRENCY at a time; kill `victim` after half of them."""
    choices = random.Random(seed).choices(TENANTS, [t.share for t in TENANTS], k=requests)
    slots = asyncio.Semaphore(CONCURRENCY)
    async with AsyncExitStack() as stack:
        clients = {
            tenant.name: await stack.enter_async_context(Client(load.engine.url, tenant.key))
            for tenant in TENANTS
        }

        async def send(tenant: Tenant) -> None:
            await load.send(tenant, clients[tenant.name])
            slots.release()

        async with asyncio.TaskGroup() as group:
            for number, tenant in enumerate(choices):
                if number == requests // 2:
                    kill(load.engine, victim)
                await slots.acquire()
                group.create_task(send(tenant))


def kill(engine: Engine, kind: str) -> None:
    """End the processes of one kind by SIGKILL; the supervisor starts others."""
    for process in engine.children(kind):
        os.kill(process.pid, signal.SIGKILL)


async def settle(engine: Engine, client: Client) -> None:
    """Return when nothing runs and what the clients have seen is on all pages: the same counters
    twice, half a second apart, and the pages written in between.
    """
    before: dict[str, float] = {}
    before_ns = time.monotonic_ns()
    pages = [engine.page("scheduler", SCHEDULER_PAGE), engine.page("http.0", HTTP_PAGE)]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SETTLE_S
    while loop.time() < deadline:
        await asyncio.sleep(0.5)
        scrape, now_ns = await scraped(client), time.monotonic_ns()
        live = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        now = scrape.counters()
        are_new = all(page.read().stamp_ns > before_ns for page in pages)
        if now == before and are_new and not sum(map(scrape.total, live)):
            return
        before, before_ns = now, now_ns
    raise RuntimeError(f"the engine is not idle after {SETTLE_S} s")


def differences_of_clients(places: Places, counts: dict[str, Counts]) -> Iterator[str]:
    """Yield what a scrape counts otherwise than the clients of each tenant did.

    What the engine had generated when a client left nobody but the engine knows.
    """
    scrape = places.http
    for tenant in TENANTS:
        own, labels = counts[tenant.name], "tenant"
        refused = places.refused(tenant.name)
        yield from differences(f"clients {tenant.name} refused", dict(own.rejections), refused)
        answered = scrape.by_label("headrace_tenant_e2e_request_latency_seconds_count", labels)
        yield from differs(
            f"clients {tenant.name} completed", own.completed, answered.get(tenant.name, 0)
        )
        for name in () if tenant.leaves else ("prompt_tokens", "generated_tokens"):
            scraped_count = scrape.by_label(f"headrace_tenant_{name}_total", labels)
            ours = getattr(own, name)
            yield from differs(f"clients {tenant.name} {name}", ours, scraped_count[tenant.name])


def differences_of_quantiles(places: Places, counts: dict[str, Counts]) -> Iterator[str]:
    """Yield the quantiles that lie further than one bucket from what clients measured."""
    for tenant, name, values in (
        ("streams", "time_to_first_token", counts["streams"].ttft_s),
        ("streams", "e2e_request_latency", counts["streams"].e2e_s),
        ("whole", "e2e_request_latency", counts["whole"].e2e_s),
    ):
        for q in (0.5, 0.95):
            family = f"headrace_tenant_{name}_seconds"
            bucket, bounds = places.http.bucket_of(family, f'tenant="{tenant}"', q)
            measured = report.percentile(values, q * 100)
            if abs(bisect_left(bounds, measured) - bucket) > 1:
                yield f"{tenant} {name} p{q * 100:.0f}: {measured:.4f} s, bucket {bounds[bucket]}"


async def compare(engine: Engine, requests: int, seed: int, victim: str) -> dict[str, Any]:
    """Apply the load to a running engine and return all figures."""
    await told(engine, "ctl", "pause", "halted", "--yes", "--json")
    counts = {tenant.name: Counts() for tenant in TENANTS}
    async with Client(engine.url, TENANTS[0].key) as http, engine.admin() as admin:
        load = Load(engine, await http.model(), random.Random(seed), counts)
        watch = Watch(http)
        watching = asyncio.create_task(watch.run())
        await apply(load, requests, seed, victim)
        await settle(engine, http)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        places = await read_places(engine, http, admin)
    return figures_of(places, counts, watch) | {
        "requests": requests,
        "scrapes": watch.num_scrapes,
        "restarts": restarts_of(places, victim),
    }


def figures_of(places: Places, counts: dict[str, Counts], watch: Watch) -> dict[str, Any]:
    """Return what clients got, and what differs between any two places."""
    found = {
        "ports": list(places.differences_of_ports()),
        "status": list(places.differences_of_status()),
        "top": list(places.differences_of_top()),
        "usage": list(places.differences_of_usage()),
        "sums": list(places.differences_of_sums()),
        "clients": list(differences_of_clients(places, counts)),
        "quantiles": list(differences_of_quantiles(places, counts)),
        "monotone": watch.fallen,
        "faults": [f"{name}: {fault}" for name, own in counts.items() for fault in own.faults],
    }
    reasons = Counter[str]()
    for each in counts.values():
        reasons.update(each.rejections)
    return {
        "completed": sum(each.completed for each in counts.values()),
        "cut": sum(each.cut for each in counts.values()),
        "refused": dict(reasons),
        "reasons": len(reasons),
        "series": len(places.http.values),
        "differences": {name: len(lines) for name, lines in found.items()},
        "details": {name: lines[:20] for name, lines in found.items() if lines},
    }


def restarts_of(places: Places, victim: str) -> float:
    """Return how often processes of a kind were restarted."""
    restarts = places.http.by_label("headrace_process_restarts_total", "process")
    return sum(times for process, times in restarts.items() if process.startswith(victim))


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine with the tenants of the mix and compare."""
    settings = [*SETTINGS, *args.set]
    with tempfile.TemporaryDirectory(prefix="headrace-agree-") as folder:
        config = Path(folder) / "tenants.toml"
        config.write_text("\n".join(tenant.toml() for tenant in TENANTS))
        async with running_engine("agree", settings, config) as engine:
            figures = await compare(engine, args.requests, args.seed, args.kill)
    return report.build("agree", figures, bars(args.kill), command=sys.argv[1:])


def bars(victim: str) -> tuple[report.Bar, ...]:
    """Return what must hold."""
    clients = report.Bar("differences.clients", "<=", 0)
    return (*BARS, clients) if victim == "executor" else BARS


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("agree", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--requests", type=int, default=200, help="requests in all (default: 200)")
    add("--seed", type=int, default=SEED, help=f"of the mix (default: {SEED})")
    add("--kill", choices=("executor", "scheduler"), default="executor", help="what is killed")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
