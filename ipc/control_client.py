"""Asks the admin workers of a running engine, one after the other: the way of all local tools.

Owns: the way to an answer and its bounds. Never knows: which commands exist, or what an answer
means. A worker that is silent for a second is passed over; commands are idempotent, so asking the
next one is safe. Whoever asks again and again keeps a line open: a connection costs both ends more
than a question does.
"""

import getpass
import itertools
import os
import secrets
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Lock

import zmq

from ipc.codec import Codec
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, DealerPort
from ipc.run_directory import RunDirectory

WORKER_TIMEOUT_MS = 1000
MAX_REPLY_BYTES = 16 * 2**20

Port = DealerPort[ControlReply, ControlCall]


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
        """Ask once; return the first answer, None if no worker gives one; raises FrameError."""
        with closing(Line(self)) as line:
            return line.call(command, args)


class Line:
    """A connection to one of the workers, to another one once that is silent; for any thread."""

    def __init__(self, workers: AdminWorkers) -> None:
        """Connect with the first call; somebody must `close` it."""
        self._workers = workers
        self._actor = f"{workers.tool} {user()}"
        self._calls: Codec[ControlCall] = Codec(ControlCall)
        self._replies: Codec[ControlReply] = Codec(ControlReply, MAX_REPLY_BYTES)
        self._context: Context = zmq.Context()
        self._port: Port | None = None
        self._worker = 0  # whose turn it is, and who answered last
        self._call_ids = itertools.count()
        self._lock = Lock()

    def call(self, command: str, args: Mapping[str, object]) -> ControlReply | None:
        """Return the first answer, None if no worker gives one; raises FrameError.

        Calls from several threads wait for each other. A line that was closed gives none.
        """
        with self._lock:
            for _ in () if self._context.closed else self._workers.urls:
                call_id, key = next(self._call_ids), self._workers.key
                sent = ControlCall(call_id, command, dict(args), key=key, actor=self._actor)
                reply = self._ask(sent)
                if reply is not None:
                    return reply
                self._pass_over()
        return None

    def close(self) -> None:
        """Hang up, once a call under way has ended."""
        with self._lock:
            self._context.destroy(linger=0)

    def _ask(self, sent: ControlCall) -> ControlReply | None:
        """Return the worker's answer, or None if it is away or silent."""
        port = self._port = self._port or self._connect()
        is_sent = port.send(sent)
        if not is_sent and port.socket.poll(WORKER_TIMEOUT_MS, zmq.POLLOUT):  # once connected
            is_sent = port.send(sent)
        while is_sent and port.socket.poll(WORKER_TIMEOUT_MS, zmq.POLLIN):
            for received in port.receive(1):
                if received.message.call_id == sent.call_id:
                    return received.message
        return None

    def _connect(self) -> Port:
        identity = f"{self._workers.tool}.{os.getpid()}.{secrets.token_hex(4)}".encode()
        url = self._workers.urls[self._worker]
        return DealerPort(self._context, url, identity, self._replies, self._calls)

    def _pass_over(self) -> None:
        """Turn to the next worker; what the silent one may still answer is not heard."""
        if self._port is not None:
            self._port.close()
        self._port = None
        self._worker = (self._worker + 1) % len(self._workers.urls)


def user() -> str:
    """Return the name of this user, or the number of one that has no name."""
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return str(os.getuid())
