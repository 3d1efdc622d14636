"""What the server says of itself, and how it leaves."""

from collections.abc import Callable

import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from core.messages.tokenizer import Generate
from ipc.heartbeat import HeartbeatState
from tests.support.control_plane import boards
from tests.support.http.fake_engine import WAIT_S
from tests.support.http.http_rig import MODEL, HttpRig
from tests.support.http.raw_client import RawReader, completion

LONG_MS = 120_000
HEALTH = ("/health", "/health/live", "/health/ready", "/health/progress")


def test_a_healthy_engine_is_healthy_in_every_way(rig: HttpRig) -> None:
    """All four questions are answered with 200."""
    for path in HEALTH:
        answer = rig.get(path)
        assert (answer.status_code, answer.json()["ok"]) == (200, True)


@pytest.mark.parametrize(
    ("pages", "beats", "failing"),
    [
        ({"supervisor": boards.page("supervisor", boards.supervisor_fields(stopping=1))}, {},
         {"/health", "/health/ready"}),
        ({}, {"supervisor": boards.beat(age_s=60)}, {"/health", "/health/live"}),
        ({}, {"tokenizer.0": boards.beat(age_s=60)}, {"/health", "/health/ready"}),
        ({"scheduler": boards.page("scheduler", boards.scheduler_fields(
            [boards.replica_fields(num_running=3, plan_sent_ns=boards.NOW_NS - 60 * 10**9)]))}, {},
         {"/health", "/health/progress"}),
    ],
    ids=["stopping", "supervisor silent", "tokenizer hung", "step stuck"],
)  # fmt: skip
def test_each_question_fails_by_its_own_fault(
    rig: HttpRig, pages: dict[str, object], beats: dict[str, object], failing: set[str]
) -> None:
    """Live, ready and progress are three different answers; /health fails with any of them."""
    rig.boards = boards.healthy(pages, beats)  # type: ignore[arg-type]
    statuses = {path: rig.get(path).status_code for path in HEALTH}
    assert statuses == {path: 503 if path in failing else 200 for path in HEALTH}


def test_metrics_are_prometheus_text(rig: HttpRig) -> None:
    """A scrape parses and has vLLM's names."""
    answer = rig.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {family.name for family in text_string_to_metric_families(answer.text)}
    assert "vllm:num_requests_running" in names


def test_the_description_has_a_schema_for_every_body(rig: HttpRig) -> None:
    """References in /openapi.json lead somewhere, and the bounds are in it."""
    document = rig.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for path in document["paths"].values():
        for operation in path.values():
            if "requestBody" in operation:
                content = operation["requestBody"]["content"]["application/json"]
                assert content["schema"]["$ref"].rpartition("/")[2] in schemas
    temperature = schemas["ChatCompletionRequest"]["properties"]["temperature"]
    assert "2" in str(temperature)


def test_the_root_says_where_to_look(rig: HttpRig) -> None:
    """A browser on the bare address finds the interface."""
    answer = rig.get("/").json()
    assert (answer["model"], answer["interface"]) == (MODEL, "/openapi.json")


def test_the_model_card_has_the_context_length(rig: HttpRig) -> None:
    """Listing and card agree, in the words of the interface."""
    listed = rig.get("/v1/models").json()
    card = rig.get(f"/v1/models/{MODEL}").json()
    assert listed == {"object": "list", "data": [card]}
    assert set(card) == {"id", "object", "created", "owned_by", "max_model_len"}


def test_an_unknown_model_has_no_card(rig: HttpRig) -> None:
    """A card of another model is a 404 with a code, also for an id with slashes."""
    answer = rig.get("/v1/models/org/other")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert "model" in error["message"]
    assert "not found" in error["message"]


def test_a_draining_server_is_not_ready_and_finishes_its_streams(
    start: Callable[..., HttpRig],
) -> None:
    """After SIGTERM ready is 503 at once, new work is refused, a running stream ends well."""
    rig = start(stop_timeout_ms=LONG_MS)
    with rig.connect() as raw:
        raw.sendall(completion("hold", stream=True))
        generate = rig.engine.wait_for(Generate)
        reader = RawReader(raw)
        reader.head()
        reader.chunk()
        rig.drain()
        assert rig.get("/health/ready").status_code == 503
        refused = rig.post("/v1/completions", {"model": MODEL, "prompt": "say no"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        rig.engine.finish(generate, "b")
        assert b"[DONE]" in b"".join(iter(reader.chunk, b""))
        assert reader.is_closed()
    rig.thread.join(WAIT_S)
    assert not rig.thread.is_alive()
    assert HeartbeatState.DRAINING in rig.states


def test_a_stream_that_outlasts_the_time_to_leave_ends_with_an_error(
    start: Callable[..., HttpRig],
) -> None:
    """Its client is told that it may ask again, instead of an answer that is cut off."""
    rig = start(stop_timeout_ms=100)
    with rig.connect() as raw:
        raw.sendall(completion("hold", stream=True))
        reader = RawReader(raw)
        reader.head()
        reader.chunk()
        rig.drain()
        rest = b"".join(iter(reader.chunk, b""))
        assert b'"code":"engine_restarted"' in rest
        assert b"[DONE]" not in rest
        assert reader.is_closed()
    rig.thread.join(WAIT_S)
    assert not rig.thread.is_alive()


def test_the_page_counts_what_happened(rig: HttpRig) -> None:
    """Requests, answers by class, refusals, tokens and the three latencies reach the board."""
    client: OpenAI = rig.openai()
    client.completions.create(model=MODEL, prompt="say abc")
    for _ in client.completions.create(model=MODEL, prompt="say abcd", stream=True):
        pass
    rig.post("/v1/completions", {"model": MODEL, "prompt": "reject QUEUE_FULL_REQUESTS"})
    page = rig.wait_for_page(lambda page: page["responses"].sum() == 3)
    assert list(page["responses"]) == [0, 0, 2, 0, 1, 0]
    assert page["rejections"].sum() == 1
    assert page["streamed_tokens"] == 7
    assert page["num_streams"] == 0
    assert page["ttft"]["counts"].sum() == 2
    assert page["e2e"]["counts"].sum() == 2
    assert page["itl"]["counts"].sum() == 7  # a gap before each chunk of a choice but its first
