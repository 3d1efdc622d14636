"""Heartbeat lines: each child its own, everyone reads all."""

from pathlib import Path

from ipc.heartbeat import (
    HEARTBEATS_LAYOUT,
    NUM_SLOTS,
    Heartbeat,
    HeartbeatLine,
    Heartbeats,
    HeartbeatState,
)
from ipc.layout import anonymous_segment, create_segment
from ipc.segment import Segment


def test_a_line_is_off_until_its_first_stamp() -> None:
    """Nobody has stamped: epoch 0, OFF, time 0."""
    heartbeats = Heartbeats(anonymous_segment(HEARTBEATS_LAYOUT))
    assert heartbeats.read(NUM_SLOTS - 1) == Heartbeat(0, HeartbeatState.OFF, 0, 0)


def test_a_stamp_is_seen_in_its_slot_only(tmp_path: Path) -> None:
    """State, time and promise arrive, and the neighbours stay as they were."""
    segment = create_segment(tmp_path / "heartbeats", HEARTBEATS_LAYOUT)
    HeartbeatLine(segment, 3).stamp(HeartbeatState.BUSY, 1000, busy_until_ns=5000)
    heartbeats = Heartbeats(Segment.open(tmp_path / "heartbeats", readonly=True))
    assert heartbeats.read(3) == Heartbeat(0, HeartbeatState.BUSY, 1000, 5000)
    assert {heartbeats.read(slot).stamp_ns for slot in (2, 4)} == {0}


def test_a_stamp_without_a_promise_takes_the_old_one_back() -> None:
    """`busy_until_ns` belongs to one stamp."""
    segment = anonymous_segment(HEARTBEATS_LAYOUT)
    line, heartbeats = HeartbeatLine(segment, 0), Heartbeats(segment)
    line.stamp(HeartbeatState.BUSY, 1, busy_until_ns=9)
    line.stamp(HeartbeatState.IDLE, 2)
    assert heartbeats.read(0) == Heartbeat(0, HeartbeatState.IDLE, 2, 0)


def test_the_epoch_appears_when_the_child_serves() -> None:
    """Stamping alone keeps the old epoch; `serve` shows the new one."""
    segment = anonymous_segment(HEARTBEATS_LAYOUT)
    line, heartbeats = HeartbeatLine(segment, 1), Heartbeats(segment)
    line.stamp(HeartbeatState.LOADING, 1)
    assert heartbeats.epoch(1) == 0
    line.serve(4)
    assert (heartbeats.epoch(1), heartbeats.read(1).epoch) == (4, 4)


def test_every_line_is_a_cache_line() -> None:
    """Children on different cores do not share one."""
    assert HEARTBEATS_LAYOUT.offsets["lines"] % 64 == 0
    assert HEARTBEATS_LAYOUT.arrays["lines"].num_bytes == NUM_SLOTS * 64
