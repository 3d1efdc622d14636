"""What the dashboard's benchmarks look at: many busy tenants, or those of the demonstration.

Owns: the tenants and what they send. Never knows: what is measured.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from scripts.bench.benchmarks.tenants.loads import Sizes, Tenant
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts
from scripts.bench.harness.engine import Engine

DEMO_CONFIG = report.ROOT / "configs" / "demo-tenants.toml"
DEMO_KEYS = {name: f"sk-demo-{name}" for name in ("chat", "alpha", "beta", "nightly", "ops")}
VOCABULARY = (1000, 40000)
FOREVER_S = 3600.0

Tenants = Mapping[str, Tenant]
Load = Callable[[Tenants, float], Coroutine[None, None, object]]


def write_tenants(folder: Path, count: int) -> tuple[Path, dict[str, str]]:
    """Write a configuration with so many tenants; return the file and their keys."""
    keys = {f"tenant-{number}": f"sk-tenant-{number}" for number in range(count)}
    tables = [
        f'[[tenants]]\nname = "{name}"\nkey_sha256 = ["{hashlib.sha256(key.encode()).hexdigest()}"]'
        for name, key in keys.items()
    ]
    path = folder / "tenants.toml"
    path.write_text("\n\n".join(tables) + "\n")
    return path, keys


async def everybody(tenants: Tenants, until: float) -> None:
    """Keep one request of each tenant in flight."""
    await asyncio.gather(*(each.flood(1, Sizes(16, 64), until) for each in tenants.values()))


async def demonstration(tenants: Tenants, until: float) -> None:
    """Flood with batch work that must give memory back, and send what two teams and people send."""
    await asyncio.gather(
        tenants["nightly"].flood(24, Sizes(256, 384), until),
        tenants["alpha"].trickle(2.5, Sizes(256, 64), until),
        tenants["beta"].flood(1, Sizes(256, 64), until),
        tenants["chat"].trickle(1.2, Sizes(48, 24), until),
        tenants["ops"].trickle(2.0, Sizes(16, 1), until),
    )


async def writers(tenants: Tenants, until: float) -> None:
    """Keep the engine at one speed: long outputs of one tenant, which begin one after the other."""
    (tenant,) = tenants.values()

    async def begin(number: int) -> None:
        await tenant.request(Sizes(32, 24 * (number + 1)), until)
        await tenant.flood(1, Sizes(32, 384), until)

    await asyncio.gather(*map(begin, range(16)))


@asynccontextmanager
async def under_load(engine: Engine, keys: Mapping[str, str], load: Load) -> AsyncIterator[None]:
    """Apply a load to an engine until the block ends; its requests are cut off then."""
    prompts = Prompts(*VOCABULARY, 1)
    async with AsyncExitStack() as stack:
        tenants = {}
        for name, key in keys.items():
            client = await stack.enter_async_context(Client(engine.url, key))
            tenants[name] = Tenant(client, await client.model(), prompts)
        task = asyncio.create_task(load(tenants, time.perf_counter() + FOREVER_S))
        try:
            yield
            if task.done():
                await task
                raise RuntimeError("the load has ended before it was measured")
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
