"""The process's one loop: listen, beat, publish, and leave in order.

Owns: the listening socket, the connections and their protocol, the heartbeat (stamped by this loop
itself, so that a stuck loop falls silent), the board page. Never knows: routes or what they do.

    start ─► serve until asked to stop ─► drain: not ready, running answers go on, then end ─► close
"""

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from core.clock import NS_PER_S, Clock
from frontends.engine_client import EngineClient
from frontends.http.connection.limits import ByteBudget, ConnectionLimits
from frontends.http.connection.protocol import LimitedProtocol
from frontends.http.lifecycle import Lifecycle
from frontends.http.row_offers import RowOffers
from frontends.http.telemetry import Telemetry
from ipc.board import BoardWriter
from ipc.heartbeat import HeartbeatState

BACKLOG = 1024
CLOSE_TIMEOUT_S = 1.0
Stamp = Callable[[HeartbeatState, int], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """The server's own times."""

    heartbeat_s: float
    drain_timeout_s: float


class HttpServer:
    """Serves an application on an inherited socket until told to drain and all answers are out."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        client: EngineClient,
        *,
        limits: ConnectionLimits,
        timing: Timing,
        telemetry: Telemetry,
        offers: RowOffers,
        board: BoardWriter,
        stamp: Stamp,
        lifecycle: Lifecycle,
        on_end: Callable[[], None],
        clock: Clock,
        wall_clock_s: Callable[[], float],
    ) -> None:
        self._config = Config(app, ws="none", lifespan="off", log_config=None, access_log=False)
        self._listener = listener
        self._client = client
        self._limits = limits
        self._timing = timing
        self._telemetry = telemetry
        self._offers = offers
        self._board = board
        self._stamp = stamp
        self._lifecycle = lifecycle
        self._on_end = on_end
        self._clock = clock
        self._wall_clock_s = wall_clock_s
        self._state = ServerState()
        self._budget = ByteBudget(limits.max_buffered_body_bytes)
        self._date_s = 0

    async def serve(self, on_serving: Callable[[], None]) -> None:
        """Run to the end; `on_serving` is called once connections are accepted."""
        self._config.load()
        self._listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.write_buffer_bytes
        )
        self._client.start()
        self._tick()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._protocol, sock=self._listener, backlog=BACKLOG)
        try:
            on_serving()
            await self._serve()
            await self._drain()
        finally:
            server.close()
            await self._close()

    def _protocol(self) -> LimitedProtocol:
        return LimitedProtocol(
            self._config,
            self._state,
            limits=self._limits,
            budget=self._budget,
            telemetry=self._telemetry,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
        )

    async def _serve(self) -> None:
        while not self._lifecycle.is_draining:
            self._tick()
            await self._lifecycle.wait(self._timing.heartbeat_s)

    async def _drain(self) -> None:
        """Close idle connections at once, the others after their answers; those that take longer
        than there is time end with an error that says so.
        """
        self._tick()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._answer(self._timing.drain_timeout_s)
        self._client.end_all()
        await self._answer(CLOSE_TIMEOUT_S)
        self._publish(self._clock.now_ns())

    async def _answer(self, timeout_s: float) -> None:
        """Go on until all answers are out, or for `timeout_s`."""
        deadline_ns = self._clock.now_ns() + round(timeout_s * NS_PER_S)
        while self._state.tasks and self._clock.now_ns() < deadline_ns:
            await asyncio.wait(self._state.tasks, timeout=self._timing.heartbeat_s)
            self._tick()

    async def _close(self) -> None:
        """Close what is left, and give the transports a moment to say so."""
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=CLOSE_TIMEOUT_S)
        await self._client.stop()
        await asyncio.to_thread(self._on_end)

    def _tick(self) -> None:
        """What is due at every heartbeat."""
        now_ns = self._clock.now_ns()
        busy = self._state.tasks or self._client.num_operations
        working = HeartbeatState.BUSY if busy else HeartbeatState.IDLE
        self._stamp(HeartbeatState.DRAINING if self._lifecycle.is_draining else working, now_ns)
        self._client.tick()
        self._publish(now_ns)
        self._set_date()

    def _publish(self, now_ns: int) -> None:
        page, statistics = self._board.page, self._client.statistics()
        connections = self._state.connections
        page["num_connections"] = len(connections)
        page["backlog_events"] = statistics.num_unread_events
        page["backlog_bytes"] = sum(c.transport.get_write_buffer_size() for c in connections)
        self._offers.look(now_ns)
        self._telemetry.fill(page, statistics.dropped_frames)
        self._board.publish(now_ns)

    def _set_date(self) -> None:
        """Renew the Date header of all answers, once a second."""
        now_s = int(self._wall_clock_s())
        if now_s != self._date_s:
            self._date_s = now_s
            date = formatdate(now_s, usegmt=True).encode()
            self._state.default_headers = [(b"date", date)]
