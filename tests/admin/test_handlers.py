"""Control commands over real sockets: every call is answered, whatever becomes of the scheduler."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from core.clock import NS_PER_S
from frontends.admin.commands.peers import (
    MAX_CALLS_AT_ONCE,
    MAX_PENDING_CALLS,
    MAX_WAITING_CALLS,
    NotConfirmedError,
)
from ipc.control.declaration import ReplyCode
from ipc.messages import ControlCall, ControlReply
from tests.support.control_plane.boards import NOW_NS, beat, page, replica_fields, scheduler_fields
from tests.support.control_plane.boards import healthy as healthy_boards
from tests.support.control_plane.control_rig import Answer, ControlRig, control_rig, never

WAIT_S = 60
CANCEL = ControlCall(7, "cancel", {"tenant": "acme"}, key="secret", actor="ctl me")


def run(
    directory: Path, answer: Answer, body: Callable[[ControlRig], Awaitable[ControlReply]]
) -> tuple[ControlReply, ControlRig]:
    """Run `body` on a rig and return its reply and the rig."""

    async def main() -> tuple[ControlReply, ControlRig]:
        async with control_rig(directory, answer) as rig:
            return await body(rig), rig

    return asyncio.run(main())


def confirm(call: ControlCall) -> ControlReply:
    """Answer as a scheduler that carries everything out."""
    return ControlReply(call.call_id, {"cancelled": 2}, step=41)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop go round until something has come that is on its way."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    while not condition():
        assert loop.time() < until_s, f"it has not come within {WAIT_S} s"
        await asyncio.sleep(0)


def test_a_confirmed_change_comes_back_with_its_result_and_step(socket_directory: Path) -> None:
    """The caller's own number is on the answer, whatever number travelled to the scheduler."""
    reply, rig = run(socket_directory, confirm, lambda rig: rig.handlers.execute(CANCEL))
    assert reply == ControlReply(7, {"cancelled": 2}, step=41)
    (record,) = rig.records
    assert record["actor"] == "ctl me"
    assert record["args"] == {"tenant": "acme"}
    assert record["result"] == {"cancelled": 2}


def test_the_admin_key_stays_in_front_of_the_pool(socket_directory: Path) -> None:
    """Neither the scheduler nor the audit log ever sees it."""
    _, rig = run(socket_directory, confirm, lambda rig: rig.handlers.execute(CANCEL))
    assert [call.key for call in rig.scheduler.calls] == [""]
    assert "secret" not in repr(rig.records)


def test_an_error_of_the_scheduler_is_the_callers_error(socket_directory: Path) -> None:
    """What was not done is told in the words of the process that did not do it."""

    def refuse(call: ControlCall) -> ControlReply:
        return ControlReply(call.call_id, error="no request of that id", code="not_found")

    reply, _ = run(socket_directory, refuse, lambda rig: rig.handlers.execute(CANCEL))
    assert (reply.error, reply.code) == ("no request of that id", "not_found")


def test_a_change_that_nobody_confirms_is_an_error_with_the_age_of_the_last_step(
    socket_directory: Path,
) -> None:
    """A silent scheduler has the command in its inbox: it may still carry it out."""

    async def ask(rig: ControlRig) -> ControlReply:
        row = replica_fields(last_step_ns=NOW_NS - 12 * NS_PER_S)
        rig.boards = healthy_boards(
            {"scheduler": page("scheduler", scheduler_fields(replicas=[row]))}
        )
        return await rig.handlers.execute(CANCEL)

    reply, rig = run(socket_directory, never, ask)
    assert reply.code == ReplyCode.NOT_CONFIRMED
    assert "the last step is 12.0 s old" in reply.error
    assert "not yet confirmed" in reply.error
    assert rig.records[0]["code"] == ReplyCode.NOT_CONFIRMED


def test_a_late_confirmation_is_written_down(socket_directory: Path) -> None:
    """The log tells in the end what became of a change whose caller had to go without an answer."""

    async def ask(rig: ControlRig) -> ControlReply:
        reply = await rig.handlers.execute(CANCEL)
        await rig.scheduler.answer_late({"cancelled": 1})
        await until(lambda: len(rig.records) == 2)
        return reply

    _, rig = run(socket_directory, never, ask)
    assert [record.get("late") for record in rig.records] == [None, True]
    assert rig.records[1]["result"] == {"cancelled": 1}
    assert rig.peers[0].num_pending == 0


