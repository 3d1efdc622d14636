"""What outlives processes and the engine: usage to the token, changes, and what breaks neither."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.commands import command, done, in_force, shut_down, until
from tests.support.processes.engine import (
    STOP_TIMEOUT_S,
    Engine,
    Json,
    running_engine,
    unique_name,
    wait_until,
)
from tests.support.processes.streams import join, start_streams, wait_for_tokens

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SETTINGS = (
    "engine.executor=simulated", "engine.simulated_step_us=4000", "supervision.intensity=100",
)  # fmt: skip
BODIES: list[Json] = [
    {
        "prompt": "once upon a time " * (1 + k),
        "max_tokens": 60,
        "seed": k,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    for k in range(4)
]
NEVER_SHOWN = 4 * 2 * (50 // 4)  # tokens: four streams, twice the time between two pages
COUNTERS = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")


def usage(engine: Engine, **args: object) -> dict[str, int]:
    """Return what tenant `default` has used."""
    (row,) = done(engine, "usage", tenant="default", **args)["usage"]
    return {counter: row[counter] for counter in COUNTERS}


def on_the_board(engine: Engine) -> dict[str, int]:
    """Return what the board has counted of tenant `default`, with all that was so far."""
    engine.wait_for_pages()
    rows = done(engine, "status")["tenants"]
    (row,) = (row for row in rows if row["tenant"] == "default")
    return {counter: row[counter] for counter in COUNTERS}


def test_usage_agrees_with_the_board_over_deaths_and_restarts(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Executor, scheduler and keeper are killed under load; then the engine is started anew, and
    both runs are in the sum.
    """
    name = unique_name()
    with running_engine(tmp_path, tiny_model, SETTINGS, name) as engine:
        for child in ("executor.0.0", "scheduler", "admin.0"):
            streams = start_streams(engine.client(), BODIES)
            wait_for_tokens(streams, 5)
            engine.wait_for_pages()  # what no page has shown dies with the scheduler
            row = engine.kill_child(child)
            join(streams)
            engine.wait_restarted(child, row.epoch)
        board = on_the_board(engine)
        assert usage(engine) == board
        assert usage(engine, since="1h") == board
        assert board["requests"] == 3 * 4, "those that were submitted again count once"
        lost = 3 * 4 * 60 - board["generated_tokens"]
        assert lost <= NEVER_SHOWN, "more than the scheduler had not shown yet when it was killed"
    with running_engine(tmp_path, tiny_model, SETTINGS, name) as engine:
        assert usage(engine) == board
        engine.client().complete("hello", max_tokens=5, ignore_eos=True)
        both = on_the_board(engine)
        assert both["requests"] == 1
        assert usage(engine) == {counter: board[counter] + both[counter] for counter in COUNTERS}


def test_changes_outlive_the_engine(tmp_path: Path, tiny_model: Path) -> None:
    """Settings, pauses and who commanded them, once it is said that they are kept; not with
    --no-state.
    """
    name = unique_name()
    with running_engine(tmp_path, tiny_model, SETTINGS, name) as engine:
        for change in (
            ("set", {"path": "tenants.default.weight", "value": "3"}),
            ("pause", {"class": "batch"}),
        ):
            until(engine, "kept", change[0], **change[1])
    with running_engine(tmp_path, tiny_model, SETTINGS, name) as engine:
        assert weight(engine) == 3.0
        asked = until(engine, "complete", "audit", command="set", tenant="default", since="1d")
        assert {each["args"]["value"] for each in asked["commands"]} == {"3"}
        paused = [row["class"] for row in done(engine, "tenants")["classes"] if row["paused"]]
        assert paused == ["batch"]
    without = (*SETTINGS, "admin.keep_state=false")
    with running_engine(tmp_path, tiny_model, without, name) as engine:
        assert weight(engine) == 1.0
        answer = in_force(engine, "set", path="tenants.default.weight", value="5")
        assert answer["kept"] is False
        assert done(engine, "usage")["kept"] is False
        assert done(engine, "audit")["complete"] is False


def weight(engine: Engine) -> float:
    """Return the weight of tenant `default`."""
    wait_until(lambda: "default" in weights(engine), "the page to show the tenant")
    return weights(engine)["default"]


def weights(engine: Engine) -> dict[str, float]:
    """Return the weights of all tenants that the page shows."""
    return {row["tenant"]: row["weight"] for row in done(engine, "tenants")["tenants"]}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Engine]:
    """Return an engine for commands that leave it as it is."""
    with running_engine(tmp_path_factory.mktemp("home"), tiny_model, SETTINGS) as running:
        yield running


NOT_FOUND = [
    ("show", {"request": "nobody"}),
    ("preempt", {"request": "18446744073709551616"}),
    ("pause", {"tenant": "nobody"}),
    ("resume", {"tenant": "nobody"}),
    ("set", {"path": "tenants.nobody.weight", "value": "1"}),
    ("rotate-key", {"tenant": "nobody", "digest": "a" * 64}),
    ("restart", {"child": "executor.7.0"}),
    ("drain", {"replica": 7}),
    ("cache-drop", {"tenant": "nobody"}),
    ("cache-stats", {"tenant": "nobody"}),
]
BAD = [
    ("set", {"path": "tenants.default.weight", "value": "-1"}),
    ("set", {"path": "engine.block_size", "value": "7"}),
    ("pause", {"class": "first"}),
    ("drain", {"replica": 99}),
    ("shutdown", {"drain": 1e9}),
    ("log-level", {"level": "LOUD"}),
    ("usage", {"since": "yesterday"}),
    ("add-tenant", {"tenant": "a b", "digest": "a" * 64}),
    ("add-tenant", {"tenant": "new", "digest": "short"}),
    ("remove-tenant", {"tenant": "default"}),
    ("cancel", {}),
    ("show", {"request": 5}),
]


