"""What a ring of frames promises, on shared memory and on loopback."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipc.errors import BrokenRingError, FrameError
from tests.support.channels.ring_rigs import RigFactory, RingRig, drain, loopback_rigs, shared_rigs


@pytest.fixture(params=["shared", "loopback"])
def make_ring(request: pytest.FixtureRequest, tmp_path: Path) -> RigFactory:
    return shared_rigs(tmp_path) if request.param == "shared" else loopback_rigs()


def send_numbers(ring: RingRig, *numbers: int) -> list[bool]:
    return [ring.writer.send([b"%d" % number]) for number in numbers]


def hold(ring: RingRig) -> memoryview:
    """Receive a frame that must be there, without giving it back."""
    frame = ring.readers[0].receive()
    assert frame is not None
    return frame


def test_frames_arrive_whole_and_in_order(make_ring: RigFactory) -> None:
    """Frames come out as they went in, round and round the slots."""
    ring = make_ring(num_slots=3)
    for first in range(0, 30, 3):
        assert send_numbers(ring, first, first + 1, first + 2) == [True] * 3
        assert drain(ring.readers[0]) == [b"%d" % n for n in range(first, first + 3)]


def test_parts_are_joined(make_ring: RigFactory) -> None:
    """A frame is the concatenation of its parts: bytes, views and arrays of any dtype."""
    ring = make_ring()
    records = np.array([(1, 2.5)], dtype=[("a", np.int32), ("b", np.float32)])
    assert ring.writer.send([b"head", bytearray(b"er"), b"", records.data, np.arange(2).data])
    assert drain(ring.readers[0]) == [b"header" + records.tobytes() + np.arange(2).tobytes()]


def test_an_empty_frame_is_a_frame(make_ring: RigFactory) -> None:
    """A frame may have no bytes, and is not None."""
    ring = make_ring()
    assert ring.writer.send([])
    assert drain(ring.readers[0]) == [b""]


def test_the_largest_frame_fits_and_a_larger_one_is_refused(make_ring: RigFactory) -> None:
    """A frame of `max_frame_bytes` passes; one byte more is FrameError and changes nothing."""
    ring = make_ring(slot_bytes=100)
    assert ring.writer.max_frame_bytes == 100
    assert ring.writer.send([bytes(100)])
    with pytest.raises(FrameError, match="101 bytes"):
        ring.writer.send([bytes(60), bytes(41)])
    assert drain(ring.readers[0]) == [bytes(100)]


def test_an_empty_ring_gives_none(make_ring: RigFactory) -> None:
    """Nothing sent, nothing received; acknowledging nothing is allowed."""
    ring = make_ring()
    assert ring.readers[0].receive() is None
    ring.readers[0].acknowledge()
    assert ring.readers[0].receive() is None


def test_a_full_ring_refuses_and_loses_nothing(make_ring: RigFactory) -> None:
    """The N + 1st frame is refused until a slot is given back; the refused one was never sent."""
    ring = make_ring(num_slots=2)
    assert send_numbers(ring, 1, 2, 3) == [True, True, False]
    assert drain(ring.readers[0]) == [b"1", b"2"]
    assert send_numbers(ring, 4) == [True]
    assert drain(ring.readers[0]) == [b"4"]


def test_a_frame_keeps_its_slot_until_it_is_acknowledged(make_ring: RigFactory) -> None:
    """Returned is not given back: the view stays good and the ring stays full."""
    ring = make_ring(num_slots=1)
    send_numbers(ring, 1)
    frame = hold(ring)
    assert send_numbers(ring, 2) == [False]
    assert bytes(frame) == b"1"
    ring.readers[0].acknowledge()
    assert send_numbers(ring, 2) == [True]


def test_received_frames_are_read_only(make_ring: RigFactory) -> None:
    """A reader cannot write into a slot: it has one writer."""
    ring = make_ring()
    send_numbers(ring, 1)
    assert hold(ring).readonly


def test_every_reader_gets_every_frame(make_ring: RigFactory) -> None:
    """Readers do not share frames, and the slowest one holds the slots."""
    ring = make_ring(num_slots=2, num_readers=3)
    send_numbers(ring, 1, 2)
    assert drain(ring.readers[0]) == drain(ring.readers[1]) == [b"1", b"2"]
    assert send_numbers(ring, 3) == [False]
    assert drain(ring.readers[2]) == [b"1", b"2"]
    assert send_numbers(ring, 3) == [True]
    assert [drain(reader) for reader in ring.readers] == [[b"3"]] * 3


def test_statistics_count(make_ring: RigFactory) -> None:
    """Both ends tell slots, slots in use and what passed."""
    ring = make_ring(num_slots=4, num_readers=2)
    send_numbers(ring, 1, 2, 3)
    drain(ring.readers[0])
    ring.readers[1].receive()
    assert (ring.writer.statistics().num_slots, ring.writer.statistics().sent) == (4, 3)
    assert ring.writer.statistics().num_used == 3
    assert [reader.statistics().num_used for reader in ring.readers] == [0, 3]
    assert [reader.statistics().received for reader in ring.readers] == [3, 1]
    assert [reader.statistics().errors for reader in ring.readers] == [0, 0]


def test_a_damaged_frame_is_reported_once_and_reading_goes_on(make_ring: RigFactory) -> None:
    """The reader is told how many frames it lost, jumps to the writer and receives what comes."""
    ring = make_ring()
    send_numbers(ring, 1, 2, 3)
    ring.damage(2)
    reader = ring.readers[0]
    assert bytes(hold(ring)) == b"1"
    with pytest.raises(BrokenRingError) as caught:
        reader.receive()
    assert caught.value.num_lost == 2
    assert reader.statistics().errors == 1
    assert reader.receive() is None
    reader.acknowledge()
    assert send_numbers(ring, 4, 5, 6, 7) == [True] * 4
    assert drain(reader) == [b"4", b"5", b"6", b"7"]


def test_a_loss_frees_the_slots_when_nothing_is_held(make_ring: RigFactory) -> None:
    """A reader that holds no frame gives the lost ones back by itself; the writer goes on."""
    ring = make_ring(num_slots=1)
    send_numbers(ring, 1)
    ring.damage(1)
    with pytest.raises(BrokenRingError):
        ring.readers[0].receive()
    assert send_numbers(ring, 2) == [True]
    assert drain(ring.readers[0]) == [b"2"]


def test_a_loss_keeps_the_frames_that_are_held(make_ring: RigFactory) -> None:
    """A frame returned before the loss stays good until it is acknowledged."""
    ring = make_ring(num_slots=2)
    send_numbers(ring, 1, 2)
    ring.damage(2)
    held = hold(ring)
    with pytest.raises(BrokenRingError):
        ring.readers[0].receive()
    assert send_numbers(ring, 3) == [False]
    assert bytes(held) == b"1"
    ring.readers[0].acknowledge()
    assert send_numbers(ring, 3, 4) == [True, True]


def test_a_restarted_reader_sees_unacknowledged_frames_again(make_ring: RigFactory) -> None:
    """What was received but not acknowledged belongs to the next instance."""
    ring = make_ring()
    send_numbers(ring, 1, 2, 3)
    ring.readers[0].receive()
    ring.readers[0].acknowledge()
    ring.readers[0].receive()
    ring.restart_reader(0)
    assert drain(ring.readers[0]) == [b"2", b"3"]


def test_a_reader_may_attach_at_the_head(make_ring: RigFactory) -> None:
    """An instance that starts anew skips what its predecessor left, and frees the slots."""
    ring = make_ring(num_slots=2)
    send_numbers(ring, 1, 2)
    ring.restart_reader(0)
    ring.readers[0].attach_at_head()
    assert ring.readers[0].receive() is None
    assert send_numbers(ring, 3, 4) == [True, True]
    assert drain(ring.readers[0]) == [b"3", b"4"]


def test_a_restarted_writer_continues(make_ring: RigFactory) -> None:
    """A new writer appends after the frames of the old one, and respects slots still in use."""
    ring = make_ring(num_slots=2)
    send_numbers(ring, 1)
    ring.restart_writer()
    assert send_numbers(ring, 2, 3) == [True, False]
    assert drain(ring.readers[0]) == [b"1", b"2"]


def test_a_reset_voids_the_frames_of_a_dead_writer(make_ring: RigFactory) -> None:
    """Frames sent before `reset` are never received after it; that is no loss."""
    ring = make_ring(num_slots=4)
    send_numbers(ring, 1, 2)
    ring.restart_writer()
    ring.writer.reset()
    send_numbers(ring, 3)
    assert drain(ring.readers[0]) == [b"3"]
    assert ring.readers[0].statistics().errors == 0


def test_a_reset_spares_frames_that_are_held(make_ring: RigFactory) -> None:
    """A frame that a reader holds is not overwritten by the new writer."""
    ring = make_ring(num_slots=3)
    send_numbers(ring, 1, 2)
    held = hold(ring)
    ring.restart_writer()
    ring.writer.reset()
    assert send_numbers(ring, 3, 4) == [True, False]
    assert bytes(hold(ring)) == b"3"
    assert send_numbers(ring, 4) == [False]
    assert bytes(held) == b"1"
    ring.readers[0].acknowledge()
    assert send_numbers(ring, 4) == [True]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 40)),
        st.tuples(
            st.sampled_from(["receive", "acknowledge", "attach", "restart"]), st.integers(0, 1)
        ),
        st.tuples(st.sampled_from(["reset", "restart_writer", "damage"]), st.just(0)),
    ),
    max_size=60,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS)
def test_both_implementations_say_the_same(
    operations: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any sequence of operations has the same answers in shared memory and on loopback."""
    shared = shared_rigs(tmp_path_factory.mktemp("rings"))(num_slots=3, num_readers=2)
    loopback = loopback_rigs()(num_slots=3, num_readers=2)
    assert trace(shared, operations) == trace(loopback, operations)


def trace(ring: RingRig, operations: list[tuple[str, int]]) -> list[object]:
    """Return the answer to each operation, and the statistics at the end."""
    answers: list[object] = []
    for name, argument in operations:
        num_sent = sum(answer is True for answer in answers)
        answers.append(answer(ring, name, argument, num_sent))
    return [*answers, ring.writer.statistics(), *(r.statistics() for r in ring.readers)]


def answer(ring: RingRig, name: str, argument: int, num_sent: int) -> object:
    if name == "send":
        return ring.writer.send([bytes([argument]) * argument, b"end"])
    if name == "receive":
        return receive(ring, argument)
    acts: dict[str, Callable[[], None]] = {
        "acknowledge": lambda: ring.readers[argument].acknowledge(),
        "attach": lambda: ring.readers[argument].attach_at_head(),
        "restart": lambda: ring.restart_reader(argument),
        "reset": ring.writer.reset,
        "restart_writer": ring.restart_writer,
        "damage": lambda: ring.damage(num_sent),
    }
    acts[name]()
    return None


def receive(ring: RingRig, reader: int) -> object:
    try:
        frame = ring.readers[reader].receive()
    except BrokenRingError as error:
        return error.num_lost
    return frame if frame is None else bytes(frame)
