"""The client `raw_streams` in a process of its own: it is started, asked for its counts, and ended.

Owns: the process and the lines to and from it. Never knows: what is sent, or what the counts mean.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from scripts.bench.harness.raw_streams import Counts, Load


@dataclass(frozen=True, slots=True)
class RawStreams:
    """The running client process."""

    process: asyncio.subprocess.Process

    async def counts(self) -> Counts:
        """Return what has arrived by now."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        return await self.next_counts()

    async def next_counts(self) -> Counts:
        """Return what the client says next."""
        assert self.process.stdout is not None
        return msgspec.json.decode(await self.process.stdout.readline(), type=Counts)


@asynccontextmanager
async def raw_streams(load: Load) -> AsyncIterator[RawStreams]:
    """Start a client; all its connections have had output when this yields."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scripts.bench.harness.raw_streams", stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(load) + b"\n")
        client = RawStreams(process)
        await client.next_counts()
        yield client
    finally:
        process.stdin.close()
        await process.wait()
