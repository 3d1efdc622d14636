"""Tenants and classes of a running engine: changed by command, felt by clients at once."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes.commands import command, done, in_force
from tests.support.processes.engine import Engine, Json, running_engine, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SLOW_STEPS = (
    "engine.executor=simulated", "engine.simulated_step_us=20000",
    "supervision.hang_timeout_ms=600000",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    """Return an engine with 20 ms a step, so that requests can be met while they run."""
    with running_engine(tmp_path_factory.mktemp("home"), tiny_model, SLOW_STEPS) as running:
        yield running


def tenant_row(engine: Engine, name: str = "default") -> Json:
    """Return a tenant of `tenants`; empty while nobody has asked for it."""
    rows = done(engine, "tenants")["tenants"]
    return next((row for row in rows if row["tenant"] == name), {})


def digest(key: str) -> str:
    """Return the SHA-256 of a key in hex."""
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_weight_is_changed_and_in_force_everywhere(engine: Engine) -> None:
    """The answer has the new one, all processes say that they go by it, and the page shows it."""
    engine.client().complete("hello", max_tokens=1)
    for weight in (2.0, 5.0):
        assert (
            in_force(engine, "set", path="tenants.default.weight", value=str(weight))["after"]
            == weight
        )
    wait_until(lambda: tenant_row(engine).get("weight") == 5.0, "the page to show the weight")


def test_a_refused_change_names_every_fault(engine: Engine) -> None:
    """Nothing is changed by it."""
    answer = command(engine, "set", path="classes.batch.reserved_step_fraction", value="0.8")
    assert answer.status == 400
    assert "reserved_step_fraction add up to 1.3" in answer.body.decode()


def test_a_paused_tenant_is_refused_until_it_is_resumed(engine: Engine) -> None:
    """From the answer of the command on, not some time later."""
    client = engine.client()
    in_force(engine, "pause", tenant="default")
    refused = client.post("/v1/completions", {"prompt": "hello", "max_tokens": 1})
    assert (refused.status, refused.json["error"]["code"]) == (429, "tenant_paused")
    in_force(engine, "resume", tenant="default")
    client.complete("hello", max_tokens=1)


def test_a_paused_class_is_refused_until_it_is_resumed(engine: Engine) -> None:
    """Other classes go on."""
    body = {"prompt": "hello", "max_tokens": 1, "service_tier": "flex"}
    in_force(engine, "pause", **{"class": "batch"})
    assert engine.client().post("/v1/completions", body).status == 429
    engine.client().complete("hello", max_tokens=1)
    in_force(engine, "resume", **{"class": "batch"})
    assert engine.client().post("/v1/completions", body).status == 200


def test_a_waiting_request_says_why(engine: Engine) -> None:
    """The reason and its place; and a reserve in use is not taken away meanwhile."""
    in_force(engine, "set", path="classes.standard.max_seqs", value="1")
    client = engine.client()
    body = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True}
    with ThreadPoolExecutor(3) as pool, engine.stopped("executor.0.0"):  # so nothing ends
        answers = [pool.submit(client.post, "/v1/completions", body) for _ in range(3)]

        def listed(status: str) -> list[Json]:
            rows: list[Json] = done(engine, "requests")["requests"]
            return [row for row in rows if row["status"] == status]

        wait_until(
            lambda: len(listed("waiting")) == 2 and len(listed("running")) == 1, "one to run"
        )
        waiting = max(listed("waiting"), key=lambda row: row["request_id"])
        (shown,) = done(engine, "show", request=waiting["operation_id"])["requests"]
        assert shown["blocked"] == "class_cap"
        assert shown["place"] in (0, 1)
        (running,) = done(engine, "show", request=str(listed("running")[0]["request_id"]))[
            "requests"
        ]
        assert running["blocked"] is None
        assert running["num_blocks"] > 0
        done(engine, "set", path="classes.standard.max_seqs", value="8")
    assert [answer.result().status for answer in answers] == [200, 200, 200]
    assert command(engine, "show", request="nobody").status == 404


def test_tenants_and_keys_come_and_go(engine: Engine) -> None:
    """With the first key the engine is closed to those without one; a removed tenant is out."""
    prompt = {"prompt": "hello", "max_tokens": 1}
    in_force(engine, "add-tenant", tenant="acme", digest=digest("sk-one"))
    assert engine.client().post("/v1/completions", prompt).status == 401
    engine.client("sk-one").complete("hello", max_tokens=1)
    in_force(engine, "rotate-key", tenant="acme", digest=digest("sk-two"), old="keep")
    for key in ("sk-one", "sk-two"):
        engine.client(key).complete("hello", max_tokens=1)
    in_force(engine, "rotate-key", tenant="acme", digest=digest("sk-two"))
    assert engine.client("sk-one").post("/v1/completions", prompt).status == 401
    in_force(engine, "remove-tenant", tenant="acme")
    engine.client().complete("hello", max_tokens=1)
