"""Cheap checks before any work: refused at the door, with the words the scheduler would use."""

import hashlib
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from core.clock import NS_PER_S
from core.messages.tokenizer import ChatPrompt, Generate, IdsPrompt, TextPrompt
from frontends.http.gate.doorstep import duration_text, fewest_tokens
from ipc.directory import DirectoryClass, DirectorySnapshot, DirectoryTenant
from tests.support.control_plane.boards import healthy, page, scheduler_fields
from tests.support.http.http_rig import MAX_MODEL_LEN, MODEL, HttpRig

Start = Callable[..., HttpRig]
KEY = "Bearer acme-key"
DIGEST = hashlib.sha256(b"acme-key").hexdigest()
CLASSES = ("interactive", "standard", "batch")


def directory(*, classes: tuple[DirectoryClass, ...] = (), **tenant: Any) -> DirectorySnapshot:
    """Return a directory with tenant acme."""
    acme = DirectoryTenant(name="acme", key_sha256=(DIGEST,), classes=CLASSES, **tenant)
    return DirectorySnapshot(version=1, tenants=(acme,), classes=classes)


def stand(
    rig: HttpRig,
    *,
    longest_token_bytes: int = 0,
    num_waiting: int = 0,
    own_waiting: int = 0,
    budget_tat_ns: int = 0,
) -> None:
    """Show these numbers on the board."""
    row = {"name": b"acme", "num_waiting": own_waiting, "budget_tat_ns": budget_tat_ns}
    fields = scheduler_fields(
        num_waiting=num_waiting, oldest_wait_ns=30 * NS_PER_S, num_tenants=1, tenants=[row]
    )
    words = {"longest_token_bytes": longest_token_bytes}
    rig.boards = healthy(
        {"scheduler": page("scheduler", fields), "tokenizer.0": page("tokenizer.0", words)}
    )


def ask(rig: HttpRig, **fields: Any) -> httpx2.Response:
    """Ask for a completion as acme."""
    body = {"model": MODEL, "prompt": "say hi", "max_tokens": 10} | fields
    return rig.post("/v1/completions", body, authorization=KEY)


