"""The bounds of an operation's queue: a reader that is slow costs itself, not the process."""

import asyncio
from dataclasses import dataclass, field

from core.messages.http import Chunk, TokenLogprob
from frontends.operation import (
    QUEUE_BYTES,
    QUEUE_BYTES_PER_CHOICE,
    QUEUE_CAPACITY,
    Operation,
    logprob_bytes,
)

ENTRY = TokenLogprob(1, -0.5, "a", b"a", [(1, -0.5, "a", b"a")] * 20)
CAPACITY_BYTES = QUEUE_BYTES + QUEUE_BYTES_PER_CHOICE
NUM_THAT_FIT = CAPACITY_BYTES // logprob_bytes([ENTRY])


@dataclass
class Desk:
    """Stands for the client of an operation, and for what cuts its slow reader."""

    cancelled: list[str] = field(default_factory=list)
    overflows: int = 0

    def operation(self) -> Operation:
        """Return an operation with one choice."""
        operation = Operation(self, "op", num_choices=1, give_up_ns=0)
        operation.on_overflow = self.overflow
        return operation

    def overflow(self) -> None:
        """Count a reader that is too slow."""
        self.overflows += 1

    def send_cancel(self, operation: Operation) -> None:
        """Note a cancellation."""
        self.cancelled.append(operation.operation_id)

    def forget(self, operation: Operation) -> None:
        """Do nothing: there is no table."""


def push_logprobs(operation: Operation, count: int) -> None:
    """Let so many tokens with twenty alternatives each arrive."""
    for _ in range(count):
        operation.push(Chunk("op", 0, "a", logprobs=[ENTRY]))


def test_log_probabilities_are_bounded_by_their_bytes() -> None:
    """Far fewer events than the queue holds overflow it when each brings a kilobyte."""
    desk = Desk()
    operation = desk.operation()
    assert NUM_THAT_FIT < QUEUE_CAPACITY
    push_logprobs(operation, NUM_THAT_FIT)
    assert desk.overflows == 0
    push_logprobs(operation, 1)
    assert desk.overflows == 1
    assert desk.cancelled == ["op"]


def test_bytes_that_were_taken_count_no_more() -> None:
    """A reader that keeps up may take any amount."""
    desk = Desk()

    async def scenario() -> None:
        operation = desk.operation()
        for _ in range(4):
            push_logprobs(operation, NUM_THAT_FIT)
            assert len(await operation.next_events()) == NUM_THAT_FIT

    asyncio.run(scenario())
    assert desk.overflows == 0


def test_a_waiting_reader_is_not_slow() -> None:
    """What comes at once, more than the bound, is no fault of a reader that waits for it."""
    desk = Desk()

    async def scenario() -> None:
        operation = desk.operation()
        reader = asyncio.create_task(operation.next_events())
        await asyncio.sleep(0)
        push_logprobs(operation, 2 * NUM_THAT_FIT)
        assert len(await reader) == 2 * NUM_THAT_FIT

    asyncio.run(scenario())
    assert desk.overflows == 0


def test_the_log_probabilities_of_a_prompt_leave_room_for_more() -> None:
    """One event larger than the bound is no overflow, nor are as many bytes again as the bound."""
    desk = Desk()
    operation = desk.operation()
    operation.push(Chunk("op", 0, "", prompt_logprobs=[ENTRY] * 4 * NUM_THAT_FIT))
    push_logprobs(operation, QUEUE_BYTES // logprob_bytes([ENTRY]))
    assert desk.overflows == 0
    push_logprobs(operation, 1)
    assert desk.overflows == 1


def test_a_sink_takes_what_comes_while_the_reader_waits() -> None:
    """Chunks that a sink takes wake nobody; the one that ends the choice goes to the reader."""
    taken: list[str] = []

    def sink(chunk: Chunk) -> bool:
        taken.append(chunk.text)
        return True

    async def scenario() -> None:
        operation = Desk().operation()
        operation.sink = sink
        reader = asyncio.create_task(operation.next_events())
        await asyncio.sleep(0)
        for text in "ab":
            operation.push(Chunk("op", 0, text))
        last = Chunk("op", 0, "c", finish_reason="stop")
        operation.push(last)
        assert await reader == [last]

    asyncio.run(scenario())
    assert taken == ["a", "b"]


def test_a_sink_never_overtakes_the_reader() -> None:
    """Nothing is offered while the reader has events in hand, or after one that was declined."""
    offered: list[str] = []

    def decline(chunk: Chunk) -> bool:
        offered.append(chunk.text)
        return False

    async def scenario() -> None:
        operation = Desk().operation()
        operation.sink = decline
        operation.push(Chunk("op", 0, "a"))
        reader = asyncio.create_task(operation.next_events())
        assert [event.text for event in await reader if isinstance(event, Chunk)] == ["a"]
        operation.push(Chunk("op", 0, "b"))
        await operation.next_events()
        reader = asyncio.create_task(operation.next_events())
        await asyncio.sleep(0)
        for text in "cde":
            operation.push(Chunk("op", 0, text))
        assert [event.text for event in await reader if isinstance(event, Chunk)] == ["c", "d", "e"]

    asyncio.run(scenario())
    assert offered == ["c"]
