"""The ASGI application: one gate for all requests, then a route, one place that tells errors.

Owns: the order of the checks (Host, Origin, key, route) and that every fault becomes an answer in
JSON. Never knows: what a route does.
"""

import logging
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from core.errors import Rejection, RejectionReason
from frontends.http.application.exchange import ClientGoneError, Exchange
from frontends.http.errors import (
    SERVER,
    SHOWN_CHARACTERS,
    ApiError,
    bad_request,
    from_rejection,
    permission_denied,
    unsupported_coding,
)
from frontends.http.gate.auth import Authenticator
from frontends.http.gate.origin import HostList
from frontends.http.lifecycle import Lifecycle
from frontends.http.request_id import request_id_for
from frontends.http.telemetry import Telemetry
from frontends.operation import OperationClosedError

logger = logging.getLogger("headrace.http")

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/health/progress", "/version"})

Handler = Callable[[Exchange], Awaitable[None]]


class Endpoint:
    """An ASGI application around one handler, for the router."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the handler on the exchange that the application has made."""
        await self._handler(scope["exchange"])


class Application:
    """The whole server above the connection."""

    def __init__(
        self,
        router: Router,
        authenticator: Authenticator,
        hosts: HostList,
        telemetry: Telemetry,
        lifecycle: Lifecycle,
        *,
        slice_bytes: int,
    ) -> None:
        self._router = router
        self._authenticator = authenticator
        self._hosts = hosts
        self._telemetry = telemetry
        self._lifecycle = lifecycle
        self._slice_bytes = slice_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        assert scope["type"] == "http", scope["type"]
        exchange = self._exchange(scope, receive, send)
        self._telemetry.requests += 1
        try:
            self._admit(exchange)
            scope["app"] = self
            scope["exchange"] = exchange
            await self._router(scope, receive, send)
        except (ClientGoneError, OperationClosedError):
            exchange.connection.cut()
        except ApiError as error:  # without the frames, whose cycle would keep the request alive
            await exchange.fail(error.with_traceback(None))
        except HTTPException as error:
            await exchange.fail(_routing_error(exchange, error))
        except (
            Exception
        ):  # the last resort: a fault of ours is logged, and told without its details
            logger.exception("request %s failed", exchange.request_id)
            await self._break_off(exchange)

    def _exchange(self, scope: Scope, receive: Receive, send: Send) -> Exchange:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        given = next((value for name, value in headers if name == b"x-request-id"), None)
        return Exchange(
            scope,
            receive,
            send,
            request_id=request_id_for(given),
            telemetry=self._telemetry,
            slice_bytes=self._slice_bytes,
        )

    def _admit(self, exchange: Exchange) -> None:
        """Check where the request comes from and who sends it."""
        host = exchange.header(b"host")
        if exchange.count_header(b"host") > 1:
            raise bad_request("There is more than one Host header.")
        if not self._hosts.allows_host(host):
            raise _foreign_host(host)
        origin = exchange.header(b"origin")
        if exchange.method not in SAFE_METHODS and origin is not None:
            self._check_origin(origin, host)
        coding = exchange.header(b"content-encoding")
        if coding is not None and coding.lower() != b"identity":
            raise unsupported_coding(coding)
        if exchange.path not in OPEN_PATHS:
            exchange.tenant = self._authenticator.tenant_of(exchange.header(b"authorization"))
        if self._lifecycle.is_draining and exchange.method not in SAFE_METHODS:
            raise from_rejection(Rejection(RejectionReason.DRAINING))

    def _check_origin(self, origin: bytes, host: bytes | None) -> None:
        if not self._hosts.allows_origin(origin, host):
            raise permission_denied(
                "Pages of this origin may not send requests here (setting: http.allowed_hosts).",
                "origin_not_allowed",
            )

    async def _break_off(self, exchange: Exchange) -> None:
        """End an exchange after a fault of ours, as far as it can still be told."""
        if exchange.has_started:
            exchange.connection.cut()
        else:
            await exchange.fail(ApiError(500, "The server failed on this request.", type_=SERVER))


def _foreign_host(host: bytes | None) -> ApiError:
    """Return the answer to a Host header that is not ours; without one it is no HTTP/1.1."""
    if host is None:
        return bad_request("There is no Host header.")
    return permission_denied(
        "The Host header does not name this server (setting: http.allowed_hosts).",
        "host_not_allowed",
    )


def _routing_error(exchange: Exchange, error: HTTPException) -> ApiError:
    """Return the answer for a path or method that is not served."""
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return ApiError(
            405,
            f"The method {exchange.method} is not allowed here: use {allow}.",
            code="method_not_allowed",
            headers=((b"allow", allow.encode()),),
        )
    if error.status_code == 404:
        shown = exchange.path[:SHOWN_CHARACTERS]
        message = f"There is nothing at the path '{shown}'; /openapi.json has all there are."
        return ApiError(404, message, code="not_found")
    return bad_request(str(error.detail))
