"""The control plane of one engine without its processes: sockets in a directory, scripted
executors.

`ScriptedExecutor` is the serving end that a scheduler or supervisor has, on a real zmq socket; a
test says what it answers, or that it never does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import zmq

from frontends.admin.audit.trail import Trail
from frontends.admin.commands.handlers import BOUNDS, Bounds, Handlers
from frontends.admin.commands.peers import Peer
from frontends.admin.commands.views import Record, requests_from_board
from frontends.boards import Boards
from ipc.async_port import AsyncPort
from ipc.codec import Codec
from ipc.control.declaration import Destination
from ipc.control.registry import COMMANDS
from ipc.messages import ControlCall, ControlReply
from ipc.ports import Context, DealerPort, RouterPort
from tests.support.control_plane.boards import NOW_NS, healthy

Answer = Callable[[ControlCall], ControlReply | None]

PATIENT = Bounds(answer_s=60.0)  # however busy the machine is, an answer comes
CALLS: Codec[ControlCall] = Codec(ControlCall)
REPLIES: Codec[ControlReply] = Codec(ControlReply)


def never(call: ControlCall) -> None:
    """Answer as a process that is stopped."""


class StoppedClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time_ns = NOW_NS

    def now_ns(self) -> int:
        """Return the time that was set."""
        return self.time_ns


class ScriptedExecutor:
    """Answers calls as a test says; None = no answer, and the call is kept for `answer_late`."""

    def __init__(self, context: Context, url: str, answer: Answer) -> None:
        port: RouterPort[ControlCall, ControlReply] = RouterPort(context, url, CALLS, REPLIES)
        self._port = AsyncPort(port)
        self._answer = answer
        self._unanswered: asyncio.Queue[tuple[bytes, ControlCall]] = asyncio.Queue()
        self.calls: list[ControlCall] = []

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            for received in await self._port.receive():
                self.calls.append(received.message)
                reply = self._answer(received.message)
                if reply is None:
                    self._unanswered.put_nowait((received.peer, received.message))
                else:
                    self._port.send_nowait(reply, received.peer)

    async def answer_late(self, result: Mapping[str, object]) -> None:
        """Answer the oldest call that is left open."""
        peer, call = await self._unanswered.get()
        self._port.send_nowait(ControlReply(call.call_id, dict(result), step=5), peer)

    def close(self) -> None:
        """Close the socket."""
        self._port.close()


class ControlRig:
    """Handlers between a scripted scheduler and, unless scripted too, no supervisor."""

    def __init__(
        self, context: Context, directory: Path, answer: Answer, supervisor: Answer | None
    ) -> None:
        self.boards: Boards = healthy()
        self.records: list[Mapping[str, object]] = []
        self.clock = StoppedClock()
        self.trail = Trail("admin.0", COMMANDS, self.records.append, self.clock)
        self.scheduler = ScriptedExecutor(context, f"ipc://{directory}/scheduler.sock", answer)
        self.executors = [self.scheduler]
        if supervisor is not None:
            url = f"ipc://{directory}/supervisor.sock"
            self.executors.append(ScriptedExecutor(context, url, supervisor))
        self.ports = [
            connect(context, f"ipc://{directory}/{name}.sock")
            for name in ("scheduler", "supervisor")
        ]
        self.peers = [Peer(port, self.trail.answered_late) for port in self.ports]
        self.handlers = Handlers(
            commands=COMMANDS,
            peers={
                Destination.SCHEDULER: self.peers[0],
                Destination.SUPERVISOR: self.peers[1],
            },
            read_boards=lambda: self.boards,
            board_views={"status": status_view, "requests": requests_view},
            own_answers={},
            trail=self.trail,
            bounds=BOUNDS if answer is never else PATIENT,
        )

    def close(self) -> None:
        """Close all sockets."""
        for executor in self.executors:
            executor.close()
        for port in self.ports:
            port.close()


def connect(context: Context, url: str) -> AsyncPort[ControlReply, ControlCall]:
    """Return a worker's port to `url`, connected if somebody serves there."""
    dealer: DealerPort[ControlReply, ControlCall] = DealerPort(
        context, url, b"admin.0.1", REPLIES, CALLS
    )
    if Path(url.removeprefix("ipc://")).exists():
        assert dealer.socket.poll(60_000, zmq.POLLOUT), f"no connection to {url}"
    return AsyncPort(dealer)


def status_view(boards: Boards, args: Mapping[str, object]) -> Record:
    """Answer `status` with the time of the boards."""
    return {"taken_ns": boards.taken_ns}


def requests_view(boards: Boards, args: Mapping[str, object]) -> Record:
    """Answer `requests` from the boards, as a worker does."""
    tenant = args.get("tenant")
    return requests_from_board(boards, str(tenant) if tenant is not None else None)


@asynccontextmanager
async def control_rig(
    directory: Path, answer: Answer, supervisor: Answer | None = None
) -> AsyncIterator[ControlRig]:
    """Run a rig whose scheduler answers with `answer`, and its supervisor if there is one."""
    context: Context = zmq.Context()
    rig = ControlRig(context, directory, answer, supervisor)
    tasks = [asyncio.create_task(peer.run()) for peer in rig.peers]
    tasks += [asyncio.create_task(executor.run()) for executor in rig.executors]
    try:
        yield rig
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        rig.close()
        context.destroy(linger=0)
