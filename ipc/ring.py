"""A ring of frames in shared memory: one writer, 1 to R readers, every reader gets every frame.

Owns: the slots, who may touch them when, and how damage is noticed. Never knows: what a frame
means, or how long to wait (the doorbell and the loops do).

    line 0            header (`ipc.layout`) with num_slots N, slot_bytes, num_readers R
    line 1   writer   head u64: sequence of the next frame, so frames floor..head-1 exist
                      floor u64: frames below it are void (their writer died); readers skip them
    line 2+r reader   acked u64: frames below it may be overwritten, as far as reader r is concerned
    then N slots of 32 + slot_bytes (rounded up to a line):
                      sequence u64 · length u32 · crc32 u32 · zero u64[2] · payload

Frame s (from 1) lies in slot s mod N. Each word has one writer: head, floor and the slots the
RingWriter's process, `acked` of line r reader r's. The states of a slot:

    free      s - N < min(acked)      only the writer may touch it
    writing   sequence = 0            the writer copies; if it is killed, head never promises this
    full      sequence = s < head     readers may look, none writes
    free again, when every reader's acked > s

Order: the writer stores 0, payload, length and crc, sequence, head, and then rings. x86 keeps
stores in order. Arm does not, and Python has no barrier; there, the system call of the doorbell
orders them for a reader that was woken by it, and a reader that looks by chance may see head before
payload. The crc covers sequence, length and payload, so that such a reader sees a mismatch; it
looks again a few times before it calls the frame broken.

Loss: a slot that does not hold what head promises (wrong sequence, length or crc) counts as an
error, the reader jumps to head and `receive` raises BrokenRingError once with the number of frames
jumped over. Frames carry no meaning alone, so a receiver that lost some must resynchronize with its
peer as after a restart, not guess.

Restarts: a new RingWriter continues at the head it finds; `reset` voids what its predecessor left.
A new RingReader takes up at its line's acked (and would see frames again that were returned but not
acknowledged); a reader process that starts anew calls `attach_at_head` to see only what is sent
from then on.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from ipc.channel import Buffer, FrameStatistics
from ipc.doorbell import Doorbell
from ipc.errors import BrokenRingError, FrameError
from ipc.layout import LINE_BYTES, ArraySpec, Layout, align, read_parameters
from ipc.segment import Segment

RING_VERSION: Final = 1
_SLOT_HEADER: Final = struct.Struct("<QIIQQ")
_SEQUENCE: Final = struct.Struct("<Q")
_LENGTH_AND_CRC: Final = struct.Struct("<QII")  # the sequence before them stays 0 for now
_CHECKED: Final = struct.Struct("<QI")
_WORDS_PER_LINE: Final = LINE_BYTES // 8
_HEAD: Final = 0
_FLOOR: Final = 1
_READ_ATTEMPTS: Final = 4


def ring_layout(num_slots: int, slot_bytes: int, num_readers: int = 1) -> Layout:
    """Return the layout of a ring whose frames have at most `slot_bytes` bytes."""
    assert min(num_slots, slot_bytes, num_readers) > 0, (num_slots, slot_bytes, num_readers)
    stride = align(_SLOT_HEADER.size + slot_bytes)
    word = np.dtype(np.uint64)
    return Layout(
        "ring",
        RING_VERSION,
        {
            "writer": ArraySpec(word, (_WORDS_PER_LINE,)),
            "readers": ArraySpec(word, (num_readers, _WORDS_PER_LINE)),
            "slots": ArraySpec(np.dtype(np.uint8), (num_slots, stride)),
        },
        (num_slots, slot_bytes, num_readers),
    )


def ring_bytes(num_slots: int, slot_bytes: int, num_readers: int = 1) -> int:
    """Return the size of a ring's segment, bytes."""
    return ring_layout(num_slots, slot_bytes, num_readers).total_bytes


def format_ring(segment: Segment, num_slots: int, slot_bytes: int, num_readers: int = 1) -> None:
    """Make an empty ring of a new (zeroed) segment; done once, by its creator."""
    layout = ring_layout(num_slots, slot_bytes, num_readers)
    layout.format(segment)
    arrays = layout.views(segment)
    arrays["writer"][[_HEAD, _FLOOR]] = 1
    arrays["readers"][:, 0] = 1


class _RingMemory:
    """The views that both ends use: words as memoryviews of u64, slots as memoryviews of bytes."""

    __slots__ = ("acked", "num_readers", "num_slots", "slot_bytes", "slots", "writer")

    def __init__(self, segment: Segment) -> None:
        self.num_slots, self.slot_bytes, self.num_readers, *_ = read_parameters(segment)
        layout = ring_layout(self.num_slots, self.slot_bytes, self.num_readers)
        arrays = layout.views(segment)
        self.writer = arrays["writer"].data
        self.acked = arrays["readers"].reshape(-1)[::_WORDS_PER_LINE].data
        self.slots = [slot.data for slot in arrays["slots"]]


