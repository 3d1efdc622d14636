"""What is answered from the board has the shape that its declaration promises."""

import json
from typing import Any

import numpy as np

from core.clock import NS_PER_S
from core.config.processes import SupervisionConfig
from core.errors import RejectionReason
from core.supervision.states import ProcessState
from core.tenancy.classes import CLASS_NAMES
from frontends.admin.commands import views
from frontends.boards import Boards
from frontends.metrics.vllm import EngineFacts
from ipc.control.registry import COMMANDS
from ipc.heartbeat import Heartbeat, HeartbeatState
from ipc.pages import MAX_PAGE_TENANTS
from tests.support.control_plane.boards import (
    CHILDREN,
    NOW_NS,
    beat,
    child_row,
    healthy,
    page,
    refusal_fields,
    replica_fields,
    scheduler_fields,
    supervisor_fields,
)

FACTS = EngineFacts("smol", 32, "bfloat16", True, 0.35)


def status(boards: Boards) -> dict[str, Any]:
    """Return a status as it travels: JSON and back."""
    result: dict[str, Any] = json.loads(
        json.dumps(views.status(boards, "x", FACTS, SupervisionConfig()), allow_nan=False)
    )
    return result


def test_status_has_exactly_the_declared_fields() -> None:
    """Whoever derives a view from the declaration finds everything, and nothing unexplained."""
    declared = [field.name for field in COMMANDS["status"].result]
    assert sorted(status(healthy())) == sorted(declared)


def test_status_of_an_engine_without_pages_is_an_answer() -> None:
    """In the first moments of a start, or after a crash, there is no number to invent."""
    result = status(Boards(NOW_NS))
    assert result["uptime_s"] is None
    assert result["stale"] is True
    assert result["as_of_age_s"] is None
    assert result["processes"] == []


def test_status_tells_what_short_memory_has_cost() -> None:
    """Tokens computed again, and copied out and in, since the start."""
    swapped = scheduler_fields(swapped_out_tokens=64, swapped_in_tokens=32)
    known = healthy({"scheduler": page("scheduler", swapped)})
    load = status(known)["load"]
    names = ("recomputed_tokens", "swapped_out_tokens", "swapped_in_tokens")
    assert [load[name] for name in names] == [0, 64, 32]


def test_status_tells_how_old_it_is() -> None:
    """A scheduler that has stopped publishing makes the answer stale, with its age."""
    fresh = healthy()
    later = Boards(NOW_NS + 3 * NS_PER_S, fresh.pages, fresh.heartbeats)
    assert (status(fresh)["stale"], status(fresh)["as_of_age_s"]) == (False, 0.0)
    assert (status(later)["stale"], status(later)["as_of_age_s"]) == (True, 3.0)


def test_status_has_every_process_with_its_state_and_restarts() -> None:
    """A state that this version does not know is shown as its number."""
    rows = [child_row("scheduler", restarts=3), child_row("http.7", state=77)]
    boards = healthy({"supervisor": page("supervisor", supervisor_fields(rows))})
    first, second = status(boards)["processes"]
    assert (first["process"], first["state"], first["restarts"]) == ("scheduler", "running", 3)
    assert first["activity"] == "idle"
    assert (second["state"], second["activity"], second["heartbeat_age_s"]) == ("77", None, None)
    assert len(status(healthy())["processes"]) == len(CHILDREN)


def hung(boards: Boards) -> list[str]:
    """Return the processes that look hung."""
    return [row["process"] for row in status(boards)["hung"]]


def in_a_step(age_s: float) -> Heartbeat:
    """Return the heartbeat of a loop that has been in a step for so long."""
    return beat(age_s, state=HeartbeatState.BUSY)


