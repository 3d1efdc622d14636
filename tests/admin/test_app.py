"""The admin port over real HTTP: deny by default, every command a route, nothing else."""

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.config.processes import SupervisionConfig
from core.monotonic_clock import MonotonicClock
from frontends.admin.access import Access
from frontends.admin.app import AdminApp
from frontends.admin.listener import ADMIN_LIMITS, listen
from frontends.health import assess
from frontends.http.gate.origin import HostList
from frontends.metrics.render import render
from frontends.metrics.vllm import EngineFacts
from ipc.control.registry import COMMANDS
from ipc.directory import DirectorySnapshot, DirectoryTenant
from ipc.messages import ControlCall, ControlReply
from tests.support.control_plane.boards import healthy, page, scheduler_fields
from tests.support.control_plane.control_rig import Answer, ControlRig, control_rig, never
from tests.support.http.async_client import Reply, request

ADMIN, TENANT = "hr-admin-1", "hr-tenant-1"
OPEN = ("/health", "/health/live", "/health/ready", "/health/progress", "/version")
FACTS = EngineFacts("smol", 32, "bfloat16", True, 0.35)
KEY = {"authorization": f"Bearer {ADMIN}"}


def digest(key: str) -> str:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


SNAPSHOT = DirectorySnapshot(
    version=1,
    tenants=(DirectoryTenant(name="acme", key_sha256=(digest(TENANT),)),),
    admin_key_sha256=digest(ADMIN),
)


def confirm(call: ControlCall) -> ControlReply:
    """Answer as a scheduler that carries everything out."""
    return ControlReply(call.call_id, {"cancelled": 2}, step=9)


def make_app(rig: ControlRig) -> AdminApp:
    """Return the application over a rig."""
    return AdminApp(
        access=Access(lambda: SNAPSHOT),
        hosts=HostList("127.0.0.1", ()),
        handlers=rig.handlers,
        commands=COMMANDS,
        health=lambda: assess(rig.boards, SupervisionConfig()),
        metrics=lambda: render(rig.boards, FACTS),
        version="1.2.3",
    )


def serve(
    directory: Path,
    body: Callable[[int, ControlRig, AdminApp], Awaitable[None]],
    answer: Answer = confirm,
) -> ControlRig:
    """Run `body` against a listening admin port; return the rig."""

    async def main() -> ControlRig:
        async with control_rig(directory, answer) as rig:
            app = make_app(rig)
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            server = await listen(app, listener, MonotonicClock())
            try:
                await body(listener.getsockname()[1], rig, app)
            finally:
                server.close()
                await asyncio.sleep(0)
            return rig

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [("", 401, "invalid_api_key"), ("wrong", 401, "invalid_api_key"), (TENANT, 403, "forbidden")],
)
def test_every_route_but_health_and_version_needs_the_admin_key(
    socket_directory: Path, key: str, status: int, code: str
) -> None:
    """The routes are enumerated from the application, so a new one cannot be forgotten."""
    headers = {"authorization": f"Bearer {key}"} if key else {}

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        assert {path for _, path in app.open_routes} == set(OPEN)
        for method, path in app.closed_routes:
            reply = await request(port, method, path, headers, b'{"tenant": "canary"}')
            assert (reply.status, reply.json()["error"]["code"]) == (status, code), path
            assert ("www-authenticate" in reply.headers) == (status == 401)
        for method, path in app.open_routes:
            assert (await request(port, method, path, headers)).status == 200

    rig = serve(socket_directory, body)
    assert rig.scheduler.calls == []
    assert rig.trail.num_refused == len(COMMANDS) + 2
    assert "canary" not in repr(rig.records)


def test_an_unknown_path_says_nothing_without_the_key(socket_directory: Path) -> None:
    """Who has no key cannot find out which routes there are; who has it gets 404 and 405."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        assert (await request(port, "GET", "/admin/secret")).status == 401
        assert (await request(port, "GET", "/admin/secret", KEY)).status == 404
        reply = await request(port, "GET", "/admin/commands/cancel", KEY)
        assert (reply.status, reply.headers["allow"]) == (405, "POST")

    serve(socket_directory, body)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80", "origin": "http://evil.example:80"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"Host": "localhost"},  # a second one
    ],
)
def test_a_web_page_cannot_ask_even_with_the_key(
    socket_directory: Path, headers: dict[str, str]
) -> None:
    """Host and Origin must name this port, on open routes too: the defence against rebinding."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        for method, path in (*app.open_routes, *app.closed_routes):
            assert (await request(port, method, path, KEY | headers)).status == 403

    assert serve(socket_directory, body).scheduler.calls == []


