"""Carries out control commands: check, hand over, answer within a bound, write down.

Owns: the bound and what is said when it passes. Never knows: how the caller is connected. A command
that only looks is answered from the board if its process is silent; one that changes something then
gets an error that says whether it may still be carried out, and since when the process is silent.
Nobody waits for a process whose heartbeat already says that it is silent.
"""

import asyncio
import difflib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from core.errors import StateError
from frontends.admin.access import Refusal
from frontends.admin.audit.trail import Trail
from frontends.admin.commands import taken_over, views
from frontends.admin.commands.peers import BusyError, NotConfirmedError, NotDeliveredError, Peer
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

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.002

Args = Mapping[str, object]
BoardView = Callable[[Boards, Args], views.Record]
OwnAnswer = Callable[[Args], Awaitable[views.Record]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """For how long a command waits for others, s; all in all less than 100 ms."""

    answer_s: float = 0.06
    silent_s: float = 0.005  # for a process that has been silent for `views.STALE_S` already
    take_over_s: float = 0.025


BOUNDS = Bounds()


class Handlers:
    """Executes the commands of one admin worker."""

    def __init__(
        self,
        *,
        commands: Mapping[str, Command],
        peers: Mapping[Destination, Peer],
        read_boards: Callable[[], Boards],
        board_views: Mapping[str, BoardView],
        own_answers: Mapping[str, OwnAnswer],
        trail: Trail,
        bounds: Bounds = BOUNDS,
    ) -> None:
        """`board_views` answers a command from the board: always, or when its process is silent;
        `own_answers` those that the worker carries out itself.
        """
        self._commands = commands
        self._peers = peers
        self._read_boards = read_boards
        self._board_views = board_views
        self._own_answers = own_answers
        self._trail = trail
        self._bounds = bounds

    def refuse(self, call: ControlCall, refusal: Refusal) -> ControlReply:
        """Return the answer to a caller without the right key."""
        self._trail.refused(call, refusal)
        return failure(call, refusal.code, refusal.message)

    async def execute(self, call: ControlCall) -> ControlReply:
        """Return the answer to an authorized call, at the end of the bounds at the latest."""
        command = self._commands.get(call.command)
        if command is None:
            reply = failure(call, ReplyCode.UNKNOWN_COMMAND, self._unknown(call.command[:64]))
        else:
            reply = await self._execute_safely(command, call)
        self._trail.answered(command, call, reply)
        return reply

    def _unknown(self, name: str) -> str:
        (nearest,) = difflib.get_close_matches(name, self._commands, n=1, cutoff=0.0)
        return f"unknown command {name!r}: did you mean {nearest!r}?"

    async def _execute_safely(self, command: Command, call: ControlCall) -> ControlReply:
        try:
            return await self._execute_known(command, call)
        except ArgumentError as error:
            return failure(call, error.code, str(error))
        except StateError as error:
            return failure(call, ReplyCode.FAILED, str(error))
        except Exception:  # a fault of ours must not end the worker: it may be the last way in
            logger.exception("command %s failed", command.name)
            return failure(call, ReplyCode.FAILED, f"{command.name} failed; the log tells more")

    async def _execute_known(self, command: Command, call: ControlCall) -> ControlReply:
        """Return the answer; raises ArgumentError or StateError."""
        args = command.check(call.args)
        match command.destination:
            case Destination.BOARD:
                return self._from_board(command, call, args)
            case Destination.WORKER:
                result = await self._own_answers[command.name](args)
                return ControlReply(call.call_id, result, as_of_ns=self._read_boards().taken_ns)
            case _:
                return await self._hand_over(command, call, args)

    async def _hand_over(self, command: Command, call: ControlCall, args: Args) -> ControlReply:
        boards = self._read_boards()
        if is_too_late(command, boards):
            message = f"the engine is stopping: {command.name} was not carried out"
            return failure(call, ReplyCode.STOPPING, message)
        sent = ControlCall(call.call_id, command.name, dict(args), actor=call.actor)
        is_silent = taken_over.silence_s(boards, command.destination) > views.STALE_S
        timeout_s = self._bounds.silent_s if is_silent else self._bounds.answer_s
        try:
            reply = await self._peers[command.destination].call(sent, timeout_s)
        except (NotDeliveredError, NotConfirmedError) as fault:
            if command.effect is Effect.READ and command.name in self._board_views:
                return self._from_board(command, call, args)
            return self._silence(command, call, fault)
        result = reply.result
        if command.name in self._board_views and not reply.error:
            result = result | {"stale": False}
        if not reply.error:
            result = result | await self._taken_over(result)
        return ControlReply(
            call.call_id, result, reply.error, reply.code, reply.step, reply.as_of_ns
        )

    async def _taken_over(self, result: Args) -> views.Record:
        """Wait, within a bound, until all go by what was changed, and say who does not."""
        if not taken_over.is_taken_over(result):
            return {}
        until_s = asyncio.get_running_loop().time() + self._bounds.take_over_s
        while True:
            progress, is_done = taken_over.progress(self._read_boards(), result)
            if is_done or asyncio.get_running_loop().time() >= until_s:
                return progress
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _from_board(self, command: Command, call: ControlCall, args: Args) -> ControlReply:
        boards = self._read_boards()
        result = self._board_views[command.name](boards, args)
        page = boards.pages.get("scheduler")
        return ControlReply(call.call_id, result, as_of_ns=page.written_ns if page else 0)

    def _silence(
        self, command: Command, call: ControlCall, fault: NotDeliveredError | NotConfirmedError
    ) -> ControlReply:
        """Say that a process does not answer, for how long, and how old the last step is."""
        boards = self._read_boards()
        who = f"the {command.destination}"
        silent_s = taken_over.silence_s(boards, command.destination)
        age_s = views.rounded(last_step_age_s(boards))
        last_step = "no step has ended yet" if age_s is None else f"the last step is {age_s} s old"
        if isinstance(fault, NotDeliveredError):
            message = f"{who} {fault} ({last_step}): nothing was done, try again"
            is_busy = isinstance(fault, BusyError)
            code = ReplyCode.BUSY if is_busy else ReplyCode.NOT_DELIVERED
            return failure(call, code, message)
        since = (
            f"has been silent for {silent_s:.1f} s"
            if silent_s > views.STALE_S
            else f"has not answered within {self._bounds.answer_s * 1000:.0f} ms"
        )
        message = f"{command.name} was handed to {who}, which {since} ({last_step}): " + (
            "only it can answer, try again"
            if command.effect is Effect.READ
            else "accepted, not yet confirmed"
        )
        return failure(call, ReplyCode.NOT_CONFIRMED, message)


def is_too_late(command: Command, boards: Boards) -> bool:
    """Tell whether a command comes when the engine is stopping and takes no changes any more."""
    if command.effect is Effect.READ or command.while_stopping:
        return False
    return bool(boards.record("supervisor")["stopping"])


def failure(call: ControlCall, code: ReplyCode, message: str) -> ControlReply:
    """Return the answer that a command was not done."""
    return ControlReply(call.call_id, error=message, code=code)
