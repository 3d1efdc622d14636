"""Carries out control commands: check, hand over, answer within a bound, write down.

Owns: the bound and what is said when it passes. Never knows: how the caller is connected. A command
that only looks is answered from the board if its process is silent; one that changes something then
gets an error that says whether it may still be carried out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from core.clock import Clock
from frontends.admin import views
from frontends.admin.access import Refusal
from frontends.admin.peers import NotConfirmedError, NotDeliveredError, Peer
from frontends.boards import Boards
from frontends.health import last_step_age_s
from ipc.control.declaration import (
    ArgumentError,
    Command,
    Destination,
    Effect,
    ReplyCode,
)
from ipc.messages import ControlCall, ControlReply

ANSWER_TIMEOUT_S = 0.06
MAX_READ_MARKS = 256
READ_MARK_INTERVAL_NS = 60_000_000_000


class Audit(Protocol):
    """Where records go: `frontends.admin.audit.AuditLog` in production."""

    def record(self, entry: Mapping[str, object]) -> None:
        """Keep one record."""
        ...


@dataclass(slots=True)
class Counts:
    """What this worker has done, for its page."""

    commands: int = 0
    refused: int = 0


class Handlers:
    """Executes the commands of one admin worker."""

    def __init__(
        self,
        *,
        worker: str,
        commands: Mapping[str, Command],
        peers: Mapping[Destination, Peer],
        read_boards: Callable[[], Boards],
        board_views: Mapping[str, Callable[[Boards, Mapping[str, object]], views.Record]],
        audit: Audit,
        clock: Clock,
    ) -> None:
        """`board_views` answers a command from the board: always, or when its process is silent."""
        self.counts = Counts()
        self._worker = worker
        self._commands = commands
        self._peers = peers
        self._read_boards = read_boards
        self._board_views = board_views
        self._audit = audit
        self._clock = clock
        self._read_marks: dict[tuple[str, str], int] = {}
        self._last_refusal_ns = 0
        self._unrecorded_refusals = 0

    async def execute(self, call: ControlCall) -> ControlReply:
        """Return the answer to an authorized call, about `ANSWER_TIMEOUT_S` later at the latest."""
        self.counts.commands += 1
        command = self._commands.get(call.command)
        if command is None:
            known = ", ".join(self._commands)
            message = f"unknown command {call.command[:64]!r}: there are {known}"
            reply = failure(call, ReplyCode.UNKNOWN_COMMAND, message)
        else:
            reply = await self._execute_known(command, call)
        self._write_down(command, call, reply)
        return reply

    def refuse(self, call: ControlCall, refusal: Refusal) -> ControlReply:
        """Return the answer to a caller without the right key; written down once a second at
        most."""
        self.counts.refused += 1
        self._unrecorded_refusals += 1
        now_ns = self._clock.now_ns()
        if now_ns - self._last_refusal_ns >= 1_000_000_000 or not self._last_refusal_ns:
            entry = self._entry(call) | {
                "args": {},
                "code": refusal.code,
                "error": refusal.message,
                "refusals": self._unrecorded_refusals,
            }
            self._audit.record(entry)
            self._last_refusal_ns, self._unrecorded_refusals = now_ns, 0
        return failure(call, refusal.code, refusal.message)

    def late_answer(self, call: ControlCall, reply: ControlReply) -> None:
        """Write down what came of a command whose caller was told that it is not confirmed."""
        if self._commands[call.command].effect is Effect.WRITE:
            self._audit.record(self._entry(call) | outcome(reply) | {"late": True})

    async def _execute_known(self, command: Command, call: ControlCall) -> ControlReply:
        try:
            args = command.check(call.args)
        except ArgumentError as error:
            return failure(call, ReplyCode.BAD_ARGUMENT, str(error))
        if command.destination is Destination.BOARD:
            return self._from_board(command, call, args)
        return await self._hand_over(command, call, args)

    async def _hand_over(
        self, command: Command, call: ControlCall, args: Mapping[str, object]
    ) -> ControlReply:
        peer = self._peers[command.destination]
        sent = ControlCall(call.call_id, command.name, dict(args), actor=call.actor)
        try:
            reply = await peer.call(sent, ANSWER_TIMEOUT_S)
        except (NotDeliveredError, NotConfirmedError) as fault:
            if command.effect is Effect.READ and command.name in self._board_views:
                return self._from_board(command, call, args)
            return self._silence(command, call, delivered=isinstance(fault, NotConfirmedError))
        return ControlReply(
            call.call_id, reply.result, reply.error, reply.code, reply.step, reply.as_of_ns
        )

    def _from_board(
        self, command: Command, call: ControlCall, args: Mapping[str, object]
    ) -> ControlReply:
        boards = self._read_boards()
        result = self._board_views[command.name](boards, args)
        page = boards.pages.get("scheduler")
        return ControlReply(call.call_id, result, as_of_ns=page.written_ns if page else 0)

    def _silence(self, command: Command, call: ControlCall, *, delivered: bool) -> ControlReply:
        """Say that a process did not answer, with the age of the last step."""
        age_s = views.rounded(last_step_age_s(self._read_boards()))
        last_step = "no step has ended yet" if age_s is None else f"the last step is {age_s} s old"
        who = f"the {command.destination}"
        if delivered:
            message = (
                f"{command.name} was handed to {who}, which has not answered within"
                f" {ANSWER_TIMEOUT_S * 1000:.0f} ms ({last_step}): accepted, not yet confirmed"
            )
            return failure(call, ReplyCode.NOT_CONFIRMED, message)
        message = f"{who} cannot be reached ({last_step}): nothing was done, try again"
        return failure(call, ReplyCode.NOT_DELIVERED, message)

    def _write_down(self, command: Command | None, call: ControlCall, reply: ControlReply) -> None:
        """Record every change and every failure; reads of one caller once a minute per command."""
        if command is not None and command.effect is Effect.READ and not reply.error:
            if self._is_marked(call):
                return
            self._audit.record(self._entry(call) | {"code": "", "error": ""})
        else:
            self._audit.record(self._entry(call) | outcome(reply))

    def _is_marked(self, call: ControlCall) -> bool:
        now_ns, mark = self._clock.now_ns(), (call.actor, call.command)
        marked_ns = self._read_marks.get(mark)
        if marked_ns is not None and now_ns - marked_ns < READ_MARK_INTERVAL_NS:
            return True
        if len(self._read_marks) >= MAX_READ_MARKS:
            self._read_marks.clear()
        self._read_marks[mark] = now_ns
        return False

    def _entry(self, call: ControlCall) -> dict[str, object]:
        return {
            "worker": self._worker,
            "actor": call.actor[:128],
            "command": call.command[:64],
            "args": call.args,
        }


def outcome(reply: ControlReply) -> dict[str, object]:
    """Return what an audit record says of an answer."""
    return {
        "code": reply.code,
        "error": reply.error,
        "result": reply.result,
        "step": reply.step,
    }


def failure(call: ControlCall, code: ReplyCode, message: str) -> ControlReply:
    """Return the answer that a command was not done."""
    return ControlReply(call.call_id, error=message, code=code)
