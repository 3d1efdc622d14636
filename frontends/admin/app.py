"""The admin port over HTTP: health, version, metrics, and every declared command as a route.

    GET  /health /health/live /health/ready /health/progress     no key
    GET  /version                                                no key
    GET  /metrics                                                admin key
    GET  /admin/commands                                         admin key: the declarations
    POST /admin/commands/NAME   body: arguments as JSON object   admin key

Owns: routes and their statuses. Never knows: sockets, or how commands are carried out. Plain ASGI
under `frontends.http.connection.protocol`, which has bounded head, body and time before anything
here runs.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import orjson
from starlette.types import Receive, Scope, Send

from frontends.admin.access import Access, Refusal
from frontends.admin.commands.handlers import Handlers
from frontends.bearer import bearer_key
from frontends.health import Health, Verdict
from frontends.http.application.exchange import JSON
from frontends.http.errors import ApiError, invalid_api_key, overloaded, permission_denied
from frontends.http.gate.origin import HostList
from ipc.control.declaration import Command, ReplyCode
from ipc.messages import ControlCall, ControlReply

METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
COMMANDS_PATH = "/admin/commands"

STATUSES: Mapping[str, int] = {
    ReplyCode.UNKNOWN_COMMAND: 404,
    ReplyCode.BAD_ARGUMENT: 400,
    ReplyCode.NOT_FOUND: 404,
    ReplyCode.NOT_CONFIRMED: 504,
    ReplyCode.NOT_DELIVERED: 503,
    ReplyCode.BUSY: 503,
    ReplyCode.STOPPING: 503,
    ReplyCode.FAILED: 409,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A request as a route sees it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: str


Route = Callable[[Call], Awaitable[Answer]]


class AdminApp:
    """The ASGI application of one admin worker."""

    def __init__(
        self,
        *,
        access: Access,
        hosts: HostList,
        handlers: Handlers,
        commands: Mapping[str, Command],
        health: Callable[[], Health],
        metrics: Callable[[], bytes],
        version: str,
    ) -> None:
        """Serve what these parts give."""
        self._access = access
        self._hosts = hosts
        self._handlers = handlers
        self._commands = commands
        self._health = health
        self._metrics = metrics
        self._version = version
        self.open_routes: Mapping[tuple[str, str], Route] = {
            ("GET", "/health"): self._overall,
            ("GET", "/health/live"): self._live,
            ("GET", "/health/ready"): self._ready,
            ("GET", "/health/progress"): self._progress,
            ("GET", "/version"): self._show_version,
        }
        self.closed_routes: Mapping[tuple[str, str], Route] = {
            ("GET", "/metrics"): self._show_metrics,
            ("GET", COMMANDS_PATH): self._show_commands,
            **{("POST", f"{COMMANDS_PATH}/{name}"): self._run_command for name in commands},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        call = await read_call(scope, receive)
        if call is None:
            return
        try:
            answer = await self._answer(call)
        except ApiError as error:
            headers = tuple(error.headers())
            answer = Answer(error.status, error.body(), headers=headers)
        await write_answer(send, answer)

    async def _answer(self, call: Call) -> Answer:
        self._check_origin(call)
        route = self.open_routes.get((call.method, call.path))
        if route is not None:
            return await route(call)
        authorization = call.headers.get("authorization", "").encode("latin-1")
        refusal = self._access.refusal(bearer_key(authorization).decode("utf-8", "replace"))
        if refusal is not None:
            self._handlers.refuse(control_call(call, {}), refusal)
            raise refused(refusal)
        route = self.closed_routes.get((call.method, call.path))
        if route is None:
            raise self._no_route(call)
        return await route(call)

    def _check_origin(self, call: Call) -> None:
        host = call.headers.get("host", "").encode("latin-1")
        origin = call.headers.get("origin")
        if not self._hosts.allows_host(host):
            raise permission_denied(
                "The Host header does not name this server.", "host_not_allowed"
            )
        if origin is not None and not self._hosts.allows_origin(origin.encode("latin-1"), host):
            raise permission_denied("Pages of this origin may not ask here.", "origin_not_allowed")

    def _no_route(self, call: Call) -> ApiError:
        methods = {m for m, path in (*self.open_routes, *self.closed_routes) if path == call.path}
        if not methods:
            return ApiError(404, "There is nothing here.", code="not_found")
        allow = ((b"allow", ", ".join(sorted(methods)).encode()),)
        return ApiError(405, "This method is not allowed here.", code="method", headers=allow)

    async def _overall(self, call: Call) -> Answer:
        return verdict_answer(self._health().overall)

    async def _live(self, call: Call) -> Answer:
        return verdict_answer(self._health().live)

    async def _ready(self, call: Call) -> Answer:
        return verdict_answer(self._health().ready)

    async def _progress(self, call: Call) -> Answer:
        return verdict_answer(self._health().progress)

    async def _show_version(self, call: Call) -> Answer:
        return Answer(200, orjson.dumps({"version": self._version}))

    async def _show_metrics(self, call: Call) -> Answer:
        return Answer(200, self._metrics(), METRICS_TYPE)

    async def _show_commands(self, call: Call) -> Answer:
        return Answer(200, orjson.dumps([describe(c) for c in self._commands.values()]))

    async def _run_command(self, call: Call) -> Answer:
        return reply_answer(
            await self._handlers.execute(control_call(call, json_object(call.body)))
        )


async def read_call(scope: Scope, receive: Receive) -> Call | None:
    """Return the request, whose body has arrived whole; None if the client left."""
    if scope["type"] != "http":
        return None
    message = await receive()
    if message["type"] == "http.disconnect":
        return None
    client = scope.get("client")
    peer = f"http {client[0]}:{client[1]}" if client else "http"
    return Call(scope["method"], scope["path"], headers_of(scope["headers"]), message["body"], peer)


def headers_of(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; of one that comes twice neither value counts, but both with a comma
    between them, which is no host and no key.
    """
    headers: dict[str, str] = {}
    for key, value in pairs:
        name, text = key.decode("latin-1"), value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