def test_a_look_is_answered_from_the_board_when_the_scheduler_is_silent(
    socket_directory: Path,
) -> None:
    """Counts instead of a list, marked stale, with the age of the page they come from."""

    async def ask(rig: ControlRig) -> ControlReply:
        tenants = [
            {"name": b"acme", "num_running": 2, "num_waiting": 1},
            {"name": b"zeta", "num_running": 5},
        ]
        fields = scheduler_fields(num_tenants=2, tenants=tenants)
        rig.boards = healthy_boards({"scheduler": page("scheduler", fields)})
        return await rig.handlers.execute(ControlCall(1, "requests", {"tenant": "acme"}))

    reply, _ = run(socket_directory, never, ask)
    assert reply.error == ""
    assert reply.result["stale"] is True
    assert reply.result["total"] == 3
    assert reply.result["requests"] == []
    assert reply.as_of_ns == NOW_NS


def test_a_look_that_the_board_cannot_answer_is_not_called_accepted(socket_directory: Path) -> None:
    """Nothing will come of it when the scheduler goes on: whoever wants to know asks again."""
    call = ControlCall(1, "show", {"request": "7"})
    reply, _ = run(socket_directory, never, lambda rig: rig.handlers.execute(call))
    assert reply.code == ReplyCode.NOT_CONFIRMED
    assert reply.error.endswith("only it can answer, try again")


def test_a_fresh_look_says_that_it_is_fresh(socket_directory: Path) -> None:
    """A list from the scheduler is marked as not stale."""

    def answer(call: ControlCall) -> ControlReply:
        return ControlReply(call.call_id, {"requests": [], "total": 0}, as_of_ns=5)

    call = ControlCall(1, "requests")
    reply, _ = run(socket_directory, answer, lambda rig: rig.handlers.execute(call))
    assert reply.result == {"requests": [], "total": 0, "stale": False}


def test_nothing_is_handed_to_a_process_that_is_away(socket_directory: Path) -> None:
    """Nobody serves the supervisor's socket: the caller learns that nothing was done."""
    call = ControlCall(3, "shutdown", {"drain": 1})
    reply, _ = run(socket_directory, confirm, lambda rig: rig.handlers.execute(call))
    assert reply.code == ReplyCode.NOT_DELIVERED
    assert "nothing was done" in reply.error


def test_status_never_asks_anybody(socket_directory: Path) -> None:
    """It comes from the board alone."""
    call = ControlCall(3, "status")
    reply, rig = run(socket_directory, never, lambda rig: rig.handlers.execute(call))
    assert reply.result == {"taken_ns": NOW_NS}
    assert rig.scheduler.calls == []


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (ControlCall(1, "explode"), ReplyCode.UNKNOWN_COMMAND),
        (ControlCall(1, "x" * 10_000), ReplyCode.UNKNOWN_COMMAND),
        (ControlCall(1, "cancel"), ReplyCode.BAD_ARGUMENT),
        (ControlCall(1, "cancel", {"request": 5}), ReplyCode.BAD_ARGUMENT),
        (ControlCall(1, "status", {"verbose": True}), ReplyCode.BAD_ARGUMENT),
    ],
)
def test_a_wrong_call_is_refused_before_it_reaches_anybody(
    socket_directory: Path, call: ControlCall, code: ReplyCode
) -> None:
    """The declaration is checked in the pool; the refusal is short and written down."""
    reply, rig = run(socket_directory, confirm, lambda rig: rig.handlers.execute(call))
    assert reply.code == code
    assert len(reply.error) < 300
    assert rig.scheduler.calls == []
    assert [record["code"] for record in rig.records] == [code]


def test_few_commands_are_with_a_process_at_once(socket_directory: Path) -> None:
    """The others wait for a turn, briefly and so many; then they are told that nothing was done."""
    num_calls = MAX_CALLS_AT_ONCE + MAX_WAITING_CALLS + 30
    replies: list[ControlReply] = []

    async def flood(rig: ControlRig) -> ControlReply:
        replies.extend(
            await asyncio.gather(*(rig.handlers.execute(CANCEL) for _ in range(num_calls)))
        )
        codes.update(reply.code for reply in replies)
        await until(lambda: len(rig.scheduler.calls) == codes[ReplyCode.NOT_CONFIRMED])
        return replies[-1]

    codes = Counter[str]()
    reply, _ = run(socket_directory, never, flood)
    assert codes[ReplyCode.BUSY] >= 30
    assert codes.total() == num_calls == codes[ReplyCode.BUSY] + codes[ReplyCode.NOT_CONFIRMED]
    assert f"has {MAX_WAITING_CALLS} commands waiting" in reply.error
    assert "nothing was done, try again" in reply.error


