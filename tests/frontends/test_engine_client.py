"""Operations and their ends, whatever happens to a tokenizer."""

import asyncio

import pytest

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.messages.http import Chunk, Chunks, Failed, Queued, Started
from core.tenancy.classes import TrafficClass
from frontends.engine_client import OVERDUE_GRACE_NS, RESEND_S
from frontends.operation import (
    QUEUE_CAPACITY,
    QUEUE_CAPACITY_PER_CHOICE,
    OperationClosedError,
)
from frontends.tokenizer_link import MAX_UNSENT, UNSENT_LIMIT_NS
from tests.frontends.client_world import World, play


def chunk(operation_id: str = "op", choice: int = 0, finish_reason: str = "") -> Chunk:
    """Return a chunk with a token of text."""
    return Chunk(operation_id, choice, "a", finish_reason=finish_reason)


def reason_of(event: object) -> RejectionReason:
    """Return the reason of a Failed event."""
    assert isinstance(event, Failed)
    assert event.rejection is not None
    return event.rejection.reason


def test_events_come_in_order_and_together() -> None:
    """A reader gets at once all that has come since its last look, in order."""

    async def scenario(world: World) -> None:
        with world.generate() as operation:
            await world.deliver(Queued("op", [], [1], [], TrafficClass.STANDARD))
            await world.deliver(Started("op", 5))
            await world.deliver(Chunks([chunk(), chunk("other"), chunk(finish_reason="stop")]))
            kinds = [type(event) for event in await operation.next_events()]
            assert kinds == [Queued, Started, Chunk, Chunk]
            assert operation.is_finished
        assert world.cancels() == []

    play(scenario)


def test_an_operation_ends_with_its_last_choice() -> None:
    """With two choices the first end is not the end."""

    async def scenario(world: World) -> None:
        with world.generate(n=2) as operation:
            await world.deliver(Chunks([chunk(choice=1, finish_reason="length")]))
            assert not operation.is_finished
            assert world.client.num_operations == 1
            await world.deliver(Chunks([chunk(choice=0, finish_reason="stop")]))
            assert operation.is_finished
            assert world.client.num_operations == 0

    play(scenario)


def test_leaving_early_cancels() -> None:
    """An operation that is given up before its end is cancelled once, and forgotten."""

    async def scenario(world: World) -> None:
        with world.generate() as operation:
            await world.deliver(Chunks([chunk()]))
            operation.cancel()
            with pytest.raises(OperationClosedError):
                await operation.next_events()
        assert world.cancels() == ["op"]
        assert world.client.num_operations == 0
        await world.deliver(Chunks([chunk()]))

    play(scenario)


def test_cancelling_wakes_a_waiting_reader() -> None:
    """A reader that waits while its client leaves does not wait on."""

    async def scenario(world: World) -> None:
        with world.generate() as operation:
            reader = asyncio.ensure_future(operation.next_events())
            await asyncio.sleep(0)
            operation.cancel()
            with pytest.raises(OperationClosedError):
                await reader

    play(scenario)


def test_a_wait_may_have_a_limit() -> None:
    """With a timeout a reader gets nothing after it, and later events are not lost."""

    async def scenario(world: World) -> None:
        with world.generate() as operation:
            assert await operation.next_events(timeout_s=0.001) == []
            await world.deliver(Started("op", 1))
            assert [type(e) for e in await operation.next_events()] == [Started]

    play(scenario)


def test_a_dead_tokenizer_ends_its_operations_only() -> None:
    """A new epoch fails what the old instance had, and leaves the others' alone."""

    async def scenario(world: World) -> None:
        with world.generate("one") as first, world.generate("two") as second:
            world.epochs[0] = 0
            world.client.tick()
            assert reason_of((await first.next_events())[-1]) is RejectionReason.ENGINE_RESTARTED
            assert not second.is_finished
            world.epochs[0] = 2
            world.client.tick()
            assert world.ports[0].num_reconnects == 3  # at the start, and at each change
            with world.generate("three"):
                assert world.client.num_operations == 2
        assert world.cancels(0) == ["three"]

    play(scenario, num_tokenizers=2)


