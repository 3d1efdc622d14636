"""The zmq door of a worker: keys first, then one answer to each call, whatever else arrives."""

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq

from core.clock import NS_PER_S
from frontends.admin.access import Access
from frontends.admin.door import MAX_CALLS_AT_ONCE, Door
from ipc.async_port import AsyncPort
from ipc.control.declaration import ReplyCode
from ipc.control.registry import COMMANDS
from ipc.directory import DirectorySnapshot, DirectoryTenant
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, RouterPort
from tests.support.control_plane.control_rig import (
    CALLS,
    REPLIES,
    ControlRig,
    connect,
    control_rig,
    never,
)

ADMIN, TENANT = "hr-admin-1", "hr-tenant-1"


def digest(key: str) -> str:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


SNAPSHOT = DirectorySnapshot(
    version=1,
    tenants=(DirectoryTenant(name="acme", key_sha256=(digest(TENANT),)),),
    admin_key_sha256=digest(ADMIN),
)

Client = AsyncPort[ControlReply, ControlCall]
Served = AsyncPort[ControlCall, ControlReply]
Body = Callable[[ControlRig, Client, Served], Awaitable[None]]


def confirm(call: ControlCall) -> ControlReply:
    """Answer as a scheduler that carries everything out."""
    return ControlReply(call.call_id, {"done": True})


def at_the_door(
    directory: Path, body: Body, answer: Callable[[ControlCall], ControlReply | None] = confirm
) -> ControlRig:
    """Run `body` with a client at the door of a worker; return the rig."""

    async def main() -> ControlRig:
        context: Context = zmq.Context()
        url = f"ipc://{directory}/admin.0.sock"
        async with control_rig(directory, answer) as rig:
            port: RouterPort[ControlCall, ControlReply] = RouterPort(context, url, CALLS, REPLIES)
            served = AsyncPort(port)
            door = asyncio.create_task(Door(served, Access(lambda: SNAPSHOT), rig.handlers).run())
            client = connect(context, url)
            try:
                await body(rig, client, served)
            finally:
                door.cancel()
                await asyncio.gather(door, return_exceptions=True)
                client.close()
                served.close()
                context.destroy(linger=0)
            return rig

    return asyncio.run(main())


async def ask(client: Client, call: ControlCall) -> ControlReply:
    """Return the answer to a call."""
    assert client.send_nowait(call)
    (received,) = await client.receive()
    return received.message


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ADMIN, ""),
        (TENANT, ReplyCode.FORBIDDEN),
        ("", ReplyCode.UNAUTHENTICATED),
        ("hr-other-1", ReplyCode.UNAUTHENTICATED),
    ],
)
def test_every_command_needs_the_admin_key(socket_directory: Path, key: str, code: str) -> None:
    """With any other key nothing reaches the scheduler, whichever command is called."""

    async def body(rig: ControlRig, client: Client, served: Served) -> None:
        for number, name in enumerate(COMMANDS):
            args: dict[str, object] = {"tenant": "acme"} if name == "cancel" else {}
            reply = await ask(client, ControlCall(number, name, args, key=key))
            assert reply.call_id == number
            assert (reply.code == code) or (code == "" and reply.code not in refusals)
        assert bool(rig.scheduler.calls) == (code == "")

    refusals = (ReplyCode.FORBIDDEN, ReplyCode.UNAUTHENTICATED)
    at_the_door(socket_directory, body)


def test_refused_callers_are_counted_and_written_down_once_a_second(
    socket_directory: Path,
) -> None:
    """Guessing keys cannot flood the log, and what was sent is not kept."""

    async def body(rig: ControlRig, client: Client, served: Served) -> None:
        for _ in range(10):
            await ask(client, ControlCall(1, "cancel", {"tenant": "canary"}, key="guess"))
        rig.clock.time_ns += 2 * NS_PER_S
        await ask(client, ControlCall(1, "cancel", {"tenant": "canary"}, key="guess"))

    rig = at_the_door(socket_directory, body)
    assert rig.trail.num_refused == 11
    assert [record["refusals"] for record in rig.records] == [1, 10]
    assert "canary" not in repr(rig.records)
    assert "guess" not in repr(rig.records)


def test_noise_is_dropped_and_the_next_call_is_answered(socket_directory: Path) -> None:
    """Frames that are no call, from random bytes to truncated ones, cost their sender only."""

    async def body(rig: ControlRig, client: Client, served: Served) -> None:
        good = CALLS.encode(ControlCall(1, "status", key=ADMIN))
        noise = [b"", b"\x00", b"\x02" + good[1:], good[:-3], os.urandom(200), good + b"x"]
        context: Context = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.connect(f"ipc://{socket_directory}/admin.0.sock")
        for frame in noise:
            stranger.send_multipart([frame])
            stranger.send_multipart([frame, frame])
        while served.dropped_frames < 2 * len(noise):
            reply = await ask(client, ControlCall(5, "status", key=ADMIN))
            assert (reply.call_id, reply.error) == (5, "")
        context.destroy(linger=0)

    at_the_door(socket_directory, body)


def test_calls_at_once_are_bounded(socket_directory: Path) -> None:
    """Beyond the bound a call is answered busy at once instead of being queued."""

    async def body(rig: ControlRig, client: Client, served: Served) -> None:
        num_calls = MAX_CALLS_AT_ONCE + 40
        for number in range(num_calls):
            call = ControlCall(number, "cancel", {"tenant": "acme"}, key=ADMIN)
            assert client.send_nowait(call)
        replies: list[ControlReply] = []
        while len(replies) < num_calls:
            replies += [received.message for received in await client.receive()]
        assert {reply.call_id for reply in replies} == set(range(num_calls))
        codes = [reply.code for reply in replies]
        assert set(codes) <= {ReplyCode.BUSY, ReplyCode.NOT_CONFIRMED, ReplyCode.NOT_DELIVERED}
        assert ReplyCode.BUSY in codes

    at_the_door(socket_directory, body, never)
