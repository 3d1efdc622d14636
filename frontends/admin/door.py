"""The zmq socket of a worker: calls come in, each is answered exactly once.

Owns: the bound on calls at once, and that no call is carried out without the key. Never knows: what
commands do.
"""

import asyncio
from typing import Protocol

from frontends.admin.access import Access
from frontends.admin.commands.handlers import Handlers, failure
from ipc.channel import Received
from ipc.control.declaration import ReplyCode
from ipc.messages import ControlCall, ControlReply

MAX_CALLS_AT_ONCE = 256


class DoorPort(Protocol):
    """The serving port: `ipc.async_port.AsyncPort` over a ROUTER in production."""

    async def receive(self, limit: int = 64) -> list[Received[ControlCall]]:
        """Wait for calls."""
        ...

    def send_nowait(self, message: ControlReply, peer: bytes = b"") -> bool:
        """Answer a peer, or return False if it is gone."""
        ...


class Door:
    """Takes calls, lets them in or not, and answers."""

    def __init__(self, port: DoorPort, access: Access, handlers: Handlers) -> None:
        """Serve `port`; `run` does the work."""
        self._port = port
        self._access = access
        self._handlers = handlers
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until cancelled; calls in progress are cancelled too."""
        try:
            while True:
                for received in await self._port.receive():
                    self._admit(received)
        finally:
            for task in self._tasks:
                task.cancel()

    def _admit(self, received: Received[ControlCall]) -> None:
        call = received.message
        refusal = self._access.refusal(call.key)
        if refusal is not None:
            self._port.send_nowait(self._handlers.refuse(call, refusal), received.peer)
        elif len(self._tasks) >= MAX_CALLS_AT_ONCE:
            message = (
                f"{MAX_CALLS_AT_ONCE} commands are being answered: nothing was done, try again"
            )
            self._port.send_nowait(failure(call, ReplyCode.BUSY, message), received.peer)
        else:
            task = asyncio.create_task(self._answer(received))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, received: Received[ControlCall]) -> None:
        self._port.send_nowait(await self._handlers.execute(received.message), received.peer)