def test_a_command_is_a_post_with_its_arguments_as_json(socket_directory: Path) -> None:
    """The answer has the result and the step at which it was applied."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        reply = await request(port, "POST", "/admin/commands/cancel", KEY, b'{"request": "cmpl-1"}')
        assert reply.status == 200
        assert reply.json() == {"result": {"cancelled": 2}, "step": 9, "as_of_ns": 0}
        assert reply.headers["cache-control"] == "no-store"

    rig = serve(socket_directory, body)
    assert [call.args for call in rig.scheduler.calls] == [{"request": "cmpl-1"}]
    assert str(rig.records[0]["actor"]).startswith("http 127.0.0.1:")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("cancel", b"", 400, "bad_argument"),
        ("cancel", b'{"request": 1}', 400, "bad_argument"),
        ("cancel", b"[1]", 400, "bad_json"),
        ("cancel", b"{", 400, "bad_json"),
        ("cancel", b'{"a":' * 5000, 400, "bad_json"),
        ("cancel", b'{"request": "\xff"}', 400, "bad_json"),
        ("shutdown", b"{}", 503, "not_delivered"),
        ("explode", b"{}", 404, "not_found"),
    ],
)
def test_a_command_that_is_not_done_has_its_status_and_code(
    socket_directory: Path, path: str, body: bytes, status: int, code: str
) -> None:
    """Nothing is 500, and every error has OpenAI's shape."""

    async def send(port: int, rig: ControlRig, app: AdminApp) -> None:
        reply = await request(port, "POST", f"/admin/commands/{path}", KEY, body)
        assert (reply.status, reply.json()["error"]["code"]) == (status, code)

    serve(socket_directory, send)


def test_a_silent_scheduler_is_a_gateway_timeout(socket_directory: Path) -> None:
    """The caller learns in time that the change is not confirmed."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        reply = await request(port, "POST", "/admin/commands/drain", KEY, b"{}")
        assert (reply.status, reply.json()["error"]["code"]) == (504, "not_confirmed")

    serve(socket_directory, body, never)


def test_health_is_200_only_if_it_is_true(socket_directory: Path) -> None:
    """The reasons are in the body."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        rig.boards = healthy({"scheduler": page("scheduler", scheduler_fields(draining=1))})
        replies: dict[str, Reply] = {path: await request(port, "GET", path) for path in OPEN}
        assert {path: reply.status for path, reply in replies.items()} == {
            "/health": 503,
            "/health/live": 200,
            "/health/ready": 503,
            "/health/progress": 200,
            "/version": 200,
        }
        assert replies["/health/ready"].json()["reasons"] == ["the engine is draining"]

    serve(socket_directory, body)


def test_metrics_are_a_scrape(socket_directory: Path) -> None:
    """A standard parser reads them from the admin port."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        reply = await request(port, "GET", "/metrics", KEY)
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        names = {family.name for family in text_string_to_metric_families(reply.body.decode())}
        assert "vllm:num_requests_running" in names

    serve(socket_directory, body)


def test_the_declarations_can_be_asked_for(socket_directory: Path) -> None:
    """A client derives its form from what the engine itself says."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        declared = (await request(port, "GET", "/admin/commands", KEY)).json()
        assert [command["name"] for command in declared] == list(COMMANDS)

    serve(socket_directory, body)


def test_a_body_beyond_the_bound_is_refused_unread(socket_directory: Path) -> None:
    """Commands are short; anything larger is 413 before it is buffered."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        size = {"content-length": str(ADMIN_LIMITS.max_body_bytes + 1)}
        reply = await request(port, "POST", "/admin/commands/cancel", KEY | size)
        assert reply.status == 413

    serve(socket_directory, body)


def test_arguments_survive_the_way_unchanged(socket_directory: Path) -> None:
    """Text in any language arrives at the scheduler as it was sent."""

    async def body(port: int, rig: ControlRig, app: AdminApp) -> None:
        content = json.dumps({"request": "größe-✓"}).encode()
        await request(port, "POST", "/admin/commands/cancel", KEY, content)

    assert serve(socket_directory, body).scheduler.calls[0].args == {"request": "größe-✓"}
