"""One worker of the admin pool: its own process, sockets, memory and loop, off the data path.

Owns: wiring and the loop's heartbeat. Never knows: requests' data. Two or more workers share the
inherited HTTP socket; each has a socket of its own for `ctl` and the dashboard. Nothing here waits
for another process without a bound, so a worker answers while the scheduler or an executor is
stopped.

    ctl, dashboard ─► admin.K.sock ─┐                        ┌─► scheduler.sock
    HTTP ─► port shared by workers ─┴─ Access ─► Handlers ───┼─► supervisor.sock
                                                             └─► board pages
"""

import asyncio
import gc
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uvloop
import zmq

from core.clock import Clock
from core.config.file import config_from_json
from core.config.headrace import HeadraceConfig
from core.model_card import ModelCard, card_from_json
from core.user_directories import state_directory
from frontends.admin.access import Access
from frontends.admin.app import AdminApp
from frontends.admin.audit.log import AuditLog, iso_time
from frontends.admin.audit.trail import Trail
from frontends.admin.commands import views
from frontends.admin.commands.handlers import Handlers
from frontends.admin.commands.own_answers import OwnAnswers, engine_id
from frontends.admin.commands.peers import Peer
from frontends.admin.door import Door
from frontends.admin.listener import listen
from frontends.admin.state.keeper import Keeper
from frontends.admin.state.keeping import STATE_BELL, Keeping
from frontends.board_source import BoardSource
from frontends.boards import Boards
from frontends.health import assess
from frontends.http.gate.origin import HostList
from frontends.metrics.render import render
from frontends.metrics.vllm import facts_of
from ipc.async_port import AsyncPort
from ipc.child import Child
from ipc.codec import Codec
from ipc.control.declaration import Destination
from ipc.control.registry import COMMANDS
from ipc.directory import DirectoryReader
from ipc.heartbeat import HeartbeatState
from ipc.messages import ControlCall, ControlReply
from ipc.pages import ADMIN_PAGE
from ipc.ports import Context, DealerPort, RouterPort
from ipc.segment import Segment

MAX_CALL_BYTES = 65_536
MAX_REPLY_BYTES = 16 * 2**20

CallPort = AsyncPort[ControlReply, ControlCall]
DoorPort = AsyncPort[ControlCall, ControlReply]


@dataclass(frozen=True, slots=True)
class Ports:
    """The zmq sockets of a worker."""

    door: DoorPort
    scheduler: CallPort
    supervisor: CallPort

    @classmethod
    def open(cls, child: Child, context: Context) -> "Ports":
        """Bind this worker's own socket and connect to the others'."""
        directory = child.run_directory
        calls: Codec[ControlCall] = Codec(ControlCall, MAX_CALL_BYTES)
        replies: Codec[ControlReply] = Codec(ControlReply, MAX_REPLY_BYTES)
        identity = f"{child.child_id}.{child.epoch}".encode()
        door = RouterPort(context, directory.admin_url(worker_index(child)), calls, replies)
        scheduler, supervisor = (
            DealerPort(context, url, identity, replies, calls)
            for url in (directory.scheduler_url, directory.supervisor_url)
        )
        return cls(AsyncPort(door), AsyncPort(scheduler), AsyncPort(supervisor))

    @property
    def dropped_frames(self) -> int:
        """Frames that were no message, on all sockets."""
        return sum(p.dropped_frames for p in (self.door, self.scheduler, self.supervisor))

    def close(self) -> None:
        """Close all sockets."""
        for port in (self.door, self.scheduler, self.supervisor):
            port.close()


