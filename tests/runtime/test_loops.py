"""Tokenizer, scheduler and executor loops together, over loopback, in virtual time.

How: the same seeded operations run undisturbed once; then with a death, a delay or damage between
any two steps. What http was told must be the same tokens, or an end with a reason.
"""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from core.errors import RejectionReason
from core.kv_cache.host_pool import HostPoolStatistics
from core.messages.http import Failed, Queued, Started
from core.messages.scheduler import Submit
from core.messages.tokenizer import Cancel
from core.runtime.scheduler.loop import LOOK_NS
from core.sampling_params import SamplingParams
from core.scheduler.frames import plan_parts
from core.scheduler.plan import PLAN_ROW, StepPlan
from core.tenancy.classes import TrafficClass
from ipc.board import BoardReader
from ipc.control.declaration import ReplyCode
from ipc.heartbeat import HeartbeatState
from ipc.loopback import LoopbackDealer
from ipc.pages import SCHEDULER_PAGE
from tests.support.loops.five_operations import (
    NUM_TOKENS,
    OPERATIONS,
    UNDISTURBED,
    assert_intact,
    run_undisturbed,
    send_all,
    told,
)
from tests.support.loops.loop_rig import STEP_TIMEOUT_NS, LoopRig
from tests.support.models.tiny_vocabulary import tiny_vocabulary

MS = 1_000_000
CANCEL_POINTS = [*range(1, 13), 14, 17, 20, 24, 30]


def old_plan(executor_epoch: int) -> bytes:
    """Return the frame of an empty plan for an executor instance."""
    rows = np.zeros(0, PLAN_ROW)
    return b"".join(map(bytes, plan_parts(StepPlan(0, executor_epoch, 99, rows, 1))))


def test_an_operation_passes_through_all_loops() -> None:
    """Queued, Started and the chunks arrive in this order, and nothing is left behind."""
    rig = LoopRig()
    rig.send("op0", text=OPERATIONS["op0"], max_tokens=4)
    rig.run()
    kinds = [type(message) for message in rig.http.messages]
    assert kinds[:2] == [Queued, Started]
    assert len(rig.token_ids("op0")) == 4
    text = "".join(chunk.text for chunk in rig.http.chunks("op0"))
    assert text == tiny_vocabulary().decode(rig.token_ids("op0"))
    rig.check_idle()


def test_outputs_do_not_depend_on_the_pipeline_depth() -> None:
    """Planning one step ahead changes no token."""
    assert run_undisturbed(pipeline_depth=2) == UNDISTURBED


@pytest.mark.parametrize("depth", [1, 2])
def test_swaps_travel_with_the_plans(depth: int) -> None:
    """Needless preemptions of all kinds change no token, and leave nothing on the host."""
    num_swapped = 0
    for whims in range(6):
        rig = LoopRig(pipeline_depth=depth, whims=whims)
        send_all(rig)
        rig.run()
        assert told(rig) == UNDISTURBED, whims
        rig.check_idle()
        assert rig.scheduler is not None
        core = rig.scheduler.loop.core
        num_swapped += core.metering.swapped_out_tokens
        assert core.statistics().replicas[0].host == HostPoolStatistics(64, 0)
    assert num_swapped > 0


