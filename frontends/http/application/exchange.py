"""One request and its answer, as a route sees them.

Owns: reading the body, writing the answer in slices a slow reader can hold up, the headers every
answer carries. Never knows: which route it serves. It speaks plain ASGI to the protocol and nothing
of starlette, whose response classes poll for the disconnect that our protocol reports by itself.
"""

from collections.abc import Callable
from typing import Protocol

import orjson
from starlette.types import Receive, Scope, Send

from core.errors import RejectionReason
from core.tenancy.classes import TrafficClass
from core.tenancy.rows import OTHER_NAME
from frontends.http.errors import ApiError, Header
from frontends.http.gate.auth import Tenant
from frontends.http.telemetry import Telemetry

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class ClientGoneError(Exception):
    """The client left before its answer; there is nobody to tell."""


class Connection(Protocol):
    """What an exchange may ask of the connection it runs on."""

    def cut(self) -> None:
        """Drop the connection at once."""
        ...

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Call `on_lost` once if the client leaves before its answer, even if it has left."""
        ...

    def close_soon(self) -> None:
        """Close when the running response is complete and nothing has come for a moment."""
        ...

    @property
    def takes_parts(self) -> bool:
        """Whether `write_part` may be called now."""
        ...

    def write_part(self, data: bytes) -> None:
        """Write a part, not empty, of the running chunked answer without waiting."""
        ...


class Exchange:
    """A request that has arrived whole, and the one answer to it."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        request_id: str,
        telemetry: Telemetry,
        slice_bytes: int,
    ) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.accepted_ns: int = scope["state"]["accepted_ns"]
        self.connection: Connection = scope["state"]["connection"]
        self.request_id = request_id
        self.telemetry = telemetry
        self.tenant: Tenant | None = None
        self.traffic_class: TrafficClass | None = None
        self.tenant_headers: Callable[[], list[Header]] | None = None
        self.has_started = False
        self._headers: list[Header] = scope["headers"]
        self._receive = receive
        self._send = send
        self._slice_bytes = slice_bytes

    def header(self, name: bytes) -> bytes | None:
        """Return the first value of a header (lower-case name)."""
        return next((value for key, value in self._headers if key == name), None)

    def count_header(self, name: bytes) -> int:
        """Return how often a header (lower-case name) was sent."""
        return sum(key == name for key, _ in self._headers)

    def authenticated(self) -> Tenant:
        """Return the tenant that the gate has established."""
        assert self.tenant is not None, "this route is open and has no tenant"
        return self.tenant

    async def body(self) -> bytes:
        """Return the whole body; raises ClientGoneError if the client left."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        assert not message["more_body"], "the protocol starts a route only when its body is whole"
        body: bytes = message["body"]
        return body

    async def start(
        self, status: int, content_type: bytes, headers: list[Header], length: int | None = None
    ) -> None:
        """Send status and headers; without `length` the body is a stream."""
        self.has_started = True
        self.telemetry.count_response(status)
        all_headers = [
            (b"content-type", content_type),
            (b"x-request-id", self.request_id.encode()),
            *headers,
        ]
        if self.traffic_class is not None:
            all_headers.append((b"x-headrace-class", self.traffic_class.name.lower().encode()))
        if self.tenant_headers is not None:
            all_headers += self.tenant_headers()
        if length is not None:
            all_headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a part of the body, waiting while the client's buffer is full."""
        size = self._slice_bytes
        start = 0
        while len(data) - start > size:
            part = data[start : start + size]
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
            start += size
        part = data[start:] if start else data
        await self._send({"type": "http.response.body", "body": part, "more_body": more})

    async def respond(
        self, status: int, content_type: bytes, body: bytes, headers: list[Header] | None = None
    ) -> None:
        """Send a whole answer."""
        await self.start(status, content_type, headers or [], len(body))
        await self.write(body, more=False)

    async def respond_json(
        self, content: object, *, status: int = 200, headers: list[Header] | None = None
    ) -> None:
        """Send a whole answer in JSON."""
        await self.respond(status, JSON, orjson.dumps(content), headers)

    async def fail(self, error: ApiError) -> None:
        """Send an error as the whole answer."""
        self.count_rejection(error)
        await self.respond(error.status, JSON, error.body(), error.headers())

    def count_rejection(self, error: ApiError) -> None:
        """Count the engine's reason behind an error, if it has one."""
        if error.reason is not RejectionReason.NONE:
            tenant = OTHER_NAME if self.tenant is None else self.tenant.name
            self.telemetry.count_rejection(error.reason, tenant)

    def cut_slow_reader(self) -> None:
        """Drop the connection of a client that takes its answer too slowly."""
        self.telemetry.slow_readers_cut += 1
        self.connection.cut()
