"""The engine as an http process sees it: operations go out, events come back.

Owns: the table of live operations, which tokenizer serves which, and their ends: whatever happens
to a tokenizer, an operation gets a terminal event. Never knows: HTTP. One task a tokenizer reads
its port and puts the events into the queues of the operations (`frontends.operation`); a reader is
woken once for all that a step brought.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from core.clock import NS_PER_S, Clock
from core.errors import RETRY_AFTER_MS, Rejection, RejectionReason
from core.messages.http import Chunks, Detokenized, Failed, ToHttp, Tokenized
from core.messages.tokenizer import Cancel, Detokenize, Generate, Tokenize
from frontends.operation import Event, Operation
from frontends.tokenizer_link import EnginePort, TokenizerLink
from ipc.errors import FrameError

RECEIVE_LIMIT = 64
OVERDUE_GRACE_NS = 10 * NS_PER_S
CALL_TIMEOUT_NS = 60 * NS_PER_S
RESEND_S = 0.01

_Link: TypeAlias = TokenizerLink[Operation]


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """What a client has to show."""

    num_operations: int
    num_serving: int
    dropped_frames: int
    num_unread_events: int


class EngineClient:
    """All operations of this process.

    `serving_epoch(index)` says which instance of tokenizer `index` lives and serves; 0 = none.
    """

    def __init__(
        self,
        ports: Sequence[EnginePort],
        serving_epoch: Callable[[int], int],
        clock: Clock,
        *,
        max_operations: int,
        request_timeout_ns: int,
    ) -> None:
        self._links: list[_Link] = [TokenizerLink(port) for port in ports]
        self._serving_epoch = serving_epoch
        self._clock = clock
        self._max_operations = max_operations
        self._request_timeout_ns = request_timeout_ns
        self._readers: list[asyncio.Task[None]] = []
        self._resend: asyncio.TimerHandle | None = None

    @property
    def num_operations(self) -> int:
        """Operations that have not ended."""
        return sum(len(link.operations) for link in self._links)

    def statistics(self) -> EngineStatistics:
        """Return counters."""
        live = [operation for link in self._links for operation in link.operations.values()]
        return EngineStatistics(
            num_operations=self.num_operations,
            num_serving=sum(1 for link in self._links if link.epoch),
            dropped_frames=sum(link.port.dropped_frames for link in self._links),
            num_unread_events=sum(operation.num_unread for operation in live),
        )

    def start(self) -> None:
        """Read from all tokenizers, inside a running event loop."""
        self.tick()
        loop = asyncio.get_running_loop()
        self._readers = [loop.create_task(self._read(link)) for link in self._links]

    async def stop(self) -> None:
        """Cancel what is left and close the ports."""
        for link in self._links:
            for operation in list(link.operations.values()):
                operation.cancel()
        if self._resend is not None:
            self._resend.cancel()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for link in self._links:
            link.port.close()

    def end_all(self) -> None:
        """End all operations: the process stops."""
        for link in self._links:
            _end_operations(link)

    def generate(self, message: Generate) -> Operation:
        """Start an operation; whatever goes wrong is its `Failed` event."""
        end_ns = message.end_deadline_ns or self._clock.now_ns() + self._request_timeout_ns
        num_choices = len(message.prompts) * message.n
        return self._begin(message, num_choices, end_ns + OVERDUE_GRACE_NS)

    async def tokenize(self, message: Tokenize) -> Tokenized | Failed:
        """Return the token ids of a prompt."""
        answer = await self._call(message)
        assert isinstance(answer, Tokenized | Failed), answer
        return answer

    async def detokenize(self, message: Detokenize) -> Detokenized | Failed:
        """Return the text of token ids."""
        answer = await self._call(message)
        assert isinstance(answer, Detokenized | Failed), answer
        return answer

    def tick(self) -> None:
        """Look at epochs and at operations that should have ended; call it every heartbeat."""
        now_ns = self._clock.now_ns()
        for index, link in enumerate(self._links):
            self._look_at_epoch(link, self._serving_epoch(index))
            self._flush(link)
            overdue = [o for o in link.operations.values() if o.give_up_ns <= now_ns]
            for operation in overdue:
                self.send_cancel(operation)
                operation.push(_refused(operation, RejectionReason.DEADLINE_EXCEEDED))

    def send_cancel(self, operation: Operation) -> None:
        """Tell the tokenizer of `operation` that nobody wants it any more."""
        link = operation.detach()
        if link is None:
            return
        if link.epoch == 0:
            link.withdraw({operation.operation_id})
            return
        cancel = Cancel(operation.operation_id, closed_ns=self._clock.now_ns())
        if not link.send_now(cancel):
            link.send_soon(cancel, self._clock.now_ns())
            self._resend_soon()

    def forget(self, operation: Operation) -> None:
        """Drop an operation that has ended."""
        operation.detach()

    def _begin(
        self, message: Generate | Tokenize | Detokenize, num_choices: int, give_up_ns: int
    ) -> Operation:
        operation = Operation(self, message.operation_id, num_choices, give_up_ns)
        if self.num_operations >= self._max_operations:
            operation.push(_refused(operation, RejectionReason.TOKENIZER_BUSY))
            return operation
        if not any(link.epoch for link in self._links):
            self._look_at_epochs()  # a tokenizer may have begun to serve since the last tick
        try:
            link = self._send(message)
        except FrameError as error:
            operation.push(Failed(operation.operation_id, f"The request is too large: {error}."))
            return operation
        if link is None:
            operation.push(_refused(operation, RejectionReason.TOKENIZER_BUSY))
        else:
            operation.attach(link)
        return operation

    def _send(self, message: Generate | Tokenize | Detokenize) -> _Link | None:
        """Give a message to the first link that takes it at once, else let it wait at one; if
        nobody serves yet, for whoever begins to.
        """
        links = sorted(self._links, key=lambda link: len(link.operations))
        serving = [link for link in links if link.epoch] or links
        for link in serving:
            if link.send_now(message):
                return link
        for link in serving:
            if link.send_soon(message, self._clock.now_ns()):
                self._resend_soon()
                return link
        return None

    async def _call(self, message: Tokenize | Detokenize) -> Event:
        with self._begin(message, 1, self._clock.now_ns() + CALL_TIMEOUT_NS) as operation:
            return (await operation.next_events())[-1]

    async def _read(self, link: _Link) -> None:
        """Put what arrives into the operations' queues, and let their readers run in between."""
        while True:
            for received in await link.port.receive(RECEIVE_LIMIT):
                self._dispatch(link, received.message)
            await asyncio.sleep(0)

    def _dispatch(self, link: _Link, message: ToHttp) -> None:
        events = message.chunks if isinstance(message, Chunks) else (message,)
        for event in events:
            operation = link.operations.get(event.operation_id)
            if operation is not None:
                operation.push(event)

    def _look_at_epochs(self) -> None:
        for index, link in enumerate(self._links):
            self._look_at_epoch(link, self._serving_epoch(index))

    def _look_at_epoch(self, link: _Link, epoch: int) -> None:
        """End the operations of an instance that is gone; those of none go to one that comes."""
        if epoch == link.epoch:
            return
        is_gone = link.epoch != 0
        link.reset(epoch)
        if is_gone:
            _end_operations(link)
        elif epoch:
            for other in self._links:
                if not other.epoch:
                    _move(other, link)

    def _flush(self, link: _Link) -> None:
        """Send what waits; end what has waited too long for a tokenizer that is full or starts."""
        reason = RejectionReason.TOKENIZER_BUSY if link.epoch else RejectionReason.ENGINE_RESTARTED
        for operation_id in link.flush(self._clock.now_ns()):
            operation = link.operations.get(operation_id)
            if operation is not None:
                operation.push(_refused(operation, reason))

    def _resend_soon(self) -> None:
        """Try again shortly, once for all that waits."""
        if self._resend is None:
            self._resend = asyncio.get_running_loop().call_later(RESEND_S, self._resend_now)

    def _resend_now(self) -> None:
        self._resend = None
        self._look_at_epochs()
        for link in self._links:
            self._flush(link)
        if any(link.has_unsent for link in self._links):
            self._resend_soon()


def new_operation_id() -> str:
    """Return an id that no other operation has."""
    return secrets.token_hex(16)


def _move(start: _Link, end: _Link) -> None:
    """Let all that waits at a link without a tokenizer wait at another one."""
    end.take_over(start)
    for operation in list(start.operations.values()):
        operation.detach()
        operation.attach(end)


def _end_operations(link: _Link) -> None:
    """Tell all who wait for an answer that none will come, and that they may ask again."""
    for operation in list(link.operations.values()):
        operation.push(_refused(operation, RejectionReason.ENGINE_RESTARTED))


def _refused(operation: Operation, reason: RejectionReason) -> Failed:
    return Failed(
        operation.operation_id,
        reason.code,
        code=reason.code,
        status=503,
        rejection=Rejection(reason, retry_after_ms=RETRY_AFTER_MS),
    )
