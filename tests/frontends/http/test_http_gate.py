"""Who gets in: hosts, origins, keys, classes, request ids."""

import hashlib
from collections.abc import Callable

import pytest
from starlette.routing import Route

from core.tenancy.classes import TrafficClass
from frontends.http.application.app import OPEN_PATHS
from frontends.http.application.openapi import SUMMARIES
from frontends.http.application.routes import make_router
from frontends.http.errors import ApiError
from frontends.http.gate.auth import ANYBODY, Authenticator, Tenant, traffic_class_for
from frontends.http.gate.origin import HostList
from frontends.http.request_id import request_id_for
from ipc.directory import DirectorySnapshot, DirectoryTenant
from tests.support.http.http_rig import MODEL, HttpRig
from tests.support.http.raw_client import RawReader

Start = Callable[..., HttpRig]
CLASSES = ("interactive", "standard", "batch")
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "say hi"}]}


def digest(key: str) -> str:
    """Return what the directory keeps of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


DIRECTORY = DirectorySnapshot(
    version=1,
    tenants=(
        DirectoryTenant(name="acme", key_sha256=(digest("acme-key"),), classes=CLASSES),
        DirectoryTenant(
            name="slow",
            key_sha256=(digest("old"), digest("new")),
            default_class="batch",
            classes=("batch",),
        ),
    ),
)
ACME = "Bearer acme-key"


def all_routes() -> list[Route]:
    """Return every route of the main port."""

    class Nobody:
        def __getattr__(self, name: str) -> object:
            return self

    nobody: object = Nobody()
    router = make_router(*[nobody] * 5)  # type: ignore[arg-type]
    return [route for route in router.routes if isinstance(route, Route)]


ROUTES = [(max(route.methods or ()), route.path) for route in all_routes()]
GUARDED = [route for route in ROUTES if route[1] not in OPEN_PATHS]


def test_the_open_routes_are_health_and_version() -> None:
    """Nothing but the health endpoints and the version is open once keys exist."""
    paths = {path for _, path in ROUTES}
    assert paths >= OPEN_PATHS
    assert all(path.startswith("/health") or path == "/version" for path in OPEN_PATHS)


def test_the_description_names_every_route() -> None:
    """/openapi.json has exactly the paths that are served."""
    assert {path.replace(":path", "") for _, path in ROUTES} == set(SUMMARIES)


@pytest.fixture
def guarded(start: Start) -> HttpRig:
    """Return a server with keys."""
    return start(directory=DIRECTORY)


def test_every_other_route_needs_a_key(guarded: HttpRig) -> None:
    """Each guarded route, and a path that does not exist, answers 401 without a key."""
    for method, path in [*GUARDED, ("GET", "/nowhere")]:
        answer = guarded.post(path, {}) if method == "POST" else guarded.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_open_routes_need_no_key(guarded: HttpRig) -> None:
    """Probes have no key."""
    assert [guarded.get(path).status_code for path in sorted(OPEN_PATHS)] == [200] * len(OPEN_PATHS)


@pytest.mark.parametrize(
    "header", ["Bearer wrong", "Bearer", "Basic acme-key", "acme-key", "Bearer " + "k" * 2000]
)
def test_a_bad_key_gets_401(guarded: HttpRig, header: str) -> None:
    """Unknown, empty, huge and malformed keys are all the same to a client."""
    answer = guarded.get("/v1/models", authorization=header)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_keys_that_nobody_knows_leave_no_name_on_the_page(guarded: HttpRig) -> None:
    """Whoever tries keys, or puts names into requests, cannot make a metric grow."""
    for number in range(40):
        body = CHAT | {"user": f"user-{number}"}
        header = {"authorization": f"Bearer guess-{number}", "x-request-id": f"name-{number}"}
        assert guarded.post("/v1/chat/completions", body, **header).status_code == 401
    assert guarded.post("/v1/chat/completions", CHAT, authorization=ACME).status_code == 200
    page = guarded.wait_for_page(lambda page: page["e2e"]["counts"].sum() == 1)
    names = page["tenants"]["name"][: int(page["num_tenants"])].tolist()
    assert names == [b"_other", b"acme"]
    assert page["responses"][4] == 40
    assert page["tenants"]["rejections"].sum() == 0


@pytest.mark.parametrize("key", ["old", "new"])
def test_each_key_of_a_tenant_names_it(guarded: HttpRig, key: str) -> None:
    """A tenant may have several keys, and its default class is taken."""
    answer = guarded.post("/v1/chat/completions", CHAT, authorization=f"bearer {key}")
    assert answer.status_code == 200
    assert answer.headers["x-headrace-class"] == "batch"


def test_keys_may_change_while_the_server_runs() -> None:
    """A new snapshot counts from the next request on."""
    snapshots = [DIRECTORY, DirectorySnapshot(version=2, tenants=DIRECTORY.tenants[1:])]
    authenticator = Authenticator(lambda: snapshots[0], allow_anybody=True)
    assert authenticator.tenant_of(ACME.encode()).name == "acme"
    snapshots.pop(0)
    with pytest.raises(ApiError) as refused:
        authenticator.tenant_of(ACME.encode())
    assert refused.value.status == 401


def test_without_keys_everybody_is_the_default_tenant() -> None:
    """On loopback a server without keys takes whatever a client sends as one."""
    authenticator = Authenticator(DirectorySnapshot, allow_anybody=True)
    assert authenticator.tenant_of(b"Bearer anything") == authenticator.tenant_of(None) == ANYBODY


def test_without_keys_nobody_gets_in_from_outside() -> None:
    """Where the configuration demanded keys, losing the last one closes the door."""
    authenticator = Authenticator(DirectorySnapshot, allow_anybody=False)
    for header in (None, ACME.encode()):
        with pytest.raises(ApiError) as refused:
            authenticator.tenant_of(header)
        assert refused.value.status == 401


def test_the_default_tenant_keeps_its_settings_without_keys() -> None:
    """A configured tenant `default` decides the classes of anybody."""
    entry = DirectoryTenant(name="default", default_class="batch", classes=("batch",))
    authenticator = Authenticator(
        lambda: DirectorySnapshot(version=1, tenants=(entry,)), allow_anybody=True
    )
    assert authenticator.tenant_of(None).default_class is TrafficClass.BATCH


LIMITED = Tenant(
    "t", TrafficClass.STANDARD, frozenset({TrafficClass.STANDARD, TrafficClass.INTERACTIVE})
)


@pytest.mark.parametrize(
    ("header", "tier", "expected"),
    [
        (None, None, TrafficClass.STANDARD),
        (None, "auto", TrafficClass.STANDARD),
        (None, "default", TrafficClass.STANDARD),
        (None, "priority", TrafficClass.INTERACTIVE),
        (b" Interactive ", None, TrafficClass.INTERACTIVE),
        (b"standard", "flex", TrafficClass.STANDARD),
    ],
)
def test_a_class_comes_from_header_tier_or_tenant(
    header: bytes | None, tier: str | None, expected: TrafficClass
) -> None:
    """The header is stronger than the service tier, which is stronger than the tenant's default."""
    assert traffic_class_for(LIMITED, header, tier) is expected