def test_a_request_waits_for_a_tokenizer_that_starts() -> None:
    """It goes to the instance that begins to serve, in order, without a heartbeat."""

    async def scenario(world: World) -> None:
        world.epochs[0] = 0
        world.client.tick()
        with world.generate("one") as first, world.generate("two"):
            assert world.ports[0].sent == []
            world.epochs[0] = 2
            async with asyncio.timeout(RESEND_S * 1000):
                await world.ports[0].has_sent_two.wait()
            assert [m.operation_id for m in world.ports[0].sent] == ["one", "two"]
            assert not first.is_finished

    play(scenario)


def test_of_several_tokenizers_that_start_the_first_takes_all_that_waits() -> None:
    """A request does not fail because the one that it was to wait for takes longer."""

    async def scenario(world: World) -> None:
        world.epochs[:] = [0, 0]
        world.client.tick()
        with world.generate("one") as first, world.generate("two"):
            world.epochs[1] = 2
            world.client.tick()
            assert world.ports[0].sent == []
            assert {m.operation_id for m in world.ports[1].sent} == {"one", "two"}
            world.clock.time_ns += UNSENT_LIMIT_NS
            world.client.tick()
            assert not first.is_finished

    play(scenario, num_tokenizers=2)


def test_without_a_tokenizer_a_request_fails_in_the_end() -> None:
    """Nothing is sent to an instance that is not there; the failure can be retried."""

    async def scenario(world: World) -> None:
        world.epochs[0] = 0
        world.client.tick()
        with world.generate() as operation:
            assert not operation.is_finished
            world.clock.time_ns += UNSENT_LIMIT_NS
            world.client.tick()
            (failed,) = await operation.next_events()
            assert reason_of(failed) is RejectionReason.ENGINE_RESTARTED
        assert world.ports[0].sent == []

    play(scenario)


def test_who_leaves_before_a_tokenizer_serves_leaves_nothing_behind() -> None:
    """Neither the request nor a cancellation reaches the instance that comes."""

    async def scenario(world: World) -> None:
        world.epochs[0] = 0
        world.client.tick()
        with world.generate("gone"):
            pass
        world.epochs[0] = 2
        world.client.tick()
        assert world.ports[0].sent == []
        assert world.client.num_operations == 0

    play(scenario)


def test_what_waits_for_a_full_tokenizer_ends_with_it() -> None:
    """Its successor is not sent what was meant for it."""

    async def scenario(world: World) -> None:
        world.ports[0].room = 0
        with world.generate() as operation:
            world.epochs[0] = 0
            world.client.tick()
            (failed,) = await operation.next_events()
            assert reason_of(failed) is RejectionReason.ENGINE_RESTARTED
            world.ports[0].room = 10
            world.epochs[0] = 2
            world.client.tick()
            assert world.ports[0].sent == []

    play(scenario)


def test_operations_go_to_the_tokenizer_with_the_fewest() -> None:
    """Load is spread by counting."""

    async def scenario(world: World) -> None:
        operations = [world.generate(str(i)) for i in range(6)]
        assert [len(port.sent) for port in world.ports] == [2, 2, 2]
        for operation in operations:
            operation.cancel()

    play(scenario, num_tokenizers=3)


def test_a_full_tokenizer_is_passed_over() -> None:
    """A port that takes nothing is skipped; if all stay full the client is told to come back."""

    async def scenario(world: World) -> None:
        world.ports[0].room = 0
        with world.generate("one"):
            assert len(world.ports[1].sent) == 1
            world.ports[1].room = 0
            with world.generate("two") as late:
                assert not late.is_finished
                world.clock.time_ns += UNSENT_LIMIT_NS
                world.client.tick()
                (failed,) = await late.next_events()
                assert reason_of(failed) is RejectionReason.TOKENIZER_BUSY
            world.ports[1].room = 10

    play(scenario, num_tokenizers=2)


