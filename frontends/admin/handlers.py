"""Carries out control commands: check, hand over, answer within a bound, write down.

Owns: the bound and what is said when it passes. Never knows: how the caller is connected. A command
that only looks is answered from the board if its process is silent; one that changes something then
gets an error that says whether it may still be carried out.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from frontends.admin import views
from frontends.admin.access import Refusal
from frontends.admin.peers import NotConfirmedError, NotDeliveredError, Peer
from frontends.admin.trail import Trail
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

ANSWER_TIMEOUT_S = 0.06
TAKE_OVER_TIMEOUT_S = 0.025
LOOK_INTERVAL_S = 0.002


class Handlers:
    """Executes the commands of one admin worker."""

    def __init__(
        self,
        *,
        commands: Mapping[str, Command],
        peers: Mapping[Destination, Peer],
        read_boards: Callable[[], Boards],
        board_views: Mapping[str, Callable[[Boards, Mapping[str, object]], views.Record]],
        trail: Trail,
    ) -> None:
        """`board_views` answers a command from the board: always, or when its process is silent."""
        self._commands = commands
        self._peers = peers
        self._read_boards = read_boards
        self._board_views = board_views
        self._trail = trail

    def refuse(self, call: ControlCall, refusal: Refusal) -> ControlReply:
        """Return the answer to a caller without the right key."""
        self._trail.refused(call, refusal)
        return failure(call, refusal.code, refusal.message)

    async def execute(self, call: ControlCall) -> ControlReply:
        """Return the answer to an authorized call, about `ANSWER_TIMEOUT_S` later at the latest."""
        command = self._commands.get(call.command)
        if command is None:
            known = ", ".join(self._commands)
            message = f"unknown command {call.command[:64]!r}: there are {known}"
            reply = failure(call, ReplyCode.UNKNOWN_COMMAND, message)
        else:
            reply = await self._execute_safely(command, call)
        self._trail.answered(command, call, reply)
        return reply

    async def _execute_safely(self, command: Command, call: ControlCall) -> ControlReply:
        try:
            return await self._execute_known(command, call)
        except Exception:  # a fault of ours must not end the worker: it may be the last way in
            logger.exception("command %s failed", command.name)
            return failure(call, ReplyCode.FAILED, f"{command.name} failed; the log tells more")

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
        result = reply.result
        if command.name in self._board_views and not reply.error:
            result = result | {"stale": False}
        if "version" in result:
            result = result | await self._taken_over(int(str(result["version"])))
        return ControlReply(
            call.call_id, result, reply.error, reply.code, reply.step, reply.as_of_ns
        )

    async def _taken_over(self, version: int) -> views.Record:
        """Wait, within a bound, until all who read the tenant directory go by `version`."""
        until_s = asyncio.get_running_loop().time() + TAKE_OVER_TIMEOUT_S
        while late := views.behind(self._read_boards(), version):
            if asyncio.get_running_loop().time() >= until_s:
                break
            await asyncio.sleep(LOOK_INTERVAL_S)
        return {"in_force": not late, "waiting_for": late}

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


def failure(call: ControlCall, code: ReplyCode, message: str) -> ControlReply:
    """Return the answer that a command was not done."""
    return ControlReply(call.call_id, error=message, code=code)