@pytest.mark.parametrize("cancel_point", CANCEL_POINTS)
def test_a_cancelled_operation_frees_everything(cancel_point: int) -> None:
    """Queued, prefilling, decoding or just ended: the others are untouched."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(cancel_point)
    rig.http.send(Cancel("op1"))
    rig.run()
    others = {k: v for k, v in told(rig).items() if k != "op1"}
    assert others == {k: v for k, v in UNDISTURBED.items() if k != "op1"}
    assert rig.token_ids("op1") == UNDISTURBED["op1"][: len(rig.token_ids("op1"))]
    rig.check_idle()


def test_a_tokenizer_that_does_not_read_stops_planning_and_loses_nothing() -> None:
    """The scheduler holds back what finds no room, and goes on when there is."""
    rig = LoopRig(output_slots=2)
    send_all(rig)
    rig.rounds(6)
    sleeper, rig.tokenizer = rig.tokenizer, None
    rig.rounds(50)
    assert rig.scheduler is not None
    step = rig.scheduler.loop.core.statistics().replicas[0].step
    rig.rounds(50)
    assert rig.scheduler.loop.core.statistics().replicas[0].step == step
    assert rig.scheduler.loop.next_timer_ns() is not None
    rig.tokenizer = sleeper
    rig.run()
    assert_intact(rig)


def test_commands_are_answered_while_a_tokenizer_does_not_read() -> None:
    """Operators can look and act just then."""
    rig = LoopRig(output_slots=2)
    send_all(rig)
    rig.rounds(6)
    rig.tokenizer = None
    rig.rounds(50)
    assert rig.call("drain").error == ""
    assert rig.scheduler is not None
    assert rig.scheduler.loop.core.is_draining


def test_lost_results_are_recomputed() -> None:
    """A damaged slot in the result ring is counted, and no token changes."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(14)
    ring = rig.result_rings[0]
    assert rig.executors[0] is not None
    while ring.head == ring.acked[0]:
        rig.executors[0].loop.step(rig.executors[0].channels, rig.clock)
        if ring.head == ring.acked[0]:
            rig.round()
    ring.damage(ring.head - 1)
    rig.run()
    assert rig.scheduler is not None
    assert rig.scheduler.loop.ring_errors == 1
    assert_intact(rig)


def test_nonsense_in_the_inbox_is_counted_and_harms_nobody() -> None:
    """Undecodable frames are dropped; a submission out of bounds is refused."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(3)
    assert rig.tokenizer is not None
    assert rig.scheduler is not None
    port = rig.tokenizer.channels.scheduler
    assert isinstance(port, LoopbackDealer)
    for frame in (b"", b"\xff" * 40, b"\x01\x80", b"\x01\xc1"):
        port.send_frame(frame)
    submit = example_submit(rig)
    assert port.send(msgspec.structs.replace(submit, span_start=2**40))
    assert port.send(msgspec.structs.replace(submit, tokenizer=7))
    rig.run()
    assert rig.scheduler.channels.inbox.dropped_frames == 4
    assert rig.scheduler.loop.refused_submits == 2
    assert_intact(rig)


def test_a_submission_of_a_dead_tokenizer_is_not_served() -> None:
    """What is still in the inbox after its sender's death would write into spans that are not its
    own any more.
    """
    rig = LoopRig()
    rig.run()
    submit = example_submit(rig)
    port = rig.tokenizer.channels.scheduler if rig.tokenizer else None
    assert port is not None
    assert port.send(submit)
    rig.kill_tokenizer()
    rig.start_tokenizer()
    rig.clock.advance(LOOK_NS)
    rig.run()
    assert rig.scheduler is not None
    assert rig.scheduler.loop.refused_submits == 1
    rig.check_idle()


def example_submit(rig: LoopRig) -> Submit:
    """Return a submission of tokenizer 0 as it is now."""
    epoch = rig.peers.peer("tokenizer.0").living_epoch
    return Submit(
        request_id=99,
        operation_id="x",
        choice=0,
        tokenizer=0,
        tokenizer_epoch=epoch,
        tenant="tenant",
        traffic_class=TrafficClass.STANDARD,
        span_start=256,
        prompt_len=4,
        max_tokens=4,
        arrival_ns=rig.clock.now_ns(),
        sampling=SamplingParams(),
    )


def test_a_queue_deadline_passes_without_any_other_event() -> None:
    """The scheduler's own timer ends a request that nobody can compute."""
    rig = LoopRig()
    rig.run()
    rig.kill_executor()
    rig.run()
    rig.send("op0", queue_deadline_ns=rig.clock.now_ns() + 50 * MS)
    rig.run()
    assert rig.scheduler is not None
    timer_ns = rig.scheduler.loop.next_timer_ns()
    assert timer_ns is not None
    assert not rig.http.failed()
    rig.clock.advance_to(timer_ns)
    rig.run()
    [failed] = rig.http.failed()
    assert isinstance(failed, Failed)
    assert failed.rejection is not None
    assert failed.rejection.reason is RejectionReason.DEADLINE_EXCEEDED


