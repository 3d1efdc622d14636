"""A ring with both its ends, in shared memory and as loopback, for the contract suite.

Each rig can restart an end (a new object over the same bytes, as a new process would do) and damage
a frame (flip a byte of its payload), which is what the contract says to survive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ipc.channel import FrameReceiver, FrameSender
from ipc.layout import create_segment
from ipc.loopback import LoopbackRing, LoopbackRingReader, LoopbackRingWriter
from ipc.ring import RingReader, RingWriter, format_ring, ring_layout
from ipc.segment import Segment

SLOT_HEADER_BYTES = 32


class Writer(FrameSender, Protocol):
    """A sender that can start anew."""

    def reset(self) -> None:
        """Void every frame sent so far."""
        ...


class Reader(FrameReceiver, Protocol):
    """A receiver that can start anew."""

    def attach_at_head(self) -> None:
        """Forget all that was sent so far."""
        ...


class RingRig(Protocol):
    """One ring, its ends, and what may happen to them."""

    writer: Writer
    readers: list[Reader]

    def restart_writer(self) -> None:
        """Replace the writer, as a new process does."""
        ...

    def restart_reader(self, index: int) -> None:
        """Replace a reader, as a new process does."""
        ...

    def damage(self, sequence: int) -> None:
        """Spoil the payload of frame `sequence`, counted from 1."""
        ...


@dataclass
class SharedRig:
    """A ring in a file."""

    path: Path
    num_slots: int
    slot_bytes: int
    num_readers: int

    def __post_init__(self) -> None:
        layout = ring_layout(self.num_slots, self.slot_bytes, self.num_readers)
        self.layout = layout
        self.damaged: set[int] = set()
        self.segment = create_segment(self.path, layout)
        format_ring(self.segment, self.num_slots, self.slot_bytes, self.num_readers)
        self.writer: Writer = RingWriter(Segment.open(self.path))
        self.readers: list[Reader] = [
            RingReader(Segment.open(self.path), index) for index in range(self.num_readers)
        ]

    def restart_writer(self) -> None:
        """Map the file again."""
        self.writer = RingWriter(Segment.open(self.path))

    def restart_reader(self, index: int) -> None:
        """Map the file again."""
        self.readers[index] = RingReader(Segment.open(self.path), index)

    def damage(self, sequence: int) -> None:
        """Flip the first byte of the payload, once."""
        if sequence not in self.damaged:
            self.flip(sequence, SLOT_HEADER_BYTES)
        self.damaged.add(sequence)

    def flip(self, sequence: int, offset: int, mask: int = 0xFF) -> None:
        """Flip bits of one byte of a slot, header included."""
        self.segment.buffer[self.slot_offset(sequence) + offset] ^= mask

    def slot_offset(self, sequence: int) -> int:
        """Return where the slot of a frame begins, bytes."""
        stride = self.layout.arrays["slots"].shape[1]
        return self.layout.offsets["slots"] + sequence % self.num_slots * stride


@dataclass
class LoopbackRig:
    """A ring in this process."""

    num_slots: int
    slot_bytes: int
    num_readers: int

    def __post_init__(self) -> None:
        self.ring = LoopbackRing(self.num_slots, self.slot_bytes, self.num_readers)
        self.writer: Writer = self.ring.writer
        self.readers: list[Reader] = list(self.ring.readers)

    def restart_writer(self) -> None:
        """Make another writer of the same ring."""
        self.writer = LoopbackRingWriter(self.ring)

    def restart_reader(self, index: int) -> None:
        """Make another reader of the same ring."""
        self.readers[index] = LoopbackRingReader(self.ring, index)

    def damage(self, sequence: int) -> None:
        """Lose the frame."""
        self.ring.damage(sequence)


RigFactory = Callable[..., RingRig]


def shared_rigs(folder: Path) -> RigFactory:
    """Return a maker of rings in files of `folder`."""
    made: list[Path] = []

    def make(num_slots: int = 4, slot_bytes: int = 64, num_readers: int = 1) -> RingRig:
        made.append(folder / f"ring.{len(made)}")
        return SharedRig(made[-1], num_slots, slot_bytes, num_readers)

    return make


def loopback_rigs() -> RigFactory:
    """Return a maker of rings in this process."""

    def make(num_slots: int = 4, slot_bytes: int = 64, num_readers: int = 1) -> RingRig:
        return LoopbackRig(num_slots, slot_bytes, num_readers)

    return make


def drain(reader: FrameReceiver) -> list[bytes]:
    """Return copies of all frames that are there, and give them back."""
    frames = []
    while (frame := reader.receive()) is not None:
        frames.append(bytes(frame))
    reader.acknowledge()
    return frames
