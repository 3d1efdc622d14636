"""The HTTP side of a worker: uvicorn's protocol with our bounds on a socket that all workers share.

Owns: the limits of the admin port. Never knows: routes. The limits are fixed and small: commands
have short bodies. A scraper or an operator needs few connections; those of a program that opens a
thousand at once are still answered, with 503 where nothing could be done.
"""

import asyncio
import socket

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from core.clock import Clock
from frontends.http.connection.limits import ByteBudget, ConnectionLimits
from frontends.http.connection.protocol import LimitedProtocol
from frontends.http.telemetry import Telemetry

BACKLOG = 1024
ADMIN_LIMITS = ConnectionLimits(
    max_connections=1024,
    max_body_bytes=65_536,
    max_header_bytes=16_384,
    header_timeout_s=5.0,
    body_timeout_s=5.0,
    write_timeout_s=5.0,
    keep_alive_s=15.0,
    write_buffer_bytes=262_144,
)


async def listen(app: ASGIApp, listener: socket.socket, clock: Clock) -> asyncio.Server:
    """Serve `app` on a bound, listening socket; close the returned server to stop accepting."""
    config = Config(app, lifespan="off", ws="none", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    budget = ByteBudget(ADMIN_LIMITS.max_buffered_body_bytes)
    telemetry = Telemetry()
    loop = asyncio.get_running_loop()

    def connection() -> LimitedProtocol:
        return LimitedProtocol(
            config,
            state,
            limits=ADMIN_LIMITS,
            budget=budget,
            telemetry=telemetry,
            clock=clock,
            loop=loop,
        )

    return await loop.create_server(connection, sock=listener, backlog=BACKLOG)