def test_an_executor_promises_when_a_step_will_be_over() -> None:
    """Busy until the step timeout while it computes, idle afterwards."""
    rig = LoopRig()
    rig.send("op0", max_tokens=2)
    rig.run()
    assert rig.stamps == [(HeartbeatState.BUSY, STEP_TIMEOUT_NS), (HeartbeatState.IDLE, 0)] * 2


def test_a_rank_beside_the_first_computes_and_says_nothing() -> None:
    """It takes the plan and gives it back as rank 0 does, and sends no result."""
    rig = LoopRig()
    ring, executor = rig.plan_rings[0], rig.executors[0]
    assert executor is not None
    assert executor.channels.results is not None
    silent = replace(executor.channels, results=None)
    ring.writer.send([old_plan(rig.peers.peers["executor.0.0"].serving_epoch)])
    assert executor.loop.step(silent, rig.clock)
    assert not executor.loop.step(silent, rig.clock)
    assert rig.stamps[-2:] == [(HeartbeatState.BUSY, STEP_TIMEOUT_NS), (HeartbeatState.IDLE, 0)]
    assert ring.writer.statistics().num_used == 0
    assert executor.channels.results.statistics().sent == 0


def test_an_executor_drops_plans_made_for_its_predecessor() -> None:
    """A plan that the scheduler sends before it knows of the death is not computed."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(10)
    living = rig.peers.peers["executor.0.0"]
    rig.start_executor()
    successor, rig.peers.peers["executor.0.0"] = rig.peers.peers["executor.0.0"], living
    ring, executor = rig.plan_rings[0], rig.executors[0]
    assert executor is not None
    executor.loop.step(executor.channels, rig.clock)
    assert executor.loop.stale_frames == 0
    ring.writer.send([old_plan(living.serving_epoch)])
    executor.loop.step(executor.channels, rig.clock)
    assert executor.loop.stale_frames == 1
    assert executor.channels.results is not None
    assert executor.channels.results.statistics().sent == 0
    executor.loop.close(executor.channels, rig.clock)
    assert executor.channels.page.page["stale_frames"] == 1
    rig.peers.peers["executor.0.0"] = successor
    rig.run()
    assert_intact(rig)


def test_the_page_shows_what_runs() -> None:
    """Counters and gauges of the engine core are on the board within 50 ms."""
    rig = LoopRig()
    send_all(rig)
    rig.run()
    rig.clock.advance(50 * MS)
    rig.run()
    page = BoardReader(rig.scheduler_page, SCHEDULER_PAGE).read().page
    assert page["generated_tokens"] == NUM_TOKENS * len(OPERATIONS)
    assert page["num_running"] == page["num_waiting"] == 0
    assert page["ready"] == 1
    assert page["replicas"][0]["num_blocks"] == rig.num_blocks
    assert page["tenants"]["name"][: int(page["num_tenants"])].tolist() == [b"_other", b"tenant"]
    assert int(page["schedule_time"]["counts"].sum()) > 0


def test_the_page_shows_what_each_tenant_holds_and_how_long_it_waits() -> None:
    """Blocks of running requests, and the wait of the oldest one that has not started."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(8)
    rig.clock.advance(50 * MS)
    rig.rounds(1)
    page = BoardReader(rig.scheduler_page, SCHEDULER_PAGE).read().page
    other, tenant = page["tenants"][:2]
    assert tenant["num_running"] == 4
    assert tenant["held_blocks"] == page["replicas"][0]["num_held_blocks"] > 0
    assert tenant["oldest_wait_ns"] == page["oldest_wait_ns"] > 50 * MS
    assert other["held_blocks"] == other["oldest_wait_ns"] == 0