@pytest.mark.parametrize(
    ("header", "tier", "status", "param"),
    [
        (b"urgent", None, 400, "x-headrace-class"),
        (b"batch", None, 403, "x-headrace-class"),
        (None, "flex", 403, "service_tier"),
        (None, "gold", 400, "service_tier"),
    ],
)
def test_a_class_that_cannot_be_had_is_refused(
    header: bytes | None, tier: str | None, status: int, param: str
) -> None:
    """An unknown class is a bad request, a known one that the tenant may not use is forbidden."""
    with pytest.raises(ApiError) as refused:
        traffic_class_for(LIMITED, header, tier)
    assert (refused.value.status, refused.value.param) == (status, param)
    assert (refused.value.code == "tenant_forbidden") == (status == 403)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"localhost:8000", True),
        (b"LOCALHOST", True),
        (b"127.0.0.1:1", True),
        (b"[::1]:8000", True),
        (b"engine.lan:8000", True),
        (b"evil.example", False),
        (b"localhost.evil.example", False),
        (b"localhost:80@evil.example", False),
        (b"10.0.0.5:8000", False),
        (b"", False),
        (None, False),
    ],
)
def test_a_loopback_server_answers_to_its_own_names(host: bytes | None, allowed: bool) -> None:
    """A name that was made to point here (DNS rebinding) is not one of ours."""
    assert HostList("127.0.0.1", ["engine.lan"]).allows_host(host) is allowed


