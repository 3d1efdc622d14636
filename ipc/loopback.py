"""Channels inside one process: the same promises as zmq ports and shared-memory rings, by plain
queues.

Owns: queues with the same capacities and the same words for full, gone and lost. Never knows:
loops, clocks. For the tests and simulations that run several loops in one thread; messages still
pass their codecs, so that nothing is shared by reference.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from ipc.channel import Buffer, FrameStatistics, InT, OutT, Received
from ipc.codec import Codec
from ipc.errors import BrokenRingError, FrameError
from ipc.ports import DEFAULT_HIGH_WATER_MARK


@dataclass(slots=True)
class LoopbackNetwork:
    """Stands in for a zmq context: who serves which url, and who is connected to it."""

    routers: dict[str, "LoopbackRouter[Any, Any]"] = field(default_factory=dict)
    dealers: dict[tuple[str, bytes], "LoopbackDealer[Any, Any]"] = field(default_factory=dict)


class _LoopbackPort(Generic[InT, OutT]):
    """What both ends have: a bounded queue of frames with their senders, and the codecs."""

    def __init__(
        self,
        network: LoopbackNetwork,
        url: str,
        receives: Codec[InT],
        sends: Codec[OutT],
        high_water_mark: int,
    ) -> None:
        self._network = network
        self._url = url
        self._receives = receives
        self._sends = sends
        self._high_water_mark = high_water_mark
        self._frames: deque[tuple[bytes, bytes]] = deque()  # peer, frame
        self.dropped_frames = 0

    def receive(self, limit: int) -> list[Received[InT]]:
        """Return up to `limit` messages, oldest first."""
        messages: list[Received[InT]] = []
        while self._frames and len(messages) < limit:
            peer, frame = self._frames.popleft()
            try:
                messages.append(Received(peer, self._receives.decode(frame)))
            except FrameError:
                self.dropped_frames += 1
        return messages

    def deliver(self, frame: bytes, peer: bytes = b"") -> bool:
        """Take a frame of `peer`; False = the queue is full."""
        if len(self._frames) >= self._high_water_mark:
            return False
        self._frames.append((peer, frame))
        return True


class LoopbackRouter(_LoopbackPort[InT, OutT]):
    """The serving end at `url`, as RouterPort."""

    def __init__(
        self,
        network: LoopbackNetwork,
        url: str,
        receives: Codec[InT],
        sends: Codec[OutT],
        high_water_mark: int = DEFAULT_HIGH_WATER_MARK,
    ) -> None:
        """Serve `url` from now on; a predecessor is gone."""
        super().__init__(network, url, receives, sends, high_water_mark)
        network.routers[url] = self

    def send(self, message: OutT, peer: bytes = b"") -> bool:
        """Send to `peer`; False = it is gone or its queue is full."""
        frame = self._sends.encode(message)
        dealer = self._network.dealers.get((self._url, peer))
        return dealer is not None and dealer.deliver(frame)

    def close(self) -> None:
        """Stop serving; queued messages are dropped."""
        if self._network.routers.get(self._url) is self:
            del self._network.routers[self._url]


class LoopbackDealer(_LoopbackPort[InT, OutT]):
    """A peer of the router at `url`, as DealerPort; like there, a frame that is sent before the
    loss of a connection was noticed is lost with it.
    """

    def __init__(
        self,
        network: LoopbackNetwork,
        url: str,
        identity: bytes,
        receives: Codec[InT],
        sends: Codec[OutT],
        high_water_mark: int = DEFAULT_HIGH_WATER_MARK,
    ) -> None:
        """Connect as `identity`, which is taken over from an older peer of that name."""
        super().__init__(network, url, receives, sends, high_water_mark)
        self._identity = identity
        self._router: LoopbackRouter[Any, Any] | None = network.routers.get(url)
        network.dealers[url, identity] = self

    def send(self, message: OutT, peer: bytes = b"") -> bool:
        """Send to the server (`peer` must be b""); False = it is away or the queue is full."""
        assert peer == b"", peer
        return self.send_frame(self._sends.encode(message))

    def send_frame(self, frame: bytes) -> bool:
        """Send raw bytes, which may be no message: what a faulty peer would do."""
        connected, self._router = self._router, self._network.routers.get(self._url)
        if self._router is None:
            return False
        is_lost = connected not in (None, self._router)
        return is_lost or self._router.deliver(frame, self._identity)

    def reconnect(self) -> None:
        """Turn to whoever serves now."""
        self._router = self._network.routers.get(self._url)

    def close(self) -> None:
        """Leave; sends to this identity fail from now on."""
        if self._network.dealers.get((self._url, self._identity)) is self:
            del self._network.dealers[self._url, self._identity]


class LoopbackRing:
    """A ring without shared memory: `writer` and `readers[i]` keep the promises of `ipc.ring`.

    A frame that all readers have given back is overwritten with 0xff, so that a loop that still
    uses it is noticed.
    """

    def __init__(self, num_slots: int, slot_bytes: int, num_readers: int = 1) -> None:
        self.num_slots = num_slots
        self.slot_bytes = slot_bytes
        self.frames: dict[int, bytearray | None] = {}  # by sequence; None = damaged
        self.head = 1
        self.floor = 1
        self.acked = [1] * num_readers
        self.writer = LoopbackRingWriter(self)
        self.readers = [LoopbackRingReader(self, index) for index in range(num_readers)]

    def damage(self, sequence: int) -> None:
        """Make frame `sequence` (from 1) unreadable, as a torn slot is, unless given back."""
        if sequence in self.frames:
            self.frames[sequence] = None

    def give_back(self, reader_index: int, sequence: int) -> None:
        """Reader `reader_index` is done with all frames below `sequence`."""
        oldest = min(self.acked)
        self.acked[reader_index] = sequence
        for freed in range(oldest, min(self.acked)):
            frame = self.frames.pop(freed)
            if frame is not None:
                frame[:] = b"\xff" * len(frame)


class LoopbackRingWriter:
    """The writing end; a new instance continues at the ring's head."""

    def __init__(self, ring: LoopbackRing) -> None:
        self._ring = ring
        self._sent = 0

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that fits, bytes."""
        return self._ring.slot_bytes

    @property
    def has_room(self) -> bool:
        """Whether the next `send` finds a slot."""
        return self._ring.head - min(self._ring.acked) < self._ring.num_slots

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Append one frame; False = full. Raises FrameError if it can never fit."""
        ring = self._ring
        frame = bytearray().join(parts)
        if len(frame) > ring.slot_bytes:
            raise FrameError(f"a frame of {len(frame)} bytes exceeds the slot of {ring.slot_bytes}")
        if not self.has_room:
            return False
        ring.frames[ring.head] = frame
        ring.head += 1
        self._sent += 1
        return True

    def reset(self) -> None:
        """Void every frame sent so far."""
        self._ring.floor = self._ring.head

    def statistics(self) -> FrameStatistics:
        """Return counters."""
        ring = self._ring
        return FrameStatistics(ring.num_slots, ring.head - min(ring.acked), self._sent, 0, 0)