def expect_refusal(
    rig: HttpRig, answer: httpx2.Response, status: int, code: str, knob: str
) -> None:
    """Check a refusal, and that no tokenizer has heard of the request."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert knob in error["message"]
    assert ("retry-after" in answer.headers) == (status == 429)
    assert ("retry-after-ms" in answer.headers) == (status == 429)
    assert rig.engine.received(Generate) == []


def test_a_paused_tenant_is_refused_at_the_door(start: Start) -> None:
    """While an operator has paused a tenant, its requests reach no tokenizer."""
    rig = start(directory=directory(paused=True))
    expect_refusal(rig, ask(rig), 429, "tenant_paused", "tenants[acme].paused")


def test_a_request_that_is_refused_at_the_door_counts_as_asked_for(start: Start) -> None:
    """Else a tenant would have more refusals than requests."""
    rig = start(directory=directory(paused=True))
    ask(rig)
    page = rig.wait_for_page(lambda page: page["tenants"]["requests"].sum())
    acme = page["tenants"][page["tenants"]["name"] == b"acme"][0]
    assert (acme["requests"], acme["rejections"].sum()) == (1, 1)


def test_a_paused_class_is_refused_at_the_door(start: Start) -> None:
    """The same holds for a class, and only for that one."""
    names = ("interactive", "standard", "batch", "administrative")
    classes = tuple(DirectoryClass(name=name, paused=name == "batch") for name in names)
    rig = start(directory=directory(classes=classes))
    expect_refusal(rig, ask(rig, service_tier="flex"), 429, "tenant_paused", "classes.batch.paused")
    assert ask(rig).status_code == 200


def test_text_that_is_too_long_however_it_encodes_is_refused_at_the_door(start: Start) -> None:
    """More bytes than the context has tokens of the longest kind is the context error."""
    rig = start(directory=directory())
    stand(rig, longest_token_bytes=2)
    text = "x" * (2 * MAX_MODEL_LEN + 1)
    answer = ask(rig, prompt=text)
    assert "maximum context length is 8192 tokens" in answer.json()["error"]["message"]
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert rig.engine.received(Generate) == []
    assert ask(rig, prompt=text[:-1]).status_code == 200


def test_a_prompt_above_the_cap_of_its_class_is_refused_at_the_door(start: Start) -> None:
    """A class that rejects long prompts does so by bytes where that is certain."""
    names = ("interactive", "standard", "batch", "administrative")
    classes = tuple(DirectoryClass(name=name, max_prompt_tokens=10) for name in names)
    rig = start(directory=directory(classes=classes))
    stand(rig, longest_token_bytes=1)
    knob = "classes.standard.max_prompt_tokens"
    expect_refusal(rig, ask(rig, prompt="say 4567890"), 400, "class_prompt_cap", knob)
    assert ask(rig, prompt="say 456789").status_code == 200


@pytest.mark.parametrize("by_engine", [False, True])
def test_a_full_queue_is_refused_at_the_door(start: Start, by_engine: bool) -> None:
    """The queue of the tenant and that of the engine are looked up on the board."""
    rig = start(directory=directory(max_queued_requests=0 if by_engine else 5))
    if by_engine:
        stand(rig, num_waiting=1023)
        code, knob = "queue_full_requests", "scheduler.max_queued_requests"
    else:
        stand(rig, own_waiting=4)
        code, knob = "tenant_queue_full_requests", "tenants[acme].max_queued_requests"
    expect_refusal(rig, ask(rig, n=2), 429, code, knob)


def test_a_used_up_token_rate_is_refused_at_the_door_at_spaced_times(start: Start) -> None:
    """An overdrawn tenant gets the time its bucket needs; the next client a later one."""
    rig = start(directory=directory(tokens_per_minute=60, burst_tokens=100))
    stand(rig, budget_tat_ns=time.monotonic_ns() + 99 * NS_PER_S)
    first, second = ask(rig), ask(rig)
    expect_refusal(rig, first, 429, "tenant_rate", "tenants[acme].tokens_per_minute")
    first_ms, second_ms = (int(answer.headers["retry-after-ms"]) for answer in (first, second))
    assert 8_000 < first_ms <= 10_000
    assert 9_000 < second_ms - first_ms < 11_001
    assert int(first.headers["retry-after"]) == -(-first_ms // 1000)


def test_what_a_bucket_never_holds_is_refused_for_good(start: Start) -> None:
    """All choices of all prompts count together, and more than the burst is a bad request."""
    rig = start(directory=directory(tokens_per_minute=60, burst_tokens=100))
    knob = "tenants[acme].burst_tokens"
    expect_refusal(rig, ask(rig, n=3, max_tokens=33), 400, "rate_never_fits", knob)
    assert ask(rig, n=3, max_tokens=32).status_code == 200


def test_headers_tell_a_tenant_what_it_has_left(start: Start) -> None:
    """Answers and refusals alike carry limit, rest and reset of queue and token rate."""
    limits: dict[str, Any] = {
        "tokens_per_minute": 60,
        "burst_tokens": 100,
        "max_queued_requests": 9,
    }
    rig = start(directory=directory(**limits))
    stand(rig, budget_tat_ns=time.monotonic_ns() + 60 * NS_PER_S)
    for answer in (ask(rig), ask(rig, max_tokens=70)):
        headers = answer.headers
        assert headers["x-ratelimit-limit-requests"] == "9"
        assert headers["x-ratelimit-remaining-requests"] == "9"
        assert headers["x-ratelimit-limit-tokens"] == "100"
        assert 40 <= int(headers["x-ratelimit-remaining-tokens"]) <= 60
        assert headers["x-ratelimit-reset-tokens"].endswith("s")


def test_a_tenant_without_a_rate_gets_no_headers_of_one(rig: HttpRig) -> None:
    """Without a budget there is nothing to tell of tokens; the queue is the engine's."""
    answer = rig.post("/v1/completions", {"model": MODEL, "prompt": "say hi"})
    assert answer.headers["x-ratelimit-limit-requests"] == "1024"
    assert "x-ratelimit-limit-tokens" not in answer.headers


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (1_500_000_000, "1.5s"),
        (59 * NS_PER_S, "59s"),
        (90 * NS_PER_S, "1m30s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(duration_ns: int, text: str) -> None:
    """A reset time is short text with its unit, rounded up."""
    assert duration_text(duration_ns) == text


def test_tokens_are_counted_from_below() -> None:
    """A prompt never has fewer tokens than is assumed before it is encoded."""
    assert fewest_tokens(IdsPrompt([1, 2, 3]), 8) == 3
    assert fewest_tokens(TextPrompt("x" * 17), 8) == 3
    assert fewest_tokens(TextPrompt("ä" * 8), 8) == 2
    assert fewest_tokens(TextPrompt("x" * 17), 0) == 1
    said: list[dict[str, object]] = [
        {"role": "assistant", "content": "x" * 99},
        {"role": "user", "content": "  hi  "},
    ]
    assert fewest_tokens(ChatPrompt(said), 1) == 2
