"""Control commands in the scheduler: typed answers for anything, and nothing half applied."""

from collections.abc import Mapping
from typing import Any

import pytest

from core.engine_core import EngineCore
from core.policy.limits import Limits
from core.request import RequestStatus
from core.runtime.scheduler.calls import ANSWERS, answer
from core.sampling_params import SamplingParams
from core.tenancy.classes import ClassesConfig
from core.tenancy.tenants import TenantConfig
from ipc.control.declaration import Destination, ReplyCode
from ipc.control.registry import COMMANDS
from ipc.messages import ControlCall, ControlReply
from tests.support.scheduler.checked_engine import CheckedEngine, make_settings, reference_tokens

FOREVER = SamplingParams(ignore_eos=True)
PROMPT = list(range(10, 30))
TENANTS = {name: TenantConfig(name=name) for name in ("acme", "zeta")}


def engine_of(depth: int = 1) -> CheckedEngine:
    """Return an engine with two tenants."""
    limits = Limits(classes=ClassesConfig(), tenants=TENANTS)
    engine = CheckedEngine(
        make_settings(pipeline_depth=depth, max_num_seqs=2, limits=limits), num_blocks=100
    )
    engine.start()
    return engine


def ask(engine: CheckedEngine, command: str, **args: object) -> ControlReply:
    """Give a command as an admin worker does; request N belongs to operation `op` + N."""
    operations = {view.request_id: f"op{view.request_id}" for view in engine.core.requests(99)}
    reply = answer(ControlCall(1, command, args), engine.core, operations, engine.clock.now_ns())
    engine.core.check_integrity()
    return reply


def done(engine: CheckedEngine, command: str, **args: object) -> Mapping[str, Any]:
    """Give a command that must be carried out."""
    reply = ask(engine, command, **args)
    assert reply.error == "", reply.error
    return reply.result


def status(core: EngineCore, request_id: int) -> RequestStatus:
    """Return the status of a live request."""
    view = core.request(request_id)
    assert view is not None
    return view.status


def test_every_command_for_the_scheduler_has_an_answer() -> None:
    """What is declared is carried out, and nothing else is."""
    declared = {n for n, c in COMMANDS.items() if c.destination is Destination.SCHEDULER}
    assert declared == set(ANSWERS)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_request_waits_and_goes_on_as_if_nothing_had_been(depth: int) -> None:
    """Its tokens are the same, also with plans in flight; a second time it is not running."""
    engine = engine_of(depth)
    request = engine.submit(engine.make_request(1, PROMPT, 9, sampling=FOREVER))
    for _ in range(4):
        engine.step()
    while engine.plan() is not None:
        pass
    held = engine.core.requests(1)[0].num_blocks
    assert done(engine, "preempt", request="1") == {"preempted": 1, "blocks": held}
    assert status(engine.core, 1) is RequestStatus.PREEMPTED
    assert done(engine, "preempt", request="cmpl-op1") == {"preempted": 0, "blocks": 0}
    engine.run()
    assert engine.transcript(request).token_ids == reference_tokens(PROMPT, 9, FOREVER, 50_000)[0]
    assert engine.metering.preemptions == 1


def test_a_name_that_no_live_request_has_is_not_found() -> None:
    """Numbers are compared whole; an id of another length or kind is nobody's."""
    engine = engine_of()
    engine.submit(engine.make_request(10, PROMPT, 9, sampling=FOREVER))
    for wanted in ("1", "op1", "op100", "-1", "9" * 100, "nobody"):
        for command in ("show", "preempt"):
            assert ask(engine, command, request=wanted).code == ReplyCode.NOT_FOUND, wanted
        assert done(engine, "cancel", request=wanted) == {"cancelled": 0}
    assert status(engine.core, 10) is RequestStatus.WAITING


def test_a_cancelled_request_is_cancelled_once() -> None:
    """The second time there is nothing alive of that name."""
    engine = engine_of()
    engine.submit(engine.make_request(1, PROMPT, 9, sampling=FOREVER))
    engine.step()
    assert done(engine, "cancel", request="op1") == {"cancelled": 1}
    assert done(engine, "cancel", request="op1") == {"cancelled": 0}


def test_a_second_drain_says_that_it_drained_already() -> None:
    """Asking twice is the same as asking once, for the engine and for a replica."""
    engine = engine_of()
    for args in ({}, {"replica": 0}):
        assert done(engine, "drain", **args) == {"draining": True, "before": False}
        assert done(engine, "drain", **args) == {"draining": True, "before": True}
        assert done(engine, "undrain", **args) == {"draining": False, "before": True}
    assert ask(engine, "drain", replica=7).code == ReplyCode.NOT_FOUND
    assert ask(engine, "drain", replica=8).code == ReplyCode.BAD_ARGUMENT


def test_a_tenants_cache_is_dropped_and_the_others_stay() -> None:
    """What is dropped is computed again; blocks in use stay with their requests."""
    engine = engine_of()
    for request_id, tenant in ((1, "acme"), (2, "zeta")):
        engine.submit(engine.make_request(request_id, PROMPT, 2, sampling=FOREVER, tenant=tenant))
        engine.run()
    cached = {t: cached_blocks(engine, tenant=t) for t in ("acme", "zeta")}
    assert cached["acme"] == cached["zeta"] > 0
    assert done(engine, "cache-drop", tenant="acme") == {"dropped_blocks": cached["acme"]}
    assert (cached_blocks(engine, tenant="acme"), cached_blocks(engine)) == (0, cached["zeta"])
    engine.submit(engine.make_request(3, PROMPT, 9, sampling=FOREVER, tenant="zeta"))
    engine.step()
    assert done(engine, "cache-drop") == {"dropped_blocks": cached["zeta"]}
    engine.run()
    assert done(engine, "cache-stats")["hit_tokens"] != 0


@pytest.mark.parametrize("command", ["cache-drop", "cache-stats", "cancel", "requests"])
def test_a_tenant_that_nobody_is_is_not_found(command: str) -> None:
    """A mistyped name is not answered as if there were nothing to be done or seen."""
    engine = engine_of()
    engine.submit(engine.make_request(1, PROMPT, 2, sampling=FOREVER, tenant="acme"))
    reply = ask(engine, command, tenant="acne")
    assert reply.code == ReplyCode.NOT_FOUND
    assert "'acne'" in reply.error
    assert not ask(engine, command, tenant="acme").error


def cached_blocks(engine: CheckedEngine, **args: object) -> int:
    """Return how many blocks `cache stats` counts."""
    (replica,) = done(engine, "cache-stats", **args)["replicas"]
    return int(replica["cached_blocks"])


def test_a_request_has_a_timeline() -> None:
    """Arrival, start, first token and every decision about it, in order."""
    engine = engine_of()
    engine.submit(engine.make_request(1, PROMPT, 9, sampling=FOREVER))
    for _ in range(3):
        engine.step()
    done(engine, "preempt", request="1")
    engine.step()
    (shown,) = done(engine, "show", request="1")["requests"]
    timeline = shown["timeline"]
    assert [moment["what"] for moment in timeline] == [
        "arrived", "started", "first token", "preempt", "restore",
    ]  # fmt: skip
    ages = [moment["age_s"] for moment in timeline]
    assert ages == sorted(ages, reverse=True)
