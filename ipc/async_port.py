"""A port for asyncio loops (http, admin): `await receive()`, `send_nowait`.

Owns: the waiting. Never knows: zmq's options (`ipc.ports`) or messages. zmq's fd is edge-triggered
and its edge may be eaten by any call on the socket, so: `receive` always drains before it waits,
and a send looks whether there is something to read, and wakes the waiter then. The fd is watched
only while someone waits; otherwise an unread message would spin the loop.
"""

import asyncio
from typing import Generic

from ipc.channel import InT, OutT, Received
from ipc.ports import DealerPort, RouterPort


class AsyncPort(Generic[InT, OutT]):
    """Wraps a port inside a running event loop; one task at a time may receive."""

    def __init__(self, port: DealerPort[InT, OutT] | RouterPort[InT, OutT]) -> None:
        self._port = port
        self._wakeup: asyncio.Future[None] | None = None

    @property
    def dropped_frames(self) -> int:
        """Frames that were no message."""
        return self._port.dropped_frames

    async def receive(self, limit: int = 64) -> list[Received[InT]]:
        """Wait for messages; return 1 to `limit` of them, oldest first."""
        assert self._wakeup is None, "two tasks receive from one port"
        while not (messages := self._port.receive(limit)):
            await self._wait_for_edge()
        return messages

    def send_nowait(self, message: OutT, peer: bytes = b"") -> bool:
        """Send as `MessagePort.send` does."""
        is_sent = self._port.send(message, peer)
        if self._wakeup is not None and self._port.has_input:
            self._wake()
        return is_sent

    def reconnect(self) -> None:
        """Turn to whoever serves now, as `ClientPort.reconnect`."""
        assert isinstance(self._port, DealerPort)
        self._port.reconnect()
        self._wake()

    def close(self) -> None:
        """Close the socket; a task waiting in `receive` must have been cancelled before."""
        self._port.close()

    async def _wait_for_edge(self) -> None:
        loop = asyncio.get_running_loop()
        fd = self._port.fileno()
        self._wakeup = loop.create_future()
        loop.add_reader(fd, self._wake)
        try:
            await self._wakeup
        finally:
            loop.remove_reader(fd)
            self._wakeup = None

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)