def test_a_request_waits_for_a_connection() -> None:
    """A tokenizer that is not connected yet gets what waited, in order, without a heartbeat."""

    async def scenario(world: World) -> None:
        world.ports[0].room = 0
        with world.generate("one"), world.generate("two"):
            world.ports[0].room = 10
            async with asyncio.timeout(RESEND_S * 1000):
                await world.ports[0].has_sent_two.wait()
            assert [m.operation_id for m in world.ports[0].sent] == ["one", "two"]

    play(scenario)


def test_what_waits_is_bounded() -> None:
    """So many requests wait for a tokenizer, and one more is refused."""

    async def scenario(world: World) -> None:
        world.ports[0].room = 0
        operations = [world.generate(str(i)) for i in range(MAX_UNSENT + 1)]
        assert [o.is_finished for o in operations] == [False] * MAX_UNSENT + [True]
        world.epochs[0] = 2
        world.ports[0].room = 1000
        world.client.tick()
        assert all(o.is_finished for o in operations)
        assert world.ports[0].sent == []

    play(scenario, max_operations=1000)


def test_a_cancel_that_cannot_be_sent_is_sent_later() -> None:
    """A full port delays a cancellation to the next heartbeat and does not lose it."""

    async def scenario(world: World) -> None:
        with world.generate("one"), world.generate("two"):
            world.ports[0].room = 0
        assert world.cancels() == []
        world.ports[0].room = 10
        world.client.tick()
        assert world.cancels() == ["two", "one"]

    play(scenario)


def test_operations_are_bounded() -> None:
    """One more than the limit is refused, until another has ended."""

    async def scenario(world: World) -> None:
        with world.generate("one"):
            with world.generate("two") as refused:
                (failed,) = await refused.next_events()
                assert reason_of(failed) is RejectionReason.TOKENIZER_BUSY
            await world.deliver(Chunks([chunk("one", finish_reason="stop")]))
        with world.generate("three") as accepted:
            assert not accepted.is_finished

    play(scenario, max_operations=1)


def test_a_queue_that_overflows_cancels_its_operation() -> None:
    """A reader that takes nothing cannot make this process grow."""
    overflows: list[str] = []

    async def scenario(world: World) -> None:
        with world.generate() as operation:
            operation.on_overflow = lambda: overflows.append("op")
            capacity = QUEUE_CAPACITY + QUEUE_CAPACITY_PER_CHOICE
            await world.deliver(Chunks([chunk()] * capacity))
            assert overflows == []
            await world.deliver(Chunks([chunk()] * 3))
            assert world.cancels() == ["op"]

    play(scenario)
    assert overflows == ["op"]


def test_an_operation_that_never_ends_is_ended() -> None:
    """An engine that forgets an operation cannot hold its client for ever."""

    async def scenario(world: World) -> None:
        with world.generate() as operation:
            world.clock.time_ns += 60 * NS_PER_S + OVERDUE_GRACE_NS - 1
            world.client.tick()
            assert not operation.is_finished
            world.clock.time_ns += 1
            world.client.tick()
            (failed,) = await operation.next_events()
            assert reason_of(failed) is RejectionReason.DEADLINE_EXCEEDED
        assert world.cancels() == ["op"]

    play(scenario)


def test_stopping_cancels_what_is_left_and_closes() -> None:
    """An orderly end leaves no operation behind it in the engine."""

    async def scenario(world: World) -> None:
        world.generate()

    world = play(scenario)
    assert world.cancels() == ["op"]
    assert world.ports[0].is_closed


def test_statistics_show_what_there_is() -> None:
    """Operations, serving tokenizers, dropped frames and events that nobody took are counted."""

    async def scenario(world: World) -> None:
        world.epochs[1] = 0
        world.client.tick()
        world.ports[0].dropped_frames = 3
        with world.generate() as operation:
            await world.deliver(Queued("op", [], [1], [], TrafficClass.STANDARD))
            await world.deliver(Chunks([chunk()]))
            statistics = world.client.statistics()
            assert len(await operation.next_events()) == statistics.num_unread_events == 2
            assert world.client.statistics().num_unread_events == 0
        assert statistics.num_operations == 1
        assert statistics.num_serving == 1
        assert statistics.dropped_frames == 3

    play(scenario, num_tokenizers=2)
