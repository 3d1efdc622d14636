"""One request on its way through the engine: its queue of events, bounded, and its end.

Owns: what has come and was not taken yet, and the word for too much of it. Never knows: tokenizers
(its client tells them) or HTTP.

    generate ─► Queued ─► Started ─► Chunk … Chunk (a finish_reason for each choice)
    Failed ends it anywhere

Two bounds: the number of events, and the bytes of those with log-probabilities, of which one token
may bring a kilobyte. Bytes count only while the reader is busy sending, since one that waits takes
everything in its next turn; and the largest event is not counted against the bound, for the
log-probabilities of a prompt come at once and take long to send.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from core.messages.http import Chunk, Detokenized, Failed, Queued, Started, Tokenized, TokenLogprob
from frontends.tokenizer_link import TokenizerLink

Event = Queued | Started | Chunk | Failed | Tokenized | Detokenized

QUEUE_CAPACITY = 512
QUEUE_CAPACITY_PER_CHOICE = 64
QUEUE_BYTES = 64 * 1024
QUEUE_BYTES_PER_CHOICE = 8 * 1024
LOGPROB_BYTES = 48  # of one token in JSON: its text, its bytes, its number


class Canceller(Protocol):
    """What an operation asks of its client."""

    def send_cancel(self, operation: "Operation") -> None:
        """Tell the engine that nobody wants the operation any more."""
        ...

    def forget(self, operation: "Operation") -> None:
        """Drop an operation that has ended."""
        ...


class OperationClosedError(Exception):
    """The operation was cancelled from this side; no event will come."""


class Operation:
    """One request on its way through the engine; leaving its `with` block cancels the rest.

    `sink` may take a chunk in the turn in which it comes, so that nobody has to be woken for it. It
    is asked while the reader waits and has nothing in hand, for chunks that end nothing; it returns
    whether it has taken the chunk.

    `on_overflow` is called when the reader takes so little that its bounded queue is full; the
    operation is cancelled then.
    """

    __slots__ = (
        "_capacity",
        "_capacity_bytes",
        "_client",
        "_events",
        "_is_closed",
        "_link",
        "_num_open",
        "_unread_bytes",
        "_waiter",
        "give_up_ns",
        "on_overflow",
        "operation_id",
        "sink",
    )

    def __init__(
        self, client: Canceller, operation_id: str, num_choices: int, give_up_ns: int
    ) -> None:
        self.operation_id = operation_id
        self.give_up_ns = give_up_ns
        self.on_overflow: Callable[[], None] | None = None
        self.sink: Callable[[Chunk], bool] | None = None
        self._client = client
        self._link: TokenizerLink[Operation] | None = None
        self._num_open = num_choices
        self._capacity = QUEUE_CAPACITY + QUEUE_CAPACITY_PER_CHOICE * num_choices
        self._capacity_bytes = QUEUE_BYTES + QUEUE_BYTES_PER_CHOICE * num_choices
        self._unread_bytes = 0
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def is_finished(self) -> bool:
        """True when all choices have ended; the events may still wait to be read."""
        return self._num_open == 0

    @property
    def num_unread(self) -> int:
        """Events that have come and were not taken yet."""
        return len(self._events)

    async def next_events(self, timeout_s: float | None = None) -> list[Event]:
        """Return all events that have come, waiting for the first; empty after `timeout_s`.

        Without a timeout the wait ends at `give_up_ns` (see `EngineClient.tick`). Raises
        OperationClosedError after `cancel`.
        """
        if not self._events and not self._is_closed:
            await self._wait(timeout_s)
        if self._is_closed:
            raise OperationClosedError
        events, self._events = self._events, []
        self._unread_bytes = 0
        return events

    def cancel(self) -> None:
        """End the operation from this side, if it has not ended; the tokenizer is told at once."""
        if not self._is_closed and not self.is_finished:
            self._client.send_cancel(self)
            self._num_open = 0
        self._is_closed = True
        self._wake()

    def push(self, event: Event) -> None:
        """Take in an event from the engine."""
        if self.is_finished or self._is_taken_at_once(event):
            return
        self._events.append(event)
        if isinstance(event, Chunk):
            self._num_open -= bool(event.finish_reason)
            if event.logprobs or event.prompt_logprobs:
                self._count_bytes(event)
        elif not isinstance(event, Queued | Started):
            self._num_open = 0
        if self.is_finished:
            self._client.forget(self)
        if self.on_overflow is not None and self._is_overfull():
            self.cancel()
            self.on_overflow()
        self._wake()

    def attach(self, link: "TokenizerLink[Operation]") -> None:
        """Note the tokenizer that serves this operation."""
        self._link = link
        link.operations[self.operation_id] = self

    def detach(self) -> "TokenizerLink[Operation] | None":
        """Leave the tokenizer; return it, or None if the operation was not with one."""
        link, self._link = self._link, None
        if link is not None:
            del link.operations[self.operation_id]
        return link

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def _is_taken_at_once(self, event: Event) -> bool:
        waiter = self._waiter
        if self.sink is None or waiter is None or waiter.done():
            return False
        return isinstance(event, Chunk) and not event.finish_reason and self.sink(event)

    def _count_bytes(self, chunk: Chunk) -> None:
        num_bytes = logprob_bytes(chunk.logprobs) + logprob_bytes(chunk.prompt_logprobs)
        self._capacity_bytes = max(self._capacity_bytes, QUEUE_BYTES + num_bytes)
        self._unread_bytes += num_bytes

    def _is_overfull(self) -> bool:
        is_waiting = self._waiter is not None
        has_too_many_bytes = self._unread_bytes > self._capacity_bytes and not is_waiting
        return has_too_many_bytes or len(self._events) > self._capacity

    async def _wait(self, timeout_s: float | None) -> None:
        assert self._waiter is None, "two tasks read one operation"
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self._wake) if timeout_s is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def logprob_bytes(entries: list[TokenLogprob]) -> int:
    """Return about how many bytes log-probabilities take in an answer."""
    return LOGPROB_BYTES * sum(1 + len(entry.top) for entry in entries)