class LoopbackRingReader:
    """One reading end; a new instance takes up at what was acknowledged."""

    def __init__(self, ring: LoopbackRing, reader_index: int = 0) -> None:
        self._ring = ring
        self._index = reader_index
        self._next = ring.acked[reader_index]
        self._received = 0
        self._errors = 0

    def attach_at_head(self) -> None:
        """Forget all that was sent so far."""
        self._next = self._ring.head
        self.acknowledge()

    def receive(self) -> memoryview | None:
        """Return the next frame or None; raises BrokenRingError once when frames were lost."""
        ring = self._ring
        if self._next < ring.floor:
            self._jump_to(ring.floor)
        if self._next == ring.head:
            return None
        frame = ring.frames[self._next]
        if frame is None:
            raise self._resynchronize()
        self._next += 1
        self._received += 1
        return memoryview(frame).toreadonly()

    def acknowledge(self) -> None:
        """Give back the slots of all frames returned (or lost) so far."""
        self._ring.give_back(self._index, self._next)

    def statistics(self) -> FrameStatistics:
        """Return counters."""
        ring = self._ring
        num_used = ring.head - ring.acked[self._index]
        return FrameStatistics(ring.num_slots, num_used, 0, self._received, self._errors)

    def _jump_to(self, sequence: int) -> None:
        """Skip frames; they are given back at once unless a frame before them is held."""
        holds_frames = self._ring.acked[self._index] != self._next
        self._next = sequence
        if not holds_frames:
            self.acknowledge()

    def _resynchronize(self) -> BrokenRingError:
        num_lost = self._ring.head - self._next
        self._jump_to(self._ring.head)
        self._errors += 1
        return BrokenRingError(num_lost, f"reader {self._index} found a damaged frame")