def test_turns_are_given_back(socket_directory: Path) -> None:
    """However many commands there were, the next one is carried out."""

    async def ask(rig: ControlRig) -> ControlReply:
        for _ in range(3 * MAX_CALLS_AT_ONCE):
            reply = await rig.handlers.execute(CANCEL)
        return reply

    reply, _ = run(socket_directory, confirm, ask)
    assert reply.result == {"cancelled": 2}


def test_calls_to_a_stopped_scheduler_are_bounded(socket_directory: Path) -> None:
    """Beyond the bound nothing is handed over any more, and that is what callers are told."""

    async def flood(rig: ControlRig) -> ControlReply:
        for _ in range(MAX_PENDING_CALLS):
            with pytest.raises(NotConfirmedError):
                await rig.peers[0].call(CANCEL, timeout_s=0.0)
        return await rig.handlers.execute(CANCEL)

    reply, rig = run(socket_directory, never, flood)
    assert reply.code == ReplyCode.NOT_DELIVERED
    assert f"the scheduler has left {MAX_PENDING_CALLS} commands unanswered" in reply.error
    assert rig.peers[0].num_pending == MAX_PENDING_CALLS


def test_a_fault_of_ours_in_one_command_is_an_answer(socket_directory: Path) -> None:
    """The worker may be the last way in, so it outlives a bug in a view."""

    async def ask(rig: ControlRig) -> ControlReply:
        rig.boards = None  # type: ignore[assignment]
        return await rig.handlers.execute(ControlCall(1, "status"))

    reply, _ = run(socket_directory, confirm, ask)
    assert reply.code == ReplyCode.FAILED


def test_looks_are_written_down_once_a_minute(socket_directory: Path) -> None:
    """A dashboard that asks all the time does not push the changes out of the log."""

    async def ask(rig: ControlRig) -> ControlReply:
        for _ in range(5):
            await rig.handlers.execute(ControlCall(1, "status", actor="top"))
        rig.clock.time_ns += 61 * NS_PER_S
        return await rig.handlers.execute(ControlCall(1, "status", actor="top"))

    _, rig = run(socket_directory, confirm, ask)
    assert len(rig.records) == 2
    assert rig.trail.num_commands == 6


SET = ControlCall(3, "set", {"path": "tenants.acme.weight", "value": "3"})


def ask_to_set(directory: Path, versions: Mapping[str, int]) -> ControlReply:
    """Change a tenant while each process goes by its version in `versions`; 2 has the change."""

    def publish(call: ControlCall) -> ControlReply:
        return ControlReply(call.call_id, {"version": 2, "before": 1.0, "after": 3.0})

    async def main() -> ControlReply:
        async with control_rig(directory, confirm, publish) as rig:
            beats = {child: beat(directory_version=v) for child, v in versions.items()}
            rig.boards = healthy_boards(beats=beats)
            return await rig.handlers.execute(SET)

    return asyncio.run(main())


def test_a_change_is_in_force_when_all_readers_go_by_its_version(socket_directory: Path) -> None:
    """Executors and admin workers do not read the directory, or at every call."""
    reply = ask_to_set(socket_directory, {"scheduler": 2, "tokenizer.0": 2, "http.0": 3})
    assert reply.result == {
        "version": 2, "before": 1.0, "after": 3.0, "in_force": True, "waiting_for": [],
        "kept": False,
    }  # fmt: skip


@pytest.mark.parametrize(("on_disk", "kept"), [(0, False), (1, False), (2, True)])
def test_a_change_is_kept_when_the_keeper_has_it_on_disk(
    socket_directory: Path, on_disk: int, kept: bool
) -> None:
    """Its line has the version that is in the database; 0 = it keeps nothing."""
    readers = {"scheduler": 2, "tokenizer.0": 2, "http.0": 2}
    reply = ask_to_set(socket_directory, {**readers, "admin.0": on_disk})
    assert (reply.result["in_force"], reply.result["kept"]) == (True, kept)


def test_a_change_that_some_have_not_taken_over_is_answered_all_the_same(
    socket_directory: Path,
) -> None:
    """It is published and cannot be lost; the answer names who is late."""
    reply = ask_to_set(socket_directory, {"scheduler": 1, "tokenizer.0": 2, "http.0": 1})
    assert reply.error == ""
    assert reply.result["in_force"] is False
    assert reply.result["waiting_for"] == ["http.0", "scheduler"]


def test_a_silent_supervisor_is_an_error(socket_directory: Path) -> None:
    """Nothing was published."""
    reply, _ = run(socket_directory, confirm, lambda rig: rig.handlers.execute(SET))
    assert reply.code == ReplyCode.NOT_DELIVERED
    assert "the supervisor cannot be reached" in reply.error
