"""Measure a scrape of `/metrics` at many tenants in all four classes, also with the scheduler
stopped.

The engine is our own and real but for its simulated executor; every tenant has sent requests in
every class, so all series are there. Both ports are scraped one after the other, again while the
scheduler is stopped by SIGSTOP, and then many times more to see whether memory grows. Times are
those of the client, the body read; CPU is that of the process that answers.
"""

import argparse
import asyncio
import hashlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.tenancy.classes import CLASS_NAMES
from scripts.bench.benchmarks.agree.sources import Scrape
from scripts.bench.harness import report
from scripts.bench.harness.client import Client
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine
from scripts.bench.harness.processes import stopped

SETTINGS = (
    "engine.executor=simulated", "engine.simulated_step_us=2000", "engine.max_model_len=512",
    "engine.num_kv_blocks=512",
)  # fmt: skip
SETTLE_S = 1.0
LIMIT_MS = 50
GROWTH_MB = 2
PORTS = ("http", "admin")
STATES = ("serving", "scheduler_stopped")
BARS = (
    *(report.Bar(f"{s}.{p}.latency_ms.p50", "<=", LIMIT_MS, "ms") for s in STATES for p in PORTS),
    *(report.Bar(f"{s}.{p}.cpu_ms", "<=", LIMIT_MS, "ms") for s in STATES for p in PORTS),
    *(report.Bar(f"growth_mb.{port}", "<=", GROWTH_MB, "MB") for port in PORTS),
)


@dataclass(frozen=True, slots=True)
class Port:
    """One of the two ports, and the kind of process behind it."""

    name: str
    client: Client


def key_of(tenant: int) -> str:
    """Return a tenant's API key, of no value to anybody: the engine is ours and on loopback."""
    return f"sk-scrape-{tenant}"


def tenants_toml(count: int) -> str:
    """Return the configuration of the tenants."""
    digests = [hashlib.sha256(key_of(tenant).encode()).hexdigest() for tenant in range(count)]
    return "\n".join(
        f'[[tenants]]\nname = "tenant-{tenant}"\nkey_sha256 = ["{digest}"]\n'
        for tenant, digest in enumerate(digests)
    )


async def fill(engine: Engine, tenants: int) -> None:
    """Let every tenant send a request in every class."""

    async def send_all(tenant: int) -> None:
        async with Client(engine.url, key_of(tenant)) as client:
            model = await client.model()
            for name in CLASS_NAMES:
                body = {"model": model, "prompt": [10 + tenant, 11], "max_tokens": 3}
                headers = {"x-headrace-class": name}
                await client.post("/v1/completions", body, headers)

    for tenant in range(tenants):
        await send_all(tenant)
    await asyncio.sleep(SETTLE_S)


async def measure(port: Port, engine: Engine, scrapes: int) -> dict[str, Any]:
    """Return the times of so many scrapes, and the CPU time of each."""
    times_s, size = [], 0
    processes = engine.children(port.name)
    before_s = sum(process.cpu_s() for process in processes)
    for _ in range(scrapes):
        start = time.perf_counter()
        status, body = await port.client.get("/metrics")
        times_s.append(time.perf_counter() - start)
        if status != 200:
            raise RuntimeError(f"GET {port.client.url}/metrics: {status} {body[:200]!r}")
        size = len(body)
    spent_s = sum(process.cpu_s() for process in processes) - before_s
    return {
        "latency_ms": report.spread_ms(times_s) | {"min": round(min(times_s) * 1e3, 3)},
        "cpu_ms": round(spent_s / scrapes * 1e3, 2),
        "kilobytes": size // 1000,
    }


async def growth_mb(port: Port, engine: Engine, scrapes: int) -> float:
    """Return by how much the processes behind a port grow over so many scrapes, PSS in MB.

    As many are made before, so that all workers of a pool have built what they keep.
    """

    def size() -> int:
        return sum(process.pss_bytes() for process in engine.children(port.name))

    sizes = []
    for _ in range(2):
        for _ in range(scrapes):
            async with port.client.anew() as client:  # another connection, maybe another worker
                await client.get("/metrics")
        sizes.append(size())
    return round((sizes[1] - sizes[0]) / 1e6, 3)


async def measure_all(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Return all figures of a filled engine."""
    async with Client(engine.url, key_of(0)) as http, engine.admin() as admin:
        both = [Port("http", http), Port("admin", admin)]
        _, body = await http.get("/metrics")
        scrape = Scrape.of(body.decode())
        figures: dict[str, Any] = {
            "tenants": args.tenants,
            "tenants_seen": len(scrape.by_label("headrace_tenant_requests_total", "tenant")),
            "series": len(scrape.values),
        }
        figures["serving"] = {p.name: await measure(p, engine, args.scrapes) for p in both}
        with stopped([process.pid for process in engine.children("scheduler")]):
            figures["scheduler_stopped"] = {
                p.name: await measure(p, engine, args.scrapes) for p in both
            }
        figures["growth_mb"] = {p.name: await growth_mb(p, engine, 5 * args.scrapes) for p in both}
    return figures


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine, fill it and measure."""
    with tempfile.TemporaryDirectory(prefix="headrace-scrape-") as folder:
        config = Path(folder) / "tenants.toml"
        config.write_text(tenants_toml(args.tenants), encoding="utf-8")
        async with running_engine("scrape", [*SETTINGS, *args.set], config) as engine:
            await fill(engine, args.tenants)
            figures = await measure_all(engine, args)
    bars = (*BARS, report.Bar("tenants_seen", ">=", args.tenants))
    return report.build("scrape", figures, bars, command=sys.argv[1:])


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("scrape", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--tenants", type=int, default=64, help="tenants, each in four classes (default: 64)")
    add("--scrapes", type=int, default=60, help="of each port in each state (default: 60)")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