@pytest.mark.parametrize(
    ("name", "args", "status"),
    [(*call, 404) for call in NOT_FOUND] + [(*call, 400) for call in BAD],
)
def test_a_wrong_command_is_a_typed_answer_and_a_record(
    engine: Engine, name: str, args: Json, status: int
) -> None:
    """One line that says what would be right; nothing is changed; the audit has it."""
    before = weights(engine)
    answer = command(engine, name, **args)
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert error["code"] == ("not_found" if status == 404 else "bad_argument")
    assert "\n" not in error["message"]
    assert weights(engine).items() >= before.items()  # a tenant may be shown for the first time
    wait_until(lambda: error["message"] in [r["error"] for r in audit(engine)], "the record")


TWICE = [
    ("set", {"path": "tenants.default.max_concurrency", "value": "50"}),
    ("pause", {"class": "batch"}),
    ("resume", {"class": "batch"}),
    ("add-tenant", {"tenant": "twice", "digest": "e" * 64}),
    ("rotate-key", {"tenant": "twice", "digest": "f" * 64}),
    ("remove-tenant", {"tenant": "twice"}),
    ("drain", {}),
    ("undrain", {}),
    ("cancel", {"tenant": "default"}),
    ("cache-drop", {}),
    ("reload", {}),
    ("log-level", {"level": "INFO"}),
]
PROGRESS = ("before", "in_force", "waiting_for", "kept")


def test_every_command_twice_is_the_same_as_once(engine: Engine) -> None:
    """In this order: the second answer is that of the first, with the state before it."""
    for name, args in TWICE:
        first, second = done(engine, name, **args), done(engine, name, **args)
        changed = {key for key in first if key not in PROGRESS and first[key] != second[key]}
        assert changed <= {"dropped_blocks"}, (name, first, second)
        if "after" in second and name != "remove-tenant":
            assert second["before"] == second["after"], (name, second)
    assert done(engine, "cache-drop") == {"dropped_blocks": 0}


def audit(engine: Engine) -> list[Json]:
    """Return the audit log of the engine's admin workers."""
    path = engine.log.parent / "state" / "headrace" / engine.name / "audit.jsonl"
    whole_lines = path.read_text().rpartition("\n")[0].splitlines()
    return [{"error": "", **json.loads(line)} for line in whole_lines]


def test_a_log_level_is_in_force_everywhere(engine: Engine) -> None:
    """Every process says so in its heartbeat line, idle ones when they stamp it next."""
    for level in ("WARNING", "INFO"):
        assert in_force(engine, "log-level", level=level)["log_level"] == level


CANARY = "the canary in the prompt"


SERVING = {"supervisor", "scheduler", "executor.0.0", "tokenizer.0", "http.0", "admin.0"}


def test_a_dump_has_everything_but_prompts_and_keys(engine: Engine) -> None:
    """All processes tell their stacks; what clients sent and what opens doors is not in it."""
    engine.client().complete(CANARY, max_tokens=3)
    done(engine, "add-tenant", tenant="dumped", digest="d" * 64)
    dump = whole_dump(engine)
    text = json.dumps(dump)
    assert CANARY not in text
    assert "d" * 64 not in text
    assert engine.directory.read_admin_key() not in text
    assert dump["config"]["engine"]["simulated_step_us"] == 4000
    assert dump["boards"]["scheduler"]["page"]["tenants"][0]["name"] == "_other"
    assert set(dump["logs"]) >= SERVING
    done(engine, "remove-tenant", tenant="dumped")


def whole_dump(engine: Engine) -> Json:
    """Return a dump in which everybody has told where he is, with the last command's record."""
    dumps: list[Json] = []

    def is_whole() -> bool:
        dumps.append(done(engine, "dump"))
        stacks = dumps[-1]["stacks"]
        told = {child for child in stacks if "most recent call first" in stacks[child]}
        recorded = [record["command"] for record in dumps[-1]["audit"]]
        return told >= SERVING and "add-tenant" in recorded

    wait_until(is_whole, "all stacks and the record")
    return dumps[-1]


def test_a_stopping_engine_takes_no_changes(tmp_path: Path, tiny_model: Path) -> None:
    """Looks are answered; a second shutdown with less time shortens the first."""
    slow = ("engine.executor=simulated", "engine.simulated_step_us=200000")
    with running_engine(tmp_path, tiny_model, slow) as engine:
        streams = start_streams(engine.client(), BODIES[:1])
        wait_for_tokens(streams, 1)
        assert done(engine, "shutdown", drain=600)["stopping"] is True
        assert done(engine, "status")["stopping"] is True
        for name, args in (
            ("undrain", {}),
            ("set", {"path": "tenants.default.weight", "value": "3"}),
            ("restart", {"child": "scheduler"}),
        ):
            answer = command(engine, name, **args)
            assert (answer.status, answer.json["error"]["code"]) == (503, "stopping")
        assert done(engine, "drain")["draining"] is True
        shut_down(engine, drain=0)
        assert engine.process.wait(STOP_TIMEOUT_S) == 0
        join(streams)
