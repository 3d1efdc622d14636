"""Close connections at random places and measure when the engine has its memory and row back.

One connection at a time is closed while the body is sent, while queued, in prefill, in decode, or
while an answer without streaming is awaited; other streams keep the engine busy. The moment of
reclaim is read from the scheduler's page on the board, whose clock (CLOCK_MONOTONIC) is ours too.
A delay is held against the longest step meanwhile, which the other streams show as their longest
gap: "one step + 50 ms". Then many are closed at once, and nothing may be left.
"""

import argparse
import asyncio
import random
import socket
import struct
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import orjson

from core.request import RequestStatus
from ipc.pages import SCHEDULER_PAGE
from scripts.bench.harness import report
from scripts.bench.harness.client import Client, Prompts, Timeline
from scripts.bench.harness.command import parser_of, run_command
from scripts.bench.harness.engine import Engine, running_engine, wait_until

PLACES = ("body", "queued", "prefill", "decode", "answer")
MAX_NUM_SEQS = 8
RECLAIM_S = 20.0
MARGIN_MS = 50
SETTINGS = (  # what other classes reserve would leave these requests three sequences
    f"engine.max_num_seqs={MAX_NUM_SEQS}",
    "classes.interactive.reserved_seqs=0",
    "classes.administrative.reserved_seqs=0",
)
BARS = (
    report.Bar("excess_over_a_step_ms.max", "<=", MARGIN_MS, "ms"),
    report.Bar("not_reclaimed", "<=", 0),
    report.Bar("reclaimed", ">=", 1),
    report.Bar("left.requests", "<=", 0),
    report.Bar("left.held_blocks", "<=", 0),
    report.Bar("neighbours.errors", "<=", 0),
)


@dataclass(frozen=True, slots=True)
class State:
    """What the scheduler's page says at one moment."""

    aborted: int
    reclaimed: int
    waiting: int
    running: int
    held_blocks: int
    last_reclaim_ns: int


@dataclass(frozen=True, slots=True)
class Delay:
    """From the client's close to the reclaim, CLOCK_MONOTONIC seconds."""

    place: str
    closed_s: float
    reclaimed_s: float

    @property
    def length_s(self) -> float:
        """Seconds from one to the other."""
        return self.reclaimed_s - self.closed_s

    def longest_step_s(self, outputs_s: Sequence[float]) -> float:
        """Return the longest gap that overlaps it, between outputs of the other streams."""
        first = max(0, bisect_left(outputs_s, self.closed_s) - 1)
        last = bisect_right(outputs_s, self.reclaimed_s) + 1
        return max((b - a for a, b in pairwise(outputs_s[first:last])), default=0.0)


class Board:
    """The scheduler's page of one engine."""

    def __init__(self, engine: Engine) -> None:
        """Map the page; raises IpcError if the engine is not there."""
        self._reader = engine.page("scheduler", SCHEDULER_PAGE)

    def read(self) -> State:
        """Return what the page says now."""
        page = self._reader.read().page
        return State(
            aborted=int(page["finished"][RequestStatus.FINISHED_ABORTED]),
            reclaimed=int(page["cancel_reclaim"]["counts"].sum()),
            waiting=int(page["num_waiting"]),
            running=int(page["num_running"]),
            held_blocks=int(page["replicas"][0]["num_held_blocks"]),
            last_reclaim_ns=int(page["last_reclaim_ns"]),
        )

    async def reclaim_ns(self, before: State) -> int | None:
        """Return when one more request than `before` was aborted and reclaimed; None = never."""

        def is_reclaimed() -> bool:
            now = self.read()
            return now.aborted > before.aborted and now.reclaimed > before.reclaimed

        return self.read().last_reclaim_ns if await wait_until(is_reclaimed, RECLAIM_S) else None