def test_status_names_who_looks_hung_long_before_it_is_killed() -> None:
    """An executor by what was expected of its step, an idle loop by its heartbeat."""
    row = replica_fields(plan_sent_ns=NOW_NS - 3 * NS_PER_S, expected_step_ns=NS_PER_S // 50)
    pages = {"scheduler": page("scheduler", scheduler_fields([row]))}
    stopped = healthy(pages, {"executor.0.0": in_a_step(3.0)})
    assert status(stopped)["hung"] == [
        {"process": "executor.0.0", "no_sign_s": 3.0, "expected_s": 0.02}
    ]
    assert hung(healthy(pages, {"executor.0.0": in_a_step(0.1)})) == ["executor.0.0"]
    assert hung(healthy(beats={"tokenizer.0": beat(2.5)})) == ["tokenizer.0"]
    assert hung(healthy()) == []


def test_a_long_step_and_a_load_are_not_taken_for_a_hang() -> None:
    """Nor is a process whose death is known already."""
    row = replica_fields(plan_sent_ns=NOW_NS - 9 * NS_PER_S, expected_step_ns=NS_PER_S)
    pages = {"scheduler": page("scheduler", scheduler_fields([row]))}
    assert hung(healthy(pages, {"executor.0.0": in_a_step(9.0)})) == []
    for state in (HeartbeatState.LOADING, HeartbeatState.COMPILING):
        assert hung(healthy(beats={"executor.0.0": beat(90.0, state=state)})) == []
    down = supervisor_fields([child_row("executor.0.0", state=ProcessState.BACKOFF)])
    dead = healthy({"supervisor": page("supervisor", down)}, {"executor.0.0": in_a_step(9.0)})
    assert hung(dead) == []


def test_a_silent_scheduler_accuses_no_executor() -> None:
    """Its page says what was: a plan that was young then tells nothing of now."""
    row = replica_fields(plan_sent_ns=NOW_NS - NS_PER_S // 10)
    boards = healthy({"scheduler": page("scheduler", scheduler_fields([row]))})
    beats = {child: beat(-9.0) for child in CHILDREN if child != "scheduler"}
    later = Boards(NOW_NS + 9 * NS_PER_S, boards.pages, {**boards.heartbeats, **beats})
    assert hung(later) == ["scheduler"]


def test_requests_from_the_board_have_the_declared_fields_and_the_tenants_counts() -> None:
    """Only the asked-for tenant is counted, and reasons of refusals have their public codes."""
    tenants = [
        {"name": b"acme", "num_running": 2, "num_waiting": 1},
        {"name": b"zeta", "num_running": 5},
    ]
    fields = scheduler_fields(num_tenants=2, tenants=tenants)
    told = refusal_fields(b"acme", RejectionReason.TENANT_RATE, 4)
    boards = healthy({"scheduler": page("scheduler", fields), "http.0": page("http.0", told)})
    result: dict[str, Any] = views.requests_from_board(boards, "acme")
    assert set(result) == {field.name for field in COMMANDS["requests"].result}
    assert (result["total"], result["stale"]) == (3, True)
    (acme,) = result["tenants"]
    assert acme["rejections"] == {"tenant_rate": 4}
    assert views.requests_from_board(boards, None)["total"] == 8


def tenancy(boards: Boards) -> dict[str, Any]:
    """Return the result of `tenants` as it travels."""
    result: dict[str, Any] = json.loads(json.dumps(views.tenancy(boards), allow_nan=False))
    return result


def test_tenants_has_exactly_the_declared_fields() -> None:
    """With a row for each class, also before anybody has asked for anything."""
    declared = [field.name for field in COMMANDS["tenants"].result]
    result = tenancy(healthy())
    assert sorted(result) == sorted(declared)
    assert [row["class"] for row in result["classes"]] == list(CLASS_NAMES)
    assert tenancy(Boards(NOW_NS))["stale"] is True


def test_tenants_says_how_many_names_can_be_told_apart_yet() -> None:
    """As many as each process that counts has rows that are free or can pass on; before one has
    said so all are left.
    """
    fields = scheduler_fields(num_tenants=MAX_PAGE_TENANTS, tenant_names_left=7)
    pages = {"scheduler": page("scheduler", fields)}
    assert tenancy(healthy(pages))["names_left"] == 7
    pages["http.0"] = page("http.0", {"num_tenants": 1, "tenant_names_left": 5})
    assert tenancy(healthy(pages))["names_left"] == 5
    assert tenancy(Boards(NOW_NS))["names_left"] == 255


def test_tenants_shows_what_each_has_and_is_due() -> None:
    """A tenant without a token-rate budget has none left, which is not 0."""
    rows = [
        {"name": b"acme", "weight": 3.0, "share_due": 0.75, "share_used": 0.5, "paused": 1,
         "removed": 1, "budget_tokens": 120, "kv_quota_blocks": 50, "held_blocks": 20,
         "preemptions": 4},
        {"name": b"zeta", "budget_tokens": -1, "oldest_wait_ns": 1_500_000_000},
    ]  # fmt: skip
    classes = [{"weight": 8.0, "reserved_blocks": 10, "reserved_seqs": 4}]
    fields = scheduler_fields(num_tenants=2, tenants=rows, classes=classes)
    told = page("http.0", refusal_fields(b"acme", RejectionReason.TENANT_RATE, 2))
    result = tenancy(healthy({"scheduler": page("scheduler", fields), "http.0": told}))
    acme, zeta = result["tenants"]
    assert (acme["share_due"], acme["share_used"], acme["paused"]) == (0.75, 0.5, True)
    assert (acme["kv_held"], acme["kv_quota"], acme["preempted"]) == (20, 50, 4)
    assert (acme["removed"], zeta["removed"]) == (True, False)
    assert (acme["budget_left"], acme["rejected"]) == (120, {"tenant_rate": 2})
    assert (zeta["budget_left"], zeta["oldest_wait_s"]) == (None, 1.5)
    assert (result["classes"][0]["kv_reserved"], result["classes"][0]["seqs_reserved"]) == (10, 4)


def test_a_process_shows_by_which_directory_it_goes() -> None:
    """None for one that does not read it."""
    beats = {
        "scheduler": beat(directory_version=3),
        "tokenizer.0": beat(directory_version=2),
        "http.0": beat(epoch=0, directory_version=0),
        "executor.0.0": beat(directory_version=0),
    }
    shown = {
        row["process"]: row["directory_version"]
        for row in status(healthy(beats=beats))["processes"]
    }
    assert (shown["scheduler"], shown["tokenizer.0"], shown["executor.0.0"]) == (3, 2, None)


def test_price_has_exactly_the_declared_fields() -> None:
    """Also of an engine that has done nothing."""
    declared = [field.name for field in COMMANDS["price"].result]
    assert sorted(views.price(healthy())) == sorted(declared)
    assert views.price(Boards(NOW_NS))["unused"] == []


def test_price_tells_what_was_unused_done_twice_and_refused() -> None:
    """Shares are of all tokens that could have been computed; the dearest reason comes first."""
    rejections = np.zeros(32, np.uint64)
    rejections[RejectionReason.SHED_PREDICTED] = 3
    leftovers = [{"reason": b"itl", "tokens": 100}, {"reason": b"reserve", "tokens": 300}]
    fields = scheduler_fields(
        prompt_tokens=500, cached_tokens=100, generated_tokens=150, recomputed_tokens=50,
        swapped_out_tokens=32, preemptions=2, rejections=rejections, num_leftovers=2,
        leftovers=leftovers, classes=[{"reserved_seqs": 4, "num_running": 1}],
    )  # fmt: skip
    result: dict[str, Any] = views.price(healthy({"scheduler": page("scheduler", fields)}))
    assert result["computed_tokens"] == 600
    assert result["unused"] == [
        {"reason": "reserve", "tokens": 300, "share": 0.3},
        {"reason": "itl", "tokens": 100, "share": 0.1},
    ]
    assert result["again"] == {"recomputed_tokens": 50, "swapped_out_tokens": 32}
    assert (result["preemptions"], result["refused"]) == (2, {"shed_predicted": 3})
    (reserve,) = result["reserves"]
    assert (reserve["class"], reserve["seqs_reserved"], reserve["running"]) == ("interactive", 4, 1)
