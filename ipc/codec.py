"""Typed messages as frames: one version byte, then msgpack of a `msgspec` struct or union.

Owns: the version byte, the size bound, and that whatever else arrives is a FrameError. Never knows:
sockets, peers, or what the messages mean. Nothing here can run code.
"""

from typing import Any, Generic, TypeVar

import msgspec

from ipc.errors import FrameError

FRAME_VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024
_VERSION_BYTE = bytes([FRAME_VERSION])

MessageT = TypeVar("MessageT")


class Codec(Generic[MessageT]):
    """Encodes and decodes the messages of one direction: `Codec[ToHttp](ToHttp)`."""

    __slots__ = ("_decoder", "_encoder", "max_frame_bytes")

    def __init__(self, message_type: Any, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        """`message_type` is the struct or the union that MessageT names."""
        self.max_frame_bytes = max_frame_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[MessageT] = msgspec.msgpack.Decoder(message_type)

    def encode(self, message: MessageT) -> bytes:
        """Return the frame of a message; raises FrameError if it is larger than the bound."""
        frame = _VERSION_BYTE + self._encoder.encode(message)
        if len(frame) > self.max_frame_bytes:
            raise FrameError(f"a message of {len(frame)} bytes exceeds {self.max_frame_bytes}")
        return frame

    def decode(self, frame: bytes | memoryview) -> MessageT:
        """Return the message of a frame; raises FrameError for anything else."""
        if not 1 < len(frame) <= self.max_frame_bytes:
            raise FrameError(f"a frame has 2 to {self.max_frame_bytes} bytes, not {len(frame)}")
        if frame[0] != FRAME_VERSION:
            raise FrameError(f"frame version {frame[0]}, known is {FRAME_VERSION}")
        try:
            return self._decoder.decode(memoryview(frame)[1:])
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise FrameError(f"not a message: {error}") from error
