"""The ring in shared memory beyond the contract: torn bytes, doorbells, killed writers."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.ipc.ring_writer_process as writer_process
from ipc.doorbell import Doorbell
from ipc.errors import BrokenRingError, LayoutVersionError
from ipc.layout import create_segment
from ipc.ring import RingReader, RingWriter, format_ring, ring_bytes, ring_layout
from ipc.segment import Segment
from tests.support.channels.ring_rigs import SLOT_HEADER_BYTES, SharedRig, drain
from tests.support.processes.ending import ending

DEADLINE_MS = 60_000
SEQUENCE, LENGTH, CRC = 0, 8, 12


@pytest.fixture
def ring(tmp_path: Path) -> SharedRig:
    return SharedRig(tmp_path / "ring", num_slots=4, slot_bytes=64, num_readers=1)


@pytest.mark.parametrize("offset", [SEQUENCE, SEQUENCE + 7, LENGTH, LENGTH + 3, CRC])
def test_a_torn_slot_header_is_noticed(ring: SharedRig, offset: int) -> None:
    """A wrong sequence, length or checksum is a loss, whatever the flipped byte makes of it."""
    ring.writer.send([b"frame"])
    ring.flip(1, offset)
    with pytest.raises(BrokenRingError):
        ring.readers[0].receive()
    ring.writer.send([b"next"])
    assert drain(ring.readers[0]) == [b"next"]


@settings(max_examples=200)
@given(
    payload=st.binary(max_size=40),
    offset=st.integers(0, SLOT_HEADER_BYTES + 40 - 1),
    mask=st.integers(1, 255),
)
def test_a_flipped_byte_never_yields_another_frame(payload: bytes, offset: int, mask: int) -> None:
    """After any damage to a slot the frame is either itself or lost, never something else."""
    ring = anonymous_ring()
    writer, reader = RingWriter(ring), RingReader(ring)
    writer.send([payload])
    layout = ring_layout(4, 64)
    ring.buffer[layout.offsets["slots"] + layout.arrays["slots"].shape[1] + offset] ^= mask
    try:
        frame = reader.receive()
    except BrokenRingError:
        frame = None
    assert (frame is None) == (reader.statistics().errors == 1)
    assert frame is None or bytes(frame) == payload


def anonymous_ring() -> Segment:
    segment = Segment.anonymous(ring_bytes(4, 64))
    format_ring(segment, 4, 64)
    return segment


@pytest.mark.parametrize("head", [0, 1, 2, 2**40, 2**64 - 1])
def test_a_damaged_head_heals_with_the_next_frame(ring: SharedRig, head: int) -> None:
    """The writer keeps its own head, so a torn word delays frames and loses none silently."""
    for number in range(2):
        ring.writer.send([b"%d" % number])
    drain(ring.readers[0])
    set_word(ring, "writer", head)
    assert ring.readers[0].receive() is None
    ring.writer.send([b"next"])
    assert drain(ring.readers[0]) == [b"next"]


def test_a_damaged_acknowledgement_heals(ring: SharedRig) -> None:
    """A reader rewrites its own word when it looks, so the writer is not stuck for ever."""
    for number in range(4):
        ring.writer.send([b"%d" % number])
    drain(ring.readers[0])
    set_word(ring, "readers", 1)
    assert not ring.writer.send([b"4"])
    assert ring.readers[0].receive() is None
    assert ring.writer.send([b"4"])


def set_word(ring: SharedRig, array: str, value: int) -> None:
    offset = ring.layout.offsets[array]
    ring.segment.buffer[offset : offset + 8] = value.to_bytes(8, "little")


def test_an_overrun_reader_notices(ring: SharedRig) -> None:
    """A reader whose slots were overwritten (its word was torn) is told how many frames it lost."""
    ring.writer.send([b"0"])
    for number in range(1, 10):
        set_word(ring, "readers", number + 1)
        assert ring.writer.send([b"%d" % number])
    with pytest.raises(BrokenRingError) as caught:
        ring.readers[0].receive()
    assert caught.value.num_lost == 10


def test_a_writer_killed_within_a_frame_leaves_nothing(ring: SharedRig) -> None:
    """Half a frame was never promised: the reader sees none, and the next writer uses the slot."""
    ring.writer.send([b"whole"])
    start = ring.slot_offset(2)
    ring.segment.buffer[start : start + 40] = bytes(32) + b"half a f"
    assert drain(ring.readers[0]) == [b"whole"]
    ring.restart_writer()
    ring.writer.send([b"next"])
    assert drain(ring.readers[0]) == [b"next"]


def test_a_ring_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Bytes that were never formatted as a ring are LayoutVersionError for both ends."""
    blank = Segment.create(tmp_path / "blank", 65536)
    for end in (RingWriter, RingReader):
        with pytest.raises(LayoutVersionError):
            end(blank)