class Connection:
    """One raw HTTP/1.1 request that is closed without regard."""

    def __init__(self, engine: Engine, body: dict[str, object]) -> None:
        """Prepare the bytes of a completions request."""
        data = orjson.dumps(body)
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{engine.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.request = head.encode() + data
        self._port = engine.port

    async def open(self, num_bytes: int | None = None) -> None:
        """Connect and send the request, or its first bytes."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self.request[:num_bytes])
        await self._writer.drain()

    async def read(self, num_bytes: int) -> int:
        """Read up to so many bytes of the answer; return how many came."""
        count = 0
        while count < num_bytes and (piece := await self._reader.read(num_bytes - count)):
            count += len(piece)
        return count

    def close(self, abruptly: bool) -> int:
        """Close, with a reset if `abruptly`; return the time, CLOCK_MONOTONIC ns."""
        if abruptly:
            raw: socket.socket = self._writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        closed_ns = time.monotonic_ns()
        self._writer.transport.abort() if abruptly else self._writer.close()
        return closed_ns


@dataclass(slots=True)
class Closer:
    """Closes connections at the places; `source` draws where exactly. `busy` are the others."""

    engine: Engine
    client: Client
    board: Board
    model: str
    prompts: Prompts
    source: random.Random
    busy: list[Timeline] = field(default_factory=list)

    def body(
        self, prompt_tokens: int, max_tokens: int = 1024, stream: bool = True
    ) -> dict[str, object]:
        """Return a request that would run for long."""
        return {
            "model": self.model,
            "prompt": self.prompts.make(prompt_tokens),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }

    async def close_at(self, place: str) -> Delay | None:
        """Close one connection at `place`; None if the engine never reclaimed it."""
        prompt_tokens = 1500 if place == "prefill" else 64
        connection = Connection(self.engine, self.body(prompt_tokens, stream=place != "answer"))
        base = self.board.read()
        await connection.open()
        if place == "queued":
            await self._arrived(lambda now: now.running + now.waiting > MAX_NUM_SEQS)
            await asyncio.sleep(self.source.uniform(0, 0.2))
        else:
            await self._arrived(lambda now: now.running > base.running)
            await asyncio.sleep(self.source.uniform(0, 0.1))
        if place == "decode":
            await connection.read(self.source.randrange(200, 20_000))
        before = self.board.read()
        closed_ns = connection.close(abruptly=self.source.random() < 0.5)
        reclaim_ns = await self.board.reclaim_ns(before)
        return None if reclaim_ns is None else Delay(place, closed_ns / 1e9, reclaim_ns / 1e9)

    async def _arrived(self, condition: Callable[[State], bool]) -> None:
        if not await wait_until(lambda: condition(self.board.read()), RECLAIM_S, 0.001):
            raise RuntimeError(f"a request did not arrive: {self.board.read()}")

    async def close_in_body(self) -> None:
        """Close with a part of the request sent: no request may come of it."""
        connection = Connection(self.engine, self.body(64))
        await connection.open(self.source.randrange(1, len(connection.request)))
        await asyncio.sleep(self.source.uniform(0, 0.02))
        connection.close(abruptly=self.source.random() < 0.5)

    async def close_in_burst(self) -> None:
        """Send, read a random number of bytes for a random time, close."""
        connection = Connection(self.engine, self.body(self.source.randrange(16, 600)))
        await connection.open()
        try:
            async with asyncio.timeout(self.source.uniform(0, 3)):
                await connection.read(self.source.randrange(1, 30_000))
        except TimeoutError:
            connection.close(abruptly=True)
        else:
            connection.close(abruptly=False)

    async def keep_busy(self, streams: int, until: asyncio.Event) -> None:
        """Keep `streams` streams of different lengths going; they must not notice anything."""

        async def one() -> None:
            while not until.is_set():
                timeline = Timeline()
                self.busy.append(timeline)
                body = self.body(64, self.source.randrange(100, 300))
                await self.client.stream("/v1/completions", body, timeline)

        await asyncio.gather(*(one() for _ in range(streams)))


async def close_many(closer: Closer, place: str, count: int) -> list[Delay | None]:
    """Close `count` connections at one place beside busy streams."""
    streams = MAX_NUM_SEQS if place == "queued" else MAX_NUM_SEQS // 2
    done = asyncio.Event()
    busy = asyncio.create_task(closer.keep_busy(streams, done))
    delays: list[Delay | None] = []
    try:
        await wait_until(lambda: closer.board.read().running >= streams, RECLAIM_S)
        for _ in range(count):
            if place == "body":
                await closer.close_in_body()
            else:
                delays.append(await closer.close_at(place))
    finally:
        done.set()
        await busy
    return delays


def delay_figures(delays: Sequence[Delay], others: Sequence[Timeline]) -> dict[str, Any]:
    """Return the spread of delays, of the longest steps meanwhile, and of the excess over them."""
    outputs_s = sorted(at for each in others for at in each.chunk_s)
    lengths = [each.length_s for each in delays]
    steps = [each.longest_step_s(outputs_s) for each in delays]
    excess = [max(0.0, length - step) for length, step in zip(lengths, steps, strict=True)]
    return {
        "reclaim_ms": report.spread_ms(lengths),
        "step_ms": report.spread_ms(steps),
        "excess_over_a_step_ms": report.spread_ms(excess),
    }


async def measure(closer: Closer, connections: int) -> dict[str, Any]:
    """Close a fifth of the connections at each place, then as many again at once."""
    delays: list[Delay | None] = []
    for place in PLACES:
        print(f"cancel: {place}", file=sys.stderr)
        delays += await close_many(closer, place, connections // len(PLACES))
    await asyncio.gather(*(closer.close_in_burst() for _ in range(connections)))
    await wait_until(lambda: _is_idle(closer.board.read()), RECLAIM_S)
    left = closer.board.read()
    good = [each for each in delays if each is not None]
    by_place = {
        place: delay_figures([each for each in good if each.place == place], closer.busy)
        for place in PLACES[1:]
    }
    return {
        "connections": connections,
        "reclaimed": len(good),
        "not_reclaimed": len(delays) - len(good),
        **delay_figures(good, closer.busy),
        "by_place": by_place,
        "burst": connections,
        "left": {"requests": left.waiting + left.running, "held_blocks": left.held_blocks},
        "neighbours": {
            "requests": len(closer.busy),
            "errors": sum(1 for each in closer.busy if each.error),
            "error_examples": sorted({each.error for each in closer.busy if each.error})[:3],
        },
    }


def _is_idle(state: State) -> bool:
    return state.waiting == state.running == state.held_blocks == 0


async def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start an engine, close connections, and return the report."""
    settings = [*SETTINGS, *args.set]
    prompts, source = Prompts(1000, 40000, args.seed), random.Random(args.seed)
    async with running_engine("cancel", settings) as engine, Client(engine.url) as client:
        model = await client.model()
        closer = Closer(engine, client, Board(engine), model, prompts, source)
        figures = await measure(closer, args.connections)
    return report.build("cancel", figures, BARS, command=sys.argv[1:], seed=args.seed)


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parse = parser_of("cancel", __doc__, starts_engine=True)
    add = parse.add_argument
    add("--connections", type=int, default=200, help="closed one at a time; as many again at once")
    add("--seed", type=int, default=1, help="of places and prompts")
    return parse


if __name__ == "__main__":
    sys.exit(run_command(parser(), run))
