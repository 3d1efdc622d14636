"""The two kinds of channel every process loop is written against.

`MessagePort` carries typed messages (zmq in production, a queue in tests);
`FrameSender`/`FrameReceiver` carry frames of fixed-layout bytes (a shared-memory ring in
production, a queue in tests). Nothing here blocks: a loop's `step` sends and receives what it can,
and the runner waits on the doorbells between steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

InT = TypeVar("InT")
OutT = TypeVar("OutT")
InT_co = TypeVar("InT_co", covariant=True)
OutT_contra = TypeVar("OutT_contra", contravariant=True)

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Received(Generic[InT]):
    """A message and the peer to answer; the peer is b"" on a port that has only one."""

    peer: bytes
    message: InT


class MessagePort(Protocol[InT, OutT_contra]):
    """Typed messages to and from peers."""

    @property
    def dropped_frames(self) -> int:
        """Frames that arrived and were no message."""
        ...

    def receive(self, limit: int) -> list[Received[InT]]:
        """Return up to `limit` messages, oldest first; undecodable frames are only counted."""
        ...

    def send(self, message: OutT_contra, peer: bytes = b"") -> bool:
        """Send to `peer`; False = the peer is gone or its queue is full and nothing was sent.

        Raises FrameError if the message is larger than the codec's bound.
        """
        ...


class ClientPort(MessagePort[InT, OutT_contra], Protocol):
    """The port of a peer whose server may be replaced."""

    def reconnect(self) -> None:
        """Turn to whoever serves now.

        Whoever knows of a new server calls this before the first message meant for it: until the
        loss of the old connection has been noticed, messages would go down with it.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrameStatistics:
    """What a ring has seen so far."""

    num_slots: int
    num_used: int
    sent: int
    received: int
    errors: int  # sequence gaps and checksum errors


class FrameSender(Protocol):
    """The writing end of an ordered, bounded stream of frames."""

    @property
    def max_frame_bytes(self) -> int:
        """The largest frame that can be sent, bytes."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the next `send` finds a slot."""
        ...

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Append one frame made of `parts` and ring the doorbell; False = full, nothing was sent.

        Raises FrameError if the frame is larger than `max_frame_bytes`.
        """
        ...

    def statistics(self) -> FrameStatistics:
        """Return counters."""
        ...


class FrameReceiver(Protocol):
    """One reading end; a frame stays in its slot until it is acknowledged."""

    def receive(self) -> memoryview | None:
        """Return the oldest frame not yet returned, or None; valid until it is acknowledged.

        Raises BrokenRingError once when frames were lost; the next call goes on after them.
        """
        ...

    def acknowledge(self) -> None:
        """Give back the slots of all frames returned (or lost) so far."""
        ...

    def statistics(self) -> FrameStatistics:
        """Return counters."""
        ...