def test_control_calls_are_answered_between_two_steps() -> None:
    """`requests` lists, `cancel` ends, `drain` refuses what comes, `undrain` ends that."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(8)
    listed = rig.call("requests").result["requests"]
    assert isinstance(listed, list)
    assert {record["operation_id"] for record in listed} == set(OPERATIONS)
    assert rig.call("cancel", request="op").result == {"cancelled": 0}
    assert rig.call("cancel", request="op3").result == {"cancelled": 1}
    assert rig.call("drain").result == {"draining": True, "before": False}
    rig.send("late")
    rig.run()
    assert [failed.code for failed in rig.http.failed()] == ["draining"]
    assert rig.call("undrain").result == {"draining": False, "before": True}
    assert rig.call("cancel", tenant="tenant").code == ReplyCode.NOT_FOUND
    assert {rig.finish_reason(o) for o in OPERATIONS if o != "op3"} == {"length"}
    rig.check_idle()


def test_what_has_ended_is_recorded_piece_by_piece() -> None:
    """Each request one row, also what came too late; no machine before enough steps were run."""
    rig = LoopRig()
    send_all(rig)
    rig.run()
    rig.call("drain")
    rig.send("late")
    rig.run()
    whole = rig.call("record-trace").result
    rows = whole["rows"]
    assert isinstance(rows, list)
    assert (whole["first"], whole["next"], whole["total"]) == (0, len(rows), len(OPERATIONS) + 1)
    columns = whole["columns"]
    assert isinstance(columns, list)
    outcomes = [row[columns.index("outcome")] for row in rows]
    assert outcomes.count("draining") == 1
    assert outcomes.count("length") == len(OPERATIONS)
    piece = rig.call("record-trace", first=2, limit=1).result
    assert (piece["rows"], piece["next"]) == ([rows[2]], 3)
    assert rig.call("record-trace", first=len(rows)).result["machine"] is None


def test_a_request_is_shown_and_what_was_decided_about_it_too() -> None:
    """`show` tells why one waits, `events` that it was queued, from a number on or the last."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(8)
    listed = rig.call("requests").result["requests"]
    assert isinstance(listed, list)
    (waiting,) = [record for record in listed if record["status"] == "waiting"]
    shown = rig.call("show", request=waiting["operation_id"]).result["requests"]
    assert isinstance(shown, list)
    assert shown[0]["request_id"] == waiting["request_id"]
    assert shown[0]["blocked"] == "sequences"
    as_told = f"chatcmpl-{waiting['operation_id']}"
    assert rig.call("show", request=as_told).result["requests"] == shown
    assert rig.call("show", request="nobody").code == ReplyCode.NOT_FOUND
    decided = rig.call("events").result
    events = decided["events"]
    assert isinstance(events, list)
    assert any(
        (event["kind"], event["operation_id"]) == ("queue", waiting["operation_id"])
        for event in events
    )
    assert decided["next"] == decided["total"] == len(events)
    last = rig.call("events", limit=1).result
    assert last["events"] == rig.call("events", since=len(events) - 1).result["events"]


def test_events_name_the_operations_of_those_that_have_ended() -> None:
    """Their clients ask when all is over."""
    rig = LoopRig()
    send_all(rig)
    rig.rounds(2000)
    assert rig.call("requests").result["requests"] == []
    events = rig.call("events").result["events"]
    assert isinstance(events, list)
    named = [event["operation_id"] for event in events if event["kind"] == "queue"]
    assert named
    assert set(named) <= set(OPERATIONS)


@pytest.mark.parametrize(
    ("command", "args", "code"),
    [
        ("status", {}, "unknown_command"),
        ("nonsense", {}, "unknown_command"),
        ("cancel", {}, "bad_argument"),
        ("requests", {"limit": 0}, "bad_argument"),
        ("drain", {"replica": 5}, "not_found"),
    ],
)
def test_a_bad_control_call_is_refused(command: str, args: dict[str, object], code: str) -> None:
    """With a code, and without harm."""
    reply = LoopRig().call(command, **args)
    assert reply.code == code
    assert reply.error
