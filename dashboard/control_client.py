"""Gives control commands to a running engine: the same messages as `headrace ctl`, audited alike.

Owns: the way to an answer and its bounds. Never knows: which commands exist. An admin worker that
is silent for a second is passed over; commands are idempotent, so asking the next one is safe. It
waits, so the app calls it in a thread of its own.
"""

import getpass
import os
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

import zmq

from dashboard.source.base import ControlError, Record
from ipc.codec import Codec
from ipc.errors import EngineNotFoundError, FrameError, IpcError
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, DealerPort
from ipc.run_directory import RunDirectory

WORKER_TIMEOUT_MS = 1000
MAX_REPLY_BYTES = 16 * 2**20


class ControlClient:
    """Speaks to the admin pool of the engine called `name`."""

    takes_commands = True

    def __init__(self, name: str, base: Path | None, admin_key: str) -> None:
        """Use `admin_key`, or if it is empty the one that the engine wrote for this user."""
        self._engine_name = name
        self._engine_base = base
        self._admin_key = admin_key
        self._numbers = count(1)

    def call(self, command: str, args: Mapping[str, object]) -> Record:
        """Return the result of a command; raises ControlError."""
        try:
            directory = RunDirectory.find(self._engine_name, self._engine_base)
            key = self._admin_key or directory.read_admin_key()
        except EngineNotFoundError as error:
            raise ControlError(f"engine {self._engine_name!r} is not running") from error
        except IpcError as error:
            raise ControlError(
                "no admin key: set HEADRACE_ADMIN_KEY to the configured one"
            ) from error
        sockets = sorted(directory.path.glob("admin.*.sock"))
        reply = self._ask_all([f"ipc://{path}" for path in sockets], command, dict(args), key)
        if reply is None:
            raise ControlError(f"none of {len(sockets)} admin workers answers")
        if reply.error:
            raise ControlError(reply.error)
        return reply.result

    def _ask_all(
        self, urls: list[str], command: str, args: Record, key: str
    ) -> ControlReply | None:
        context: Context = zmq.Context()
        try:
            for url in urls:
                sent = ControlCall(next(self._numbers), command, args, key=key, actor=actor())
                reply = _ask(context, url, sent)
                if reply is not None:
                    return reply
        finally:
            context.destroy(linger=0)
        return None


def _ask(context: Context, url: str, sent: ControlCall) -> ControlReply | None:
    """Return one worker's answer, or None if it is away or silent."""
    calls: Codec[ControlCall] = Codec(ControlCall)
    replies: Codec[ControlReply] = Codec(ControlReply, MAX_REPLY_BYTES)
    identity = f"top.{os.getpid()}.{sent.call_id}".encode()
    port: DealerPort[ControlReply, ControlCall] = DealerPort(context, url, identity, replies, calls)
    try:
        if not port.socket.poll(WORKER_TIMEOUT_MS, zmq.POLLOUT) or not port.send(sent):
            return None
        while port.socket.poll(WORKER_TIMEOUT_MS, zmq.POLLIN):
            for received in port.receive(1):
                if received.message.call_id == sent.call_id:
                    return received.message
    except FrameError as error:
        raise ControlError(str(error)) from error
    finally:
        port.close()
    return None


def actor() -> str:
    """Return who asks, for the audit log."""
    with suppress(KeyError, OSError):
        return f"top {getpass.getuser()}"
    return f"top {os.getuid()}"
