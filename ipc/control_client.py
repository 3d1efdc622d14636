"""Asks the admin workers of a running engine, one after the other: the way of all local tools.

Owns: the way to an answer and its bounds. Never knows: which commands exist, or what an answer
means. A worker that is silent for a second is passed over; commands are idempotent, so asking the
next one is safe.
"""

import getpass
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import zmq

from ipc.codec import Codec
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, DealerPort
from ipc.run_directory import RunDirectory

WORKER_TIMEOUT_MS = 1000
MAX_REPLY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class AdminWorkers:
    """The URLs of an engine's admin workers, and the key to them; `tool` is who asks them."""

    urls: tuple[str, ...]
    key: str
    tool: str

    @classmethod
    def of(cls, directory: RunDirectory, key: str, tool: str) -> "AdminWorkers":
        """Return the workers of the engine in `directory`."""
        sockets = sorted(directory.path.glob("admin.*.sock"))
        return cls(tuple(f"ipc://{path}" for path in sockets), key, tool)

    def call(self, command: str, args: Mapping[str, object]) -> ControlReply | None:
        """Return the first answer, None if no worker gives one; raises FrameError."""
        identity = f"{self.tool}.{os.getpid()}.{secrets.token_hex(4)}".encode()
        actor = f"{self.tool} {user()}"
        context: Context = zmq.Context()
        try:
            for index, url in enumerate(self.urls):
                sent = ControlCall(index, command, dict(args), key=self.key, actor=actor)
                reply = _ask(context, url, identity, sent)
                if reply is not None:
                    return reply
        finally:
            context.destroy(linger=0)
        return None


def _ask(context: Context, url: str, identity: bytes, sent: ControlCall) -> ControlReply | None:
    """Return one worker's answer, or None if it is away or silent."""
    calls: Codec[ControlCall] = Codec(ControlCall)
    replies: Codec[ControlReply] = Codec(ControlReply, MAX_REPLY_BYTES)
    port: DealerPort[ControlReply, ControlCall] = DealerPort(context, url, identity, replies, calls)
    try:
        if not port.socket.poll(WORKER_TIMEOUT_MS, zmq.POLLOUT) or not port.send(sent):
            return None
        while port.socket.poll(WORKER_TIMEOUT_MS, zmq.POLLIN):
            for received in port.receive(1):
                if received.message.call_id == sent.call_id:
                    return received.message
        return None
    finally:
        port.close()


def user() -> str:
    """Return the name of this user, or the number of one that has no name."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return str(os.getuid())