def test_a_server_on_all_addresses_answers_to_addresses() -> None:
    """Rebinding needs a name, so literal addresses are safe where every address is ours."""
    hosts = HostList("0.0.0.0", [])
    assert hosts.allows_host(b"10.0.0.5:8000")
    assert not hosts.allows_host(b"evil.example")


def test_a_star_allows_every_host() -> None:
    """An operator behind a gateway may switch the check off."""
    hosts = HostList("127.0.0.1", ["*"])
    assert hosts.allows_host(b"anything.example")
    assert hosts.allows_origin(b"https://anything.example", b"localhost")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (b"http://localhost:8000", True),
        (b"https://ui.lan", True),
        (b"http://localhost:3000", False),
        (b"https://evil.example", False),
        (b"null", False),
        (b"file://", False),
        (b"http://[", False),
    ],
)
def test_pages_of_other_origins_are_kept_out(origin: bytes, allowed: bool) -> None:
    """Only our own origin and configured hosts may post from a browser."""
    hosts = HostList("127.0.0.1", ["ui.lan"])
    assert hosts.allows_origin(origin, b"localhost:8000") is allowed


def test_a_foreign_host_gets_403(rig: HttpRig) -> None:
    """The check stands before every route."""
    answer = rig.get("/version", host="evil.example")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


def test_no_host_gets_400(rig: HttpRig) -> None:
    """HTTP/1.1 demands the header, and a text about its value would mislead who forgot it."""
    with rig.connect() as raw:
        raw.sendall(b"GET /version HTTP/1.1\r\n\r\n")
        answer = RawReader(raw).answer()
    assert (answer.status, answer.code) == (400, None)


def test_a_compressed_body_gets_415(rig: HttpRig) -> None:
    """It would be called bad JSON otherwise; the coding is named, and which one is accepted."""
    answer = rig.post("/v1/chat/completions", b"\x1f\x8b", **{"content-encoding": "gzip"})
    assert answer.json()["error"]["code"] == "unsupported_content_encoding"
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")


def test_a_coding_that_codes_nothing_is_accepted_in_any_case(rig: HttpRig) -> None:
    """Names of content codings are the same in upper and lower case (RFC 9110, 8.4.1)."""
    answer = rig.post("/v1/chat/completions", CHAT, **{"content-encoding": "Identity"})
    assert answer.status_code == 200


def test_two_hosts_get_400(rig: HttpRig) -> None:
    """Of two Host headers a proxy before us may have believed the other one."""
    with rig.connect() as raw:
        raw.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
        assert RawReader(raw).answer().status == 400


def test_a_foreign_origin_may_not_post(rig: HttpRig) -> None:
    """A page of another origin gets 403 for a POST and no permission to read anything."""
    answer = rig.post("/v1/chat/completions", CHAT, origin="https://evil.example")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
    reading = rig.get("/version", origin="https://evil.example")
    assert "access-control-allow-origin" not in reading.headers


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        (b"trace-1:a/b@c", True),
        (b"a" * 128, True),
        (b"a" * 129, False),
        (b"", False),
        (b"two words", False),
        (b"line\r\nset-cookie: x", False),
        ("ü".encode(), False),
        (None, False),
    ],
)
def test_a_safe_request_id_is_kept(given: bytes | None, is_kept: bool) -> None:
    """A client's own id is used if it is short and harmless; else a fresh one is made."""
    assert (request_id_for(given).encode() == given) is is_kept


def test_every_answer_has_a_request_id(rig: HttpRig) -> None:
    """The client's id comes back on success and on every kind of error."""
    chosen = {"x_request_id": "mine-7"}
    answers = [
        rig.post("/v1/chat/completions", CHAT, **chosen),
        rig.post("/v1/chat/completions", b"{", **chosen),
        rig.post("/nowhere", {}, **chosen),
        rig.post("/version", {}, **chosen),
    ]
    assert [a.status_code for a in answers] == [200, 400, 404, 405]
    assert {a.headers["x-request-id"] for a in answers} == {"mine-7"}


def test_a_path_that_is_not_served_is_named(rig: HttpRig) -> None:
    """Most who get this 404 have forgotten /v1, or added it twice: they see what they sent."""
    answer = rig.post("/chat/completions", CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert "'/chat/completions'" in answer.json()["error"]["message"]


def test_a_wrong_method_is_told_the_right_one(rig: HttpRig) -> None:
    """405 carries Allow, in JSON like every error."""
    answer = rig.post("/v1/models", {})
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]
    assert answer.json()["error"]["code"] == "method_not_allowed"