def test_every_frame_rings_every_doorbell() -> None:
    """The bells of all readers become readable, and a reader that has seen all quiets its own."""
    ring = Segment.anonymous(ring_bytes(4, 64, 2))
    format_ring(ring, 4, 64, 2)
    bells = [Doorbell.create(), Doorbell.create()]
    writer = RingWriter(ring, bells)
    readers = [RingReader(ring, index, bell) for index, bell in enumerate(bells)]
    assert ringing(*bells) == []
    writer.send([b"frame"])
    assert ringing(*bells) == bells
    assert drain(readers[0]) == [b"frame"]
    assert ringing(*bells) == [bells[1]]
    for bell in bells:
        bell.close()


def test_a_bell_keeps_ringing_while_frames_are_left() -> None:
    """A reader that stops in the middle is woken again."""
    ring, bell = anonymous_ring(), Doorbell.create()
    writer, reader = RingWriter(ring, [bell]), RingReader(ring, 0, bell)
    writer.send([b"1"])
    writer.send([b"2"])
    reader.receive()
    assert ringing(bell) == [bell]
    bell.close()


def test_a_lost_doorbell_loses_no_frame() -> None:
    """The ring tells the truth without its bell."""
    ring, bell = anonymous_ring(), Doorbell.create()
    writer, reader = RingWriter(ring, [bell]), RingReader(ring, 0, bell)
    writer.send([b"frame"])
    bell.clear()
    assert drain(reader) == [b"frame"]
    bell.close()


def ringing(*bells: Doorbell) -> list[Doorbell]:
    return select.select(bells, [], [], 0)[0]


@pytest.mark.slow
def test_a_killed_writer_is_succeeded_without_a_gap(tmp_path: Path) -> None:
    """`kill -9` of the writing process at any moment loses no frame that was sent before it, and
    the next writer continues behind them."""
    path, bell = tmp_path / "ring", Doorbell.create()
    format_ring(create_segment(path, ring_layout(8, 128)), 8, 128)
    reader = RingReader(Segment.open(path), 0, bell)
    expected = 0
    for num_frames in (1, 50, 333):
        with ending(start_writer(path, bell, expected)) as writer:
            expected = read_numbers(reader, bell, expected, num_frames)
            os.kill(writer.pid, signal.SIGKILL)
            assert writer.wait() == -signal.SIGKILL
        expected += check_numbers(drain(reader), expected)
    assert reader.statistics().errors == 0
    RingWriter(Segment.open(path)).send([b"from the successor"])
    assert drain(reader) == [b"from the successor"]
    bell.close()


def start_writer(path: Path, bell: Doorbell, first_number: int) -> subprocess.Popen[bytes]:
    script = writer_process.__file__
    arguments = [str(path), str(bell.fileno()), str(first_number)]
    return subprocess.Popen([sys.executable, "-P", script, *arguments], pass_fds=[bell.fileno()])


def read_numbers(reader: RingReader, bell: Doorbell, expected: int, num_frames: int) -> int:
    """Read at least `num_frames` frames, asleep on the bell between; return the next number."""
    end = expected + num_frames
    while expected < end:
        assert select.select([bell], [], [], DEADLINE_MS / 1000)[0], "the writer is silent"
        expected += check_numbers(drain(reader), expected)
    return expected


def check_numbers(frames: list[bytes], first: int) -> int:
    for number, frame in enumerate(frames, first):
        assert frame == number.to_bytes(8, "little") + bytes([number % 256]) * (number % 97)
    return len(frames)
