"""Message ports over zmq sockets, non-blocking: `RouterPort` serves peers, `DealerPort` is one.

Owns: one socket each, its options and bounds. Never knows: what a message means. The answer to
every kind of trouble is False (`send`) or a count (`receive`), never an exception and never a wait:

    send, peer unknown or gone      ROUTER_MANDATORY makes it an error → False
    send, peer's queue full         SNDHWM → False
    a peer comes back               ROUTER_HANDOVER: the new connection takes the identity over
    a DEALER's server was replaced  until zmq's own thread notices, messages are lost → `reconnect`
    a DEALER's server is away       IMMEDIATE: nothing queues for a dead server, so a restarted one
                                    never sees what was meant for its predecessor → False
    receive, bytes are no message   counted in `dropped_frames`, dropped

To wait, register `port.socket` in a `zmq.Poller`, or wrap the port in `ipc.async_port.AsyncPort`.
(The fd of a zmq socket is edge-triggered; polling it raw needs the care taken there.)
"""

import os
from abc import ABC, abstractmethod
from typing import Generic

import zmq

from ipc.channel import InT, OutT, Received
from ipc.codec import Codec
from ipc.errors import FrameError, IpcError

DEFAULT_HIGH_WATER_MARK = 4096
_RECONNECT_MS = 20
_RECONNECT_MS_MAX = 200

Context = zmq.Context[zmq.Socket[bytes]]


class _Port(ABC, Generic[InT, OutT]):
    """What both kinds share: the socket, its bounds, decoding and counting."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receives: Codec[InT],
        sends: Codec[OutT],
        high_water_mark: int,
    ) -> None:
        self.socket = socket
        self.dropped_frames = 0
        self._receives = receives
        self._sends = sends
        self._high_water_mark = high_water_mark
        self._bound(socket)

    def _bound(self, socket: zmq.Socket[bytes]) -> None:
        """Put limits on what may queue in a socket, and on how large a frame may be."""
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, self._high_water_mark)
        socket.setsockopt(zmq.RCVHWM, self._high_water_mark)
        socket.setsockopt(zmq.MAXMSGSIZE, self._receives.max_frame_bytes)

    def fileno(self) -> int:
        """Return zmq's edge-triggered fd; it says when to call `receive` until nothing comes."""
        return int(self.socket.getsockopt(zmq.FD))

    @property
    def has_input(self) -> bool:
        """Whether `receive` would find something."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def receive(self, limit: int) -> list[Received[InT]]:
        """Return up to `limit` messages; none = there is none."""
        messages: list[Received[InT]] = []
        while len(messages) < limit:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                messages.append(self._decode(parts))
            except FrameError:
                self.dropped_frames += 1
        return messages

    def close(self) -> None:
        """Close the socket; unsent messages are dropped."""
        self.socket.close()

    @abstractmethod
    def _decode(self, parts: list[bytes]) -> Received[InT]:
        """Return the message of what zmq received; raises FrameError."""

    def _send(self, parts: list[bytes]) -> bool:
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        return True


class RouterPort(_Port[InT, OutT]):
    """The serving end at `url`; peers are told apart by their identities."""

    def __init__(
        self,
        context: Context,
        url: str,
        receives: Codec[InT],
        sends: Codec[OutT],
        high_water_mark: int = DEFAULT_HIGH_WATER_MARK,
    ) -> None:
        """Bind `url`; a socket file left by a dead predecessor is replaced."""
        super().__init__(context.socket(zmq.ROUTER), receives, sends, high_water_mark)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            self.socket.bind(url)
        except zmq.ZMQError as error:
            self.socket.close()
            raise IpcError(f"cannot bind {url}: {error}") from error
        if url.startswith("ipc:///"):
            os.chmod(url.removeprefix("ipc://"), 0o600)

    def send(self, message: OutT, peer: bytes = b"") -> bool:
        """Send to `peer`; False = it is gone or its queue is full."""
        return self._send([peer, self._sends.encode(message)])

    def _decode(self, parts: list[bytes]) -> Received[InT]:
        if len(parts) != 2:
            raise FrameError(f"{len(parts)} parts instead of identity and frame")
        return Received(parts[0], self._receives.decode(parts[1]))


class DealerPort(_Port[InT, OutT]):
    """A peer of the RouterPort at `url`, known there as `identity`."""

    def __init__(
        self,
        context: Context,
        url: str,
        identity: bytes,
        receives: Codec[InT],
        sends: Codec[OutT],
        high_water_mark: int = DEFAULT_HIGH_WATER_MARK,
    ) -> None:
        """Connect in the background, again whenever the server comes back."""
        super().__init__(context.socket(zmq.DEALER), receives, sends, high_water_mark)
        self._context, self._url, self._identity = context, url, identity
        self._connect()

    def reconnect(self) -> None:
        """Turn to whoever serves the url now; nothing goes to its predecessor any more.

        It takes another socket: one that is told to disconnect still sends for a while.
        """
        self.socket.close()
        self.socket = self._context.socket(zmq.DEALER)
        self._bound(self.socket)
        self._connect()

    def _connect(self) -> None:
        self.socket.setsockopt(zmq.IDENTITY, self._identity)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS_MAX)
        self.socket.connect(self._url)

    def send(self, message: OutT, peer: bytes = b"") -> bool:
        """Send to the server (`peer` must be b""); False = it is away or the queue is full."""
        assert peer == b"", peer
        return self._send([self._sends.encode(message)])

    def _decode(self, parts: list[bytes]) -> Received[InT]:
        if len(parts) != 1:
            raise FrameError(f"{len(parts)} parts instead of one frame")
        return Received(b"", self._receives.decode(parts[0]))
