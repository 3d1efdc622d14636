"""One HTTP/1.1 connection with a bound on every byte (`weight`) and every wait (`deadlines`).

Owns: what is refused before it is buffered, the order of requests and answers, and the news that a
client has left. Never knows: routes, JSON, the engine. It is uvicorn's httptools protocol with
these rules added:

* an application is started only when its request has arrived whole, so it never waits for a body;
* data that comes while a response runs is held (bounded) instead of pausing the transport, because
  a paused transport does not notice that its peer has gone;
* `connection_lost` calls the callback that the running exchange left here, in the same loop turn;
* an offer of another protocol is not heard, so that a body behind it arrives;
* an HTTP/1.0 client gets no chunks;
* what cannot be accepted is answered after the good requests before it, and ends the connection.

A client that ends its side of the connection looks exactly like one that has closed it. If it waits
for something generated, which would go on for nobody, it counts as gone at once; every other answer
costs little and is still sent.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from core.clock import Clock
from frontends.http.connection.deadlines import READ_FIRST_S, Deadline, ReaderWatch
from frontends.http.connection.limits import (
    MAX_PIPELINED_BYTES,
    MAX_PIPELINED_REQUESTS,
    ByteBudget,
    ConnectionLimits,
    Phase,
)
from frontends.http.connection.weight import RequestWeight
from frontends.http.errors import ApiError, bad_request, overloaded
from frontends.http.request_id import new_request_id
from frontends.http.telemetry import Telemetry

UPGRADE = b"upgrade"
HEADER_OVERHEAD_BYTES = 4  # ": " and CRLF of a header line


class LimitedProtocol(HttpToolsProtocol):
    """A connection; what is above "The transport's side" is for its running exchange."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        *,
        limits: ConnectionLimits,
        budget: ByteBudget,
        telemetry: Telemetry,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, app_state={}, _loop=loop)
        self.timeout_keep_alive = limits.keep_alive_s  # type: ignore[assignment]
        self._limits = limits
        self._telemetry = telemetry
        self._clock = clock
        self._phase = Phase.HEAD
        self._deadline = Deadline(loop)
        self._reader = ReaderWatch(
            loop, limits.write_timeout_s, self._unsent_bytes, self._cut_slow_reader
        )
        self._weight = RequestWeight(limits, budget)
        self._has_ended_message = False
        self._refusal: ApiError | None = None
        self._last_answer: ApiError | None = None
        self._ahead = b""
        self._waiting: tuple[RequestResponseCycle, ASGI3Application] | None = None
        self._running: RequestResponseCycle | None = None
        self._has_ended = False
        self._on_lost: Callable[[], None] | None = None

    # The exchange's side.

    def cut(self) -> None:
        """Drop the connection at once, with whatever was not sent."""
        if self._running is not None:
            self._running.disconnected = True  # its answer ends early, and rightly so
        self.transport.abort()

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` once if the client leaves before its answer, even if it has left."""
        self._on_lost = on_lost
        if self._has_ended:
            self._tell_lost()

    def close_soon(self) -> None:
        """Close when the running response is complete and nothing has come for a moment: a client
        that keeps its connections may send its next request before it can see the end.
        """
        self.timeout_keep_alive = self._limits.linger_s  # type: ignore[assignment]

    @property
    def takes_parts(self) -> bool:
        """Whether `write_part` may be called: a chunked answer runs, and its reader keeps up."""
        cycle = self._running
        return (
            cycle is not None
            and cycle.response_started
            and bool(cycle.chunked_encoding)
            and not (self.flow.write_paused or cycle.disconnected)
        )

    def write_part(self, data: bytes) -> None:
        """Write a part, not empty, of the running chunked answer without waiting."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self._limits.slice_bytes)
        num_connections = len(self.connections)
        if num_connections > 2 * self._limits.max_connections:
            self.cut()
        elif num_connections > self._limits.max_connections:
            self._refuse(overloaded("Too many connections.", "too_many_connections"))
        else:
            self._enter(Phase.HEAD, self._limits.header_timeout_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.stop()
        self._reader.stop()
        self._unset_keepalive_if_required()
        self._weight.release()
        self._phase = Phase.CLOSING
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        self._tell_lost()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        self._has_ended = True
        if self._on_lost is not None:
            self._tell_lost()
            self.cut()
        return self._running is not None

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._phase is Phase.CLOSING:
            return
        if self._phase is Phase.IDLE and self._running is not None:
            self._hold(data)
            return
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD, self._limits.header_timeout_s, self._head_is_late)
        self._feed(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reader.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reader.stop()

    # The parser's side.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._weight.begin()
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD, self._limits.header_timeout_s, self._head_is_late)

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._refuse_if(self._weight.add_head(len(url)))

    def on_header(self, name: bytes, value: bytes) -> None:
        num_bytes = len(name) + len(value) + HEADER_OVERHEAD_BYTES
        self._refuse_if(self._weight.add_head(num_bytes))
        if self._phase is not Phase.BODY:  # what follows a chunked body is no part of the head
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._refuse_if(bad_request("This server is no proxy."))
        if self.parser.should_upgrade():
            return
        self._refuse_if(self._weight.announce_body(self.headers))
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            self._refuse_if(bad_request("Too many pipelined requests."))
        state: dict[str, Any] = self.scope["state"]
        state["connection"] = self
        state["accepted_ns"] = self._clock.now_ns()
        super().on_headers_complete()
        self.flow.resume_reading()
        self._enter(Phase.BODY, self._limits.body_timeout_s, self._body_is_late)
        self._continue()

    def on_body(self, body: bytes) -> None:
        self._refuse_if(self._weight.add_body(len(body)))
        self.cycle.body += body

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._weight.release()
        self._has_ended_message = True
        self._phase = Phase.IDLE
        self._deadline.stop()
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._start_asgi_task(*waiting)

    # uvicorn's side.

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.more_body:
            self._waiting = (cycle, app)
            return
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._running = None
        self._on_lost = None
        super().on_response_complete()
        if not self.transport.is_closing():
            self._feed_held()
            self._refuse_at_last()
        if self._has_ended and self._running is None:
            self.transport.close()
        if self.transport.is_closing():
            self._deadline.set(self._limits.write_timeout_s, self.cut)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(READ_FIRST_S, self._keep_alive_is_over)

    def _keep_alive_is_over(self) -> None:
        if self._unsent_bytes():
            self.cut()
        else:
            super().timeout_keep_alive_handler()

    # Inside.

    def _feed(self, data: bytes) -> None:
        """Give bytes to the parser and answer what it cannot accept."""
        self._has_ended_message = False
        try:
            self.parser.feed_data(data)
            if self._phase is Phase.HEAD and not self._has_ended_message:
                self._refuse_if(self._weight.add_fed(len(data)))
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._head_without_upgrade() + data[upgrade.args[0] :])
        except (httptools.HttpParserError, ApiError):
            self._refuse(
                self._refusal or bad_request("The bytes received are not an HTTP request.")
            )

    def _head_without_upgrade(self) -> bytes:
        """Return the head just parsed without its offer, for a parser that takes its body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != UPGRADE]
        self.parser = httptools.HttpRequestParser(self)
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _hold(self, data: bytes) -> None:
        """Keep what comes while a response runs."""
        self._ahead += data
        if len(self._ahead) > MAX_PIPELINED_BYTES:
            self.cut()

    def _feed_held(self) -> None:
        """Go on with what was held, unless another response runs already."""
        if self._running is None and self._ahead:
            data, self._ahead = self._ahead, b""
            self.data_received(data)

    def _refuse_if(self, refusal: ApiError | None) -> None:
        """Leave the parser; `_feed` answers, whatever the parser makes of the exception."""
        if refusal is not None:
            self._refusal = refusal
            raise refusal

    def _continue(self) -> None:
        """Tell a client that waits for leave to send its body that it may."""
        if self.cycle.waiting_for_100_continue and self._running is None:
            self.cycle.waiting_for_100_continue = False
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _head_is_late(self) -> None:
        if self._weight.has_head:
            self._refuse(_late("head", self._limits.header_timeout_s))
        else:
            self.cut()

    def _body_is_late(self) -> None:
        self._refuse(_late("body", self._limits.body_timeout_s))

    def _refuse(self, refusal: ApiError) -> None:
        """Answer without an application, after whatever came before, and read on so that no reset
        overtakes the answer.
        """
        if self._phase is Phase.BODY:
            self.cycle.body = bytearray()  # it will never be complete
        self._phase = Phase.CLOSING
        self._waiting = None
        self._weight.release()
        if self._running is not None:
            self._deadline.stop()
            self._last_answer = refusal
            return
        self._telemetry.count_response(refusal.status)
        self.transport.write(_response(refusal))
        self.transport.write_eof()
        self._deadline.set(self._limits.linger_s, self.cut)

    def _refuse_at_last(self) -> None:
        """Give the refusal that had to wait for answers to earlier requests, if there is one."""
        if self._running is None and self._last_answer is not None:
            refusal, self._last_answer = self._last_answer, None
            self._refuse(refusal)

    def _enter(self, phase: Phase, timeout_s: float, on_timeout: Callable[[], None]) -> None:
        self._phase = phase
        self._deadline.set_after_reading(timeout_s, on_timeout)

    def _unsent_bytes(self) -> int:
        size: int = self.transport.get_write_buffer_size()
        return size

    def _cut_slow_reader(self) -> None:
        self._telemetry.slow_readers_cut += 1
        self.cut()

    def _tell_lost(self) -> None:
        """Tell the running exchange, once, that its client is gone."""
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            self._telemetry.disconnects += 1
            on_lost()


def _without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Return `app` answering a client that knows no chunks: a body may end with the connection."""
    cycle.chunked_encoding = False

    async def plain(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_plain(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message["body"])
            await send(message)

        await app(scope, receive, send_plain)

    return plain


def _late(part: str, timeout_s: float) -> ApiError:
    message = f"The request {part} did not arrive within {timeout_s:g} s."
    return ApiError(408, message, code="request_timeout")


def _response(refusal: ApiError) -> bytes:
    """Return a whole response that ends the connection."""
    body = refusal.body()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", new_request_id().encode()),
        (b"connection", b"close"),
        *refusal.headers(),
    ]
    lines = b"".join(b"%s: %s\r\n" % header for header in headers)
    return STATUS_LINE[refusal.status] + lines + b"\r\n" + body