class Worker:
    """One admin worker, from its wiring to its end."""

    def __init__(self, child: Child, context: Context, clock: Clock) -> None:
        """Wire everything up; `run` serves."""
        self._child = child
        self._clock = clock
        self._config: HeadraceConfig = config_from_json(bytes(child.setup.config))
        card: ModelCard = card_from_json(child.setup.model)
        self._facts = facts_of(self._config, card.name)
        self._source = BoardSource(child.run_directory, child.setup.peers, clock)
        state = state_directory(os.environ) / child.run_directory.name
        self._audit = AuditLog(state, utc_now)
        self._trail = Trail(child.child_id, COMMANDS, self._audit.record, clock)
        self._ports = Ports.open(child, context)
        self._peers = {
            Destination.SCHEDULER: Peer(self._ports.scheduler, self._trail.answered_late),
            Destination.SUPERVISOR: Peer(self._ports.supervisor, self._trail.answered_late),
        }
        segment = Segment.open(child.run_directory.directory, readonly=True)
        self._access = Access(DirectoryReader(segment).read)
        self._keeping = self._keeping_in(state)
        self._handlers = self._handlers_over(state)
        self._board = child.page(ADMIN_PAGE)

    def _handlers_over(self, state: Path) -> Handlers:
        """Return what carries out commands; `state` is the state directory of the engine."""
        own = OwnAnswers(
            self._child.run_directory, state, self._config, self._source.read, time.time
        )
        return Handlers(
            commands=COMMANDS,
            peers=self._peers,
            read_boards=self._source.read,
            board_views={
                "status": self._status,
                "requests": requests_view,
                "tenants": lambda boards, args: views.tenancy(boards),
                "price": lambda boards, args: views.price(boards),
                "cache-stats": lambda boards, args: views.cache_from_board(boards),
            },
            own_answers={"usage": own.usage, "audit": own.audit, "dump": own.dump},
            trail=self._trail,
        )

    async def run(self) -> None:
        """Serve until the supervisor says stop."""
        server = await listen(self._app(), self._child.listening_socket("admin"), self._clock)
        door = Door(self._ports.door, self._access, self._handlers)
        serving = [asyncio.create_task(peer.run()) for peer in self._peers.values()]
        serving.append(asyncio.create_task(door.run()))
        self._child.serving()
        if self._keeping is not None:
            self._keeping.start(self._child.doorbell(STATE_BELL))
        gc.collect()
        gc.freeze()
        try:
            await self._tick_until_stopped(serving)
        finally:
            server.close()
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            self._ports.close()
            self._audit.close()
            if self._keeping is not None:
                await asyncio.to_thread(self._keeping.close)

    async def _tick_until_stopped(self, serving: list[asyncio.Task[None]]) -> None:
        """Stamp the heartbeat and publish the page; a task that ends is a fault of ours and ends
        us."""
        interval_s = self._config.supervision.heartbeat_ms / 1000
        while not self._child.stop_requested:
            self._publish()
            if self._keeping is not None:
                self._keeping.tick()
            ended, _ = await asyncio.wait(serving, timeout=interval_s)
            for task in ended:
                task.result()
            assert not ended, "a serving task returned"

    def _publish(self) -> None:
        now_ns = self._clock.now_ns()
        self._child.stamp(HeartbeatState.IDLE, now_ns)
        page = self._board.page
        page["commands"] = self._trail.num_commands
        page["refused"] = self._trail.num_refused
        page["dropped_frames"] = self._ports.dropped_frames
        page["keep_failures"] = 0 if self._keeping is None else self._keeping.failures
        page["kept_ns"] = self._kept_ns(now_ns)
        self._board.publish(now_ns)

    def _kept_ns(self, now_ns: int) -> int:
        """Return up to which pages the counters are kept: where nobody keeps them, all are."""
        if self._keeping is not None:
            return self._keeping.kept_ns
        return 0 if self._config.admin.keep_state else now_ns

    def _keeping_in(self, state: Path) -> Keeping | None:
        """Return what keeps usage and changes: in worker 0, unless that is switched off."""
        child = self._child
        if worker_index(child) != 0 or not self._config.admin.keep_state:
            return None
        watch = child.directory()
        keeper = Keeper(state, engine_id(child.run_directory), time.time, watch.confirm)
        segment = Segment.open(child.run_directory.directory, readonly=True)
        return Keeping(keeper, DirectoryReader(segment).read, self._source.read)

    def _app(self) -> AdminApp:
        limits = self._config.supervision
        return AdminApp(
            access=self._access,
            hosts=HostList(self._config.admin.host, ()),
            handlers=self._handlers,
            commands=COMMANDS,
            health=lambda: assess(self._source.read(), limits),
            metrics=lambda: render(self._source.read(), self._facts),
            version=version("headrace"),
        )

    def _status(self, boards: Boards, args: Mapping[str, object]) -> views.Record:
        name = self._child.run_directory.name
        return views.status(boards, name, self._facts, self._config.supervision)


def requests_view(boards: Boards, args: Mapping[str, object]) -> views.Record:
    """Answer `requests` for a silent scheduler."""
    tenant = args.get("tenant")
    return views.requests_from_board(boards, str(tenant) if tenant is not None else None)


def worker_index(child: Child) -> int:
    """Return K of `admin.K`."""
    return int(child.child_id.partition(".")[2])


def utc_now() -> str:
    """Return the wall-clock time as ISO 8601 text, UTC."""
    return iso_time(time.time())


def run_worker(child: Child, clock: Clock) -> None:
    """Run one worker to its end."""
    context: Context = zmq.Context()
    try:
        worker = Worker(child, context, clock)
        uvloop.run(worker.run())
    finally:
        context.destroy(linger=0)