async def write_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    headers = [
        (b"content-type", answer.content_type),
        (b"content-length", str(len(answer.body)).encode()),
        (b"cache-control", b"no-store"),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


def control_call(call: Call, args: dict[str, object]) -> ControlCall:
    """Return the command that a request asks for."""
    command = call.path.removeprefix(f"{COMMANDS_PATH}/")
    return ControlCall(0, command, args, actor=call.peer)


def json_object(body: bytes) -> dict[str, object]:
    """Return the arguments in a body; an empty one has none."""
    try:
        value = orjson.loads(body) if body.strip() else {}
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not JSON: {error}.", code="bad_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body must be a JSON object of arguments.", code="bad_json")
    return value


def refused(refusal: Refusal) -> ApiError:
    """Return 403 for a key that is known but opens nothing here, else 401."""
    message = f"{refusal.message[0].upper()}{refusal.message[1:]}."
    if refusal.code is ReplyCode.FORBIDDEN:
        return permission_denied(message, refusal.code)
    return invalid_api_key(message)


def reply_answer(reply: ControlReply) -> Answer:
    """Return the HTTP answer to a command; raises ApiError if it was not done."""
    if reply.error:
        status = STATUSES.get(reply.code, 500)
        if status == 503:
            raise overloaded(reply.error, reply.code)
        raise ApiError(status, reply.error, code=reply.code or None)
    content = {"result": reply.result, "step": reply.step, "as_of_ns": reply.as_of_ns}
    return Answer(200, orjson.dumps(content, default=str))


def verdict_answer(verdict: Verdict) -> Answer:
    """Return 200 only if the verdict is good."""
    return Answer(200 if verdict.ok else 503, orjson.dumps(verdict.as_dict()))


def describe(command: Command) -> dict[str, object]:
    """Return a declaration as JSON-like data."""
    return {
        "name": command.name,
        "summary": command.summary,
        "destination": command.destination,
        "effect": command.effect,
        "permission": command.permission,
        "confirm": command.confirm,
        "arguments": [
            {
                "name": argument.name,
                "kind": argument.kind,
                "help": argument.help,
                "required": argument.required,
                "accepts": argument.bounds,
            }
            for argument in command.arguments
        ],
        "exactly_one_of": command.exactly_one_of,
        "result": [{"name": f.name, "type": f.type, "help": f.help} for f in command.result],
    }
