"""A client of the engine in memory: fake ports instead of tokenizers, and a clock that is moved.

Owns: what the tokenizers take and say. Never knows: what a test is about.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from core.clock import NS_PER_S
from core.messages.http import ToHttp
from core.messages.tokenizer import Cancel, Generate, TextPrompt, ToTokenizer
from core.sampling_params import SamplingParams
from core.tenancy.classes import TrafficClass
from frontends.engine_client import EngineClient
from frontends.operation import Operation
from ipc.channel import Received


@dataclass
class FakePort:
    """A port in memory; `room` is how many more messages it takes."""

    room: int = 1000
    sent: list[ToTokenizer] = field(default_factory=list)
    inbox: asyncio.Queue[ToHttp] = field(default_factory=asyncio.Queue)
    is_closed: bool = False
    num_reconnects: int = 0
    num_read: int = 0
    has_sent_two: asyncio.Event = field(default_factory=asyncio.Event)
    dropped_frames: int = 0

    async def receive(self, limit: int) -> list[Received[ToHttp]]:
        """Return one message; asking for the next one says that the last was taken in."""
        if self.num_read:
            self.inbox.task_done()
        message = await self.inbox.get()
        self.num_read += 1
        return [Received(b"", message)]

    def send_nowait(self, message: ToTokenizer) -> bool:
        """Keep the message if there is room."""
        if self.room == 0:
            return False
        self.room -= 1
        self.sent.append(message)
        if len(self.sent) == 2:
            self.has_sent_two.set()
        return True

    def reconnect(self) -> None:
        """Count it."""
        self.num_reconnects += 1

    def close(self) -> None:
        """Note the end."""
        self.is_closed = True


@dataclass
class ManualClock:
    """Time that stands still unless it is moved."""

    time_ns: int = 1_000 * NS_PER_S

    def now_ns(self) -> int:
        """Return the time."""
        return self.time_ns


class World:
    """A client over fake tokenizers."""

    def __init__(self, num_tokenizers: int = 1, max_operations: int = 100) -> None:
        self.ports = [FakePort() for _ in range(num_tokenizers)]
        self.epochs = [1] * num_tokenizers
        self.clock = ManualClock()
        self.client = EngineClient(
            self.ports,
            lambda index: self.epochs[index],
            self.clock,
            max_operations=max_operations,
            request_timeout_ns=60 * NS_PER_S,
        )

    def generate(self, operation_id: str = "op", n: int = 1) -> Operation:
        """Start an operation."""
        return self.client.generate(
            Generate(
                operation_id, "t", TrafficClass.STANDARD, [TextPrompt("p")], n, 5, SamplingParams()
            )
        )

    async def deliver(self, message: ToHttp, tokenizer: int = 0) -> None:
        """Let the client take in a message."""
        inbox = self.ports[tokenizer].inbox
        inbox.put_nowait(message)
        await inbox.join()

    def cancels(self, tokenizer: int = 0) -> list[str]:
        """Return the operations whose cancellation was sent."""
        return [m.operation_id for m in self.ports[tokenizer].sent if isinstance(m, Cancel)]


def play(scenario: Callable[[World], Awaitable[None]], **options: int) -> World:
    """Run a scenario on a started client, and stop it."""
    worlds: list[World] = []

    async def run() -> None:
        world = World(**options)
        worlds.append(world)
        world.client.start()
        try:
            await scenario(world)
        finally:
            await world.client.stop()

    asyncio.run(run())
    return worlds[0]
