"""What loopback channels add to the contract: they catch what shared memory would only blur."""

from ipc.loopback import LoopbackRing


def test_a_frame_given_back_is_overwritten() -> None:
    """A loop that still uses a frame after its acknowledgement reads 0xff, not yesterday's data."""
    ring = LoopbackRing(num_slots=2, slot_bytes=8)
    ring.writer.send([b"data"])
    frame = ring.readers[0].receive()
    assert frame is not None
    ring.readers[0].acknowledge()
    assert bytes(frame) == b"\xff" * 4


def test_a_frame_is_kept_for_the_slowest_reader() -> None:
    """One reader's acknowledgement does not spoil the frame for the others."""
    ring = LoopbackRing(num_slots=2, slot_bytes=8, num_readers=2)
    ring.writer.send([b"data"])
    frame = ring.readers[1].receive()
    ring.readers[0].receive()
    ring.readers[0].acknowledge()
    assert frame is not None
    assert bytes(frame) == b"data"
