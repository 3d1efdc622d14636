"""Talks to the admin pool of a running engine: finds it by name, asks one worker after the other.

Owns: the way to an answer and its bounds. Never knows: which commands exist or how answers look. A
worker that does not answer within a second is passed over; commands are idempotent, so asking the
next one is safe.
"""

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq

from core.terminal import CommandError, ExitCode
from ipc.codec import Codec
from ipc.errors import EngineNotFoundError, IpcError, RunDirectoryError
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, DealerPort
from ipc.run_directory import RunDirectory

WORKER_TIMEOUT_MS = 1000
MAX_REPLY_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine, the URLs of its admin workers and the key to them."""

    name: str
    admin_urls: tuple[str, ...]
    key: str


def find_engine(name: str, environ: Mapping[str, str], base: Path | None = None) -> Engine:
    """Return the engine called `name`; raises CommandError if it does not run.

    The key is HEADRACE_ADMIN_KEY, or the random one that the engine wrote for this user.
    """
    try:
        directory = RunDirectory.find(name, base)
    except EngineNotFoundError as error:
        raise CommandError(str(error), ExitCode.NOT_RUNNING) from error
    except IpcError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    sockets = sorted(directory.path.glob("admin.*.sock"))
    return Engine(name, tuple(f"ipc://{path}" for path in sockets), admin_key(directory, environ))


def admin_key(directory: RunDirectory, environ: Mapping[str, str]) -> str:
    """Return the admin key of an engine; raises CommandError if it is not to be found."""
    given = environ.get("HEADRACE_ADMIN_KEY", "")
    if given:
        return given
    try:
        return directory.read_admin_key()
    except RunDirectoryError as error:
        raise CommandError(
            "this engine has a configured admin key: set HEADRACE_ADMIN_KEY to it"
        ) from error


def call(engine: Engine, command: str, args: Mapping[str, object]) -> ControlReply:
    """Return the first worker's answer; raises CommandError if none answers in time."""
    context: Context = zmq.Context()
    try:
        for index, url in enumerate(engine.admin_urls):
            sent = ControlCall(index, command, dict(args), key=engine.key, actor=actor())
            reply = ask(context, url, sent)
            if reply is not None:
                return reply
    finally:
        context.destroy(linger=0)
    count = len(engine.admin_urls)
    raise CommandError(f"engine {engine.name!r} runs but none of its {count} admin workers answers")


def ask(context: Context, url: str, sent: ControlCall) -> ControlReply | None:
    """Return one worker's answer, or None if it is away or silent for a second."""
    calls: Codec[ControlCall] = Codec(ControlCall)
    replies: Codec[ControlReply] = Codec(ControlReply, MAX_REPLY_BYTES)
    identity = f"ctl.{os.getpid()}.{sent.call_id}".encode()
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


def actor() -> str:
    """Return who asks, for the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"ctl {user}"
