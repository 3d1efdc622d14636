"""What tenants and an operator do to an engine: floods, trickles, commands; and what came of it.

Owns: the loads, each until a moment, and the reading of the engine's pages. Never knows: which
tenants are compared, or what a good figure is.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from ipc.pages import EXECUTOR_PAGE, SCHEDULER_PAGE
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline
from scripts.bench.harness.engine import Engine, wait_until

QUIET_S = 60.0
COMMANDS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Sizes:
    """Prompt and output of a request, tokens."""

    prompt_tokens: int
    output_tokens: int


class Tenant:
    """One tenant's session: everything it sends is in `timelines`."""

    def __init__(self, client: Client, model: str, prompts: Prompts) -> None:
        """Send through `client`."""
        self.timelines: list[Timeline] = []
        self._client = client
        self._model = model
        self._prompts = prompts

    async def request(self, sizes: Sizes, until: float = float("inf")) -> Timeline:
        """Send one request and read it to its end, or to `until`."""
        timeline = Timeline(intended_s=time.perf_counter())
        self.timelines.append(timeline)
        body = {
            "model": self._model,
            "prompt": self._prompts.make(sizes.prompt_tokens),
            "max_tokens": sizes.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return await self._client.stream("/v1/completions", body, timeline, until=until)

    async def flood(self, streams: int, sizes: Sizes, until: float) -> None:
        """Keep `streams` requests in flight, each followed by the next one at once."""

        async def one_after_the_other() -> None:
            while time.perf_counter() < until:
                timeline = await self.request(sizes, until)
                if timeline.error:
                    await asyncio.sleep(0.1)

        await asyncio.gather(*(one_after_the_other() for _ in range(streams)))

    async def trickle(self, every_s: float, sizes: Sizes, until: float) -> None:
        """Send a request every `every_s`, whatever becomes of those before; all run to their end.

        Latencies count from when it should have been sent.
        """
        sent: list[asyncio.Task[Timeline]] = []
        start = time.perf_counter()
        while (due := start + len(sent) * every_s) < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sent.append(asyncio.create_task(self.request(sizes)))
        await asyncio.gather(*sent)


class Operator:
    """Gives a control command now and then, and notes how long each answer took."""

    def __init__(self, admin: Client) -> None:
        """Ask over the admin port."""
        self.durations_s: list[float] = []
        self.unconfirmed = 0
        self._admin = admin

    async def work(self, until: float) -> None:
        """Look and change in turns: every change is a new version of the tenant directory."""
        for number in count():
            if time.perf_counter() >= until:
                return
            weight = {"path": "tenants.nightly.weight", "value": str(1 + number % 2)}
            for command, args in (("tenants", {}), ("requests", {}), ("set", weight)):
                start = time.perf_counter()
                status, _ = await self._admin.post(f"/admin/commands/{command}", args)
                self.durations_s.append(time.perf_counter() - start)
                self.unconfirmed += status != 200
            await asyncio.sleep(COMMANDS_EVERY_S)

    def figures(self) -> dict[str, Any]:
        """Return the spread of answers."""
        return {
            "commands": len(self.durations_s),
            "unconfirmed": self.unconfirmed,
            "answer_ms": report.spread_ms(self.durations_s),
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """What the engine's pages say at one moment."""

    at_s: float
    computed_tokens: int  # by all executors
    steps: int
    step_s: float
    service: dict[str, int]  # charged, by tenant
    rejections: dict[str, int]  # by tenant


class Pages:
    """The pages of one engine's scheduler and executor."""

    def __init__(self, engine: Engine) -> None:
        """Map them; raises IpcError if the engine is not there."""
        self._scheduler = engine.page("scheduler", SCHEDULER_PAGE)
        self._executor = engine.page("executor.0.0", EXECUTOR_PAGE)

    def read(self) -> Progress:
        """Return what they say now."""
        page = self._scheduler.read().page.reshape(1)[0]
        rows = page["tenants"][: int(page["num_tenants"])]
        names = [row["name"].decode() for row in rows]
        return Progress(
            at_s=time.perf_counter(),
            computed_tokens=int(self._executor.read().page["tokens"]),
            steps=int(page["steps"]),
            step_s=float(page["step_time"]["sum"]),
            service=dict(zip(names, rows["service"].tolist(), strict=True)),
            rejections=dict(zip(names, rows["rejections"].sum(axis=1).tolist(), strict=True)),
        )

    async def wait_quiet(self) -> None:
        """Wait until nothing waits and nothing runs; raises RuntimeError if that does not come."""

        def is_quiet() -> bool:
            page = self._scheduler.read().page.reshape(1)[0]
            return not (page["num_waiting"] or page["num_running"] or page["num_preempted"])

        if not await wait_until(is_quiet, QUIET_S):
            raise RuntimeError(f"requests are left {QUIET_S} s after the load")


def tokens_of(timelines: Sequence[Timeline], since_s: float, until_s: float) -> int:
    """Return the tokens that requests took of the engine in a time: outputs as they came, prompts
    at their first output.
    """
    total = 0
    for each in timelines:
        inside = [at for at in each.chunk_s if since_s <= at < until_s]
        total += len(inside)
        if inside and inside[0] == each.chunk_s[0]:
            total += each.prompt_tokens
    return total
