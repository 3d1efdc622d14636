"""Calls to the processes that execute commands: the scheduler's inbox and the supervisor's socket.

Owns: call numbers, the calls that wait for an answer, their turns, and the bounds on all. Never
knows: what a command does. Only a few calls are with a process at once, so that an answer is late
because of the process and not because of other calls; the others wait for their turn, briefly, and
are turned away with nothing done. A call that is not answered in time stays known for a while, so
that a late answer can still be written into the audit log.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ipc.channel import Received
from ipc.messages import ControlCall, ControlReply

MAX_CALLS_AT_ONCE = 8
MAX_WAITING_CALLS = 64
TURN_TIMEOUT_S = 0.03
MAX_PENDING_CALLS = 256
CATCH_UP_TURNS = 4  # of a loop that was late itself, to read what has come in the meantime
LATE_ANSWER_S = 60.0

LateAnswer = Callable[[ControlCall, ControlReply], None]


class CallPort(Protocol):
    """The port of a peer: `ipc.async_port.AsyncPort` in production."""

    async def receive(self, limit: int = 64) -> list[Received[ControlReply]]:
        """Wait for replies."""
        ...

    def send_nowait(self, message: ControlCall, peer: bytes = b"") -> bool:
        """Send, or return False."""
        ...


class NotDeliveredError(Exception):
    """Nothing was done; the message says what is the matter with the peer."""


class BusyError(NotDeliveredError):
    """Nothing was done, because too many other calls are under way."""


class NotConfirmedError(Exception):
    """The call was handed over and not answered in time: it may still be carried out."""


@dataclass(slots=True)
class Pending:
    """A call on its way; `answer` is None once nobody waits for it any more."""

    call: ControlCall
    answer: asyncio.Future[ControlReply] | None
    expiry: asyncio.TimerHandle


class Peer:
    """One process that executes commands."""

    def __init__(self, port: CallPort, on_late_answer: LateAnswer) -> None:
        """Speak through `port`; `run` has to run for answers to arrive."""
        self._port = port
        self._on_late_answer = on_late_answer
        self._pending: dict[int, Pending] = {}
        self._call_ids = itertools.count(1)
        self._turns = asyncio.Semaphore(MAX_CALLS_AT_ONCE)
        self._num_waiting = 0

    @property
    def num_pending(self) -> int:
        """Calls whose answer may still come."""
        return len(self._pending)

    async def run(self) -> None:
        """Hand answers to their callers, until cancelled."""
        while True:
            for received in await self._port.receive():
                self._answer(received.message)

    async def call(self, call: ControlCall, timeout_s: float) -> ControlReply:
        """Return the answer to `call` (its number is replaced by ours).

        Raises BusyError, NotDeliveredError or NotConfirmedError, within `timeout_s`, the wait for a
        turn included.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        await self._take_turn(min(TURN_TIMEOUT_S, timeout_s))
        try:
            return await self._exchange(call, max(0.0, end_s - loop.time()))
        finally:
            self._turns.release()

    async def _take_turn(self, timeout_s: float) -> None:
        """Wait until few enough calls are under way; raises BusyError."""
        if not self._turns.locked():
            await self._turns.acquire()  # at once: nothing else runs in between
            return
        if self._num_waiting >= MAX_WAITING_CALLS:
            raise BusyError(f"has {MAX_WAITING_CALLS} commands waiting")
        self._num_waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                await self._turns.acquire()
        except TimeoutError:
            raise BusyError("is busy with other commands") from None
        finally:
            self._num_waiting -= 1

    async def _exchange(self, call: ControlCall, timeout_s: float) -> ControlReply:
        loop = asyncio.get_running_loop()
        sent = replace_id(call, next(self._call_ids))
        if len(self._pending) >= MAX_PENDING_CALLS:
            raise NotDeliveredError(f"has left {MAX_PENDING_CALLS} commands unanswered")
        if not self._port.send_nowait(sent):
            raise NotDeliveredError("cannot be reached")
        answer: asyncio.Future[ControlReply] = loop.create_future()
        expiry = loop.call_later(LATE_ANSWER_S, self._pending.pop, sent.call_id, None)
        self._pending[sent.call_id] = Pending(sent, answer, expiry)
        try:
            await asyncio.wait((answer,), timeout=timeout_s)
            for _ in range(CATCH_UP_TURNS):
                if answer.done():
                    return answer.result()
                await asyncio.sleep(0)
            raise NotConfirmedError
        finally:
            if sent.call_id in self._pending:
                self._pending[sent.call_id].answer = None

    def _answer(self, reply: ControlReply) -> None:
        pending = self._pending.pop(reply.call_id, None)
        if pending is None:
            return
        pending.expiry.cancel()
        if pending.answer is None or pending.answer.done():
            self._on_late_answer(pending.call, reply)
        else:
            pending.answer.set_result(reply)


def replace_id(call: ControlCall, call_id: int) -> ControlCall:
    """Return `call` under another number and without its key, which stays in front of the pool."""
    return ControlCall(call_id, call.command, call.args, key="", actor=call.actor)