class RingWriter:
    """The writing end; there is at most one of a ring at a time."""

    def __init__(self, segment: Segment, doorbells: Sequence[Doorbell] = ()) -> None:
        """Continue at the head that is in memory; `doorbells` are rung after each frame."""
        self._memory = _RingMemory(segment)
        self._doorbells = tuple(doorbells)
        # A reader may not have acknowledged more than was sent: a smaller head is damage.
        self._head = max(self._memory.writer[_HEAD], *self._memory.acked)
        self._sent = 0

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that fits, bytes."""
        return self._memory.slot_bytes

    @property
    def has_room(self) -> bool:
        """Whether the next `send` finds a slot."""
        return self._num_used() < self._memory.num_slots

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Append one frame made of `parts`; False = full. Raises FrameError if it can never fit."""
        memory = self._memory
        frame = b"".join(parts)
        if len(frame) > memory.slot_bytes:
            raise FrameError(
                f"a frame of {len(frame)} bytes exceeds the slot of {memory.slot_bytes}"
            )
        if not self.has_room:
            return False
        self._fill(memory.slots[self._head % memory.num_slots], frame)
        self._head += 1
        self._sent += 1
        memory.writer[_HEAD] = self._head
        for doorbell in self._doorbells:
            doorbell.ring()
        return True

    def reset(self) -> None:
        """Void every frame sent so far: readers skip them. For a writer that starts anew."""
        self._memory.writer[_HEAD] = self._head
        self._memory.writer[_FLOOR] = self._head

    def statistics(self) -> FrameStatistics:
        """Return counters of this writer; `num_used` counts slots that some reader still holds."""
        return FrameStatistics(self._memory.num_slots, self._num_used(), self._sent, 0, 0)

    def _num_used(self) -> int:
        return min(self._head - min(self._memory.acked), self._memory.num_slots)

    def _fill(self, slot: memoryview, frame: bytes) -> None:
        length = len(frame)
        _SEQUENCE.pack_into(slot, 0, 0)
        slot[_SLOT_HEADER.size : _SLOT_HEADER.size + length] = frame
        _LENGTH_AND_CRC.pack_into(slot, 0, 0, length, _checksum(self._head, frame))
        _SEQUENCE.pack_into(slot, 0, self._head)


class RingReader:
    """One reading end."""

    def __init__(
        self, segment: Segment, reader_index: int = 0, doorbell: Doorbell | None = None
    ) -> None:
        """Take up where line `reader_index` says; `doorbell` is cleared when nothing is left."""
        self._memory = _RingMemory(segment)
        assert 0 <= reader_index < self._memory.num_readers, reader_index
        self._slots = [slot.toreadonly() for slot in self._memory.slots]
        self._index = reader_index
        self._doorbell = doorbell
        self._acked = self._next = self._memory.acked[reader_index]
        self._received = 0
        self._errors = 0

    def attach_at_head(self) -> None:
        """Forget all that was sent so far; only what is sent from now on will be received."""
        self._next = self._trusted_head()
        self.acknowledge()

    def receive(self) -> memoryview | None:
        """Return the next frame (read-only, valid until acknowledged) or None.

        Raises BrokenRingError once when frames were lost; the next call goes on after them.
        """
        if not self._is_ready() and not (self._clear_doorbell() and self._is_ready()):
            return None
        payload = self._read(self._next)
        if payload is None:
            raise self._resynchronize()
        self._next += 1
        self._received += 1
        return payload

    def acknowledge(self) -> None:
        """Give back the slots of all frames returned (or lost) so far; their views are void."""
        self._acked = self._next
        self._memory.acked[self._index] = self._acked

    def statistics(self) -> FrameStatistics:
        """Return counters of this reader; `num_used` counts frames it has not acknowledged."""
        memory = self._memory
        num_used = min(max(memory.writer[_HEAD] - self._acked, 0), memory.num_slots)
        return FrameStatistics(memory.num_slots, num_used, 0, self._received, self._errors)

    def _clear_doorbell(self) -> bool:
        """Make the doorbell quiet; True = it had rung, so that the ring must be looked at again."""
        return self._doorbell is not None and self._doorbell.clear()

    def _is_ready(self) -> bool:
        """Skip void frames; say whether head promises another one."""
        memory = self._memory
        floor = memory.writer[_FLOOR]
        if self._next < floor <= memory.writer[_HEAD]:
            self._jump_to(floor)
        elif memory.acked[self._index] != self._acked:
            memory.acked[self._index] = self._acked  # damaged: this line has no other writer
        return self._trusted_head() > self._next

    def _read(self, sequence: int) -> memoryview | None:
        """Return the payload of frame `sequence`, or None if its slot holds something else."""
        slot = self._slots[sequence % self._memory.num_slots]
        for _ in range(_READ_ATTEMPTS):
            found, length, crc, _, _ = _SLOT_HEADER.unpack_from(slot)
            if found == sequence and length <= self._memory.slot_bytes:
                payload: memoryview = slot[_SLOT_HEADER.size : _SLOT_HEADER.size + length]
                if _checksum(sequence, payload) == crc:
                    return payload
        return None

    def _resynchronize(self) -> BrokenRingError:
        """Jump to the writer's position and return how many frames that cost."""
        head = self._trusted_head()
        num_lost = head - self._next
        self._jump_to(head)
        self._errors += 1
        return BrokenRingError(num_lost, f"reader {self._index} found a damaged slot before {head}")

    def _jump_to(self, sequence: int) -> None:
        """Skip frames; their slots are given back at once unless a frame before them is held."""
        holds_frames = self._acked != self._next
        self._next = sequence
        if not holds_frames:
            self.acknowledge()

    def _trusted_head(self) -> int:
        """Return the writer's head, or our own position while that word is damaged."""
        memory = self._memory
        head = memory.writer[_HEAD]
        if 0 <= head - self._acked <= memory.num_slots:
            return head
        newest = memory.slots[(head - 1) % memory.num_slots]
        return head if _SLOT_HEADER.unpack_from(newest)[0] == head - 1 else self._next


def _checksum(sequence: int, payload: bytes | memoryview) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKED.pack(sequence, len(payload))))
