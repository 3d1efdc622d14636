"""A router and its dealers, over zmq and on loopback, for the contract suite.

zmq works in the background, so the rig waits, with a deadline, for what must happen; on loopback
everything has happened already.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from ipc.channel import ClientPort, MessagePort, Received
from ipc.codec import Codec
from ipc.loopback import LoopbackDealer, LoopbackNetwork, LoopbackRouter
from ipc.ports import DealerPort, RouterPort

DEADLINE_MS = 60_000
POLL_MS = 5


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Dealer to router."""

    number: int
    text: str = ""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """Router to dealer."""

    number: int
    text: str = ""


class Port(MessagePort[Ask | Answer, Ask | Answer], Protocol):
    """What both ends have in common; both directions carry both types here."""

    @property
    def dropped_frames(self) -> int:
        """Frames that were no message."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class Dealer(ClientPort[Ask | Answer, Ask | Answer], Port, Protocol):
    """The end whose server may be replaced."""


def codec() -> Codec[Ask | Answer]:
    """Return the codec of both directions."""
    return Codec[Ask | Answer](Ask | Answer)


def wait(socket: zmq.Socket[bytes], event: zmq.PollEvent) -> None:
    """Return when the socket can be read from or written to; raise after the deadline."""
    if not socket.poll(DEADLINE_MS, event):
        raise TimeoutError(f"{event!r} did not come within {DEADLINE_MS} ms")


class PortRig(Protocol):
    """Makes ports of one url and waits for what happens in the background."""

    def router(self, high_water_mark: int = 100) -> Port:
        """Serve the url."""
        ...

    def dealer(self, identity: bytes, high_water_mark: int = 100) -> Dealer:
        """Connect to the url; returns when the router can be reached, if there is one."""
        ...

    def end(self, router: Port) -> None:
        """Close a router and return when nothing of it is left, as after the death of a process."""
        ...

    def send_garbage(self, dealer: Port, frame: bytes) -> None:
        """Send bytes that are no message."""
        ...

    def wait_until_away(self, dealer: Port) -> None:
        """Return when the dealer's connection is known to be gone."""
        ...

    def wait_until_served(self, dealer: Port) -> None:
        """Return when the dealer is connected again."""
        ...

    def receive(self, port: Port, count: int) -> list[Received[Ask | Answer]]:
        """Return exactly `count` messages."""
        ...


class ZmqRig:
    """Over an ipc:// socket."""

    def __init__(self, folder: Path) -> None:
        self.url = f"ipc://{folder}/port.sock"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.routers: dict[Port, zmq.Context[zmq.Socket[bytes]]] = {}
        self.dealers: list[DealerPort[Ask | Answer, Ask | Answer]] = []
        self.is_served = False

    def router(self, high_water_mark: int = 100) -> Port:
        """Bind."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        port = RouterPort(context, self.url, codec(), codec(), high_water_mark)
        self.routers[port] = context
        self.is_served = True
        return port

    def dealer(self, identity: bytes, high_water_mark: int = 100) -> Dealer:
        """Connect, and wait for the connection."""
        port = DealerPort(self.context, self.url, identity, codec(), codec(), high_water_mark)
        self.dealers.append(port)
        if self.is_served:
            self.wait_until_served(port)
        return port

    def end(self, router: Port) -> None:
        """Its context ends when its socket is closed, in the background too."""
        router.close()
        self.routers[router].term()

    def send_garbage(self, dealer: Port, frame: bytes) -> None:
        """Send through the socket itself."""
        assert isinstance(dealer, DealerPort)
        dealer.socket.send(frame, zmq.NOBLOCK)

    def wait_until_away(self, dealer: Port) -> None:
        """Wait until the socket cannot be written to."""
        assert isinstance(dealer, DealerPort)
        for _ in range(DEADLINE_MS // POLL_MS):
            if not dealer.socket.poll(0, zmq.POLLOUT):
                return
            dealer.socket.poll(POLL_MS, zmq.POLLIN)
        raise AssertionError("the connection is still there")

    def wait_until_served(self, dealer: Port) -> None:
        """Wait until the socket can be written to."""
        assert isinstance(dealer, DealerPort)
        wait(dealer.socket, zmq.POLLOUT)

    def receive(self, port: Port, count: int) -> list[Received[Ask | Answer]]:
        """Wait for readability between looks."""
        assert isinstance(port, RouterPort | DealerPort)
        messages = port.receive(count)
        while len(messages) < count:
            wait(port.socket, zmq.POLLIN)
            messages += port.receive(count - len(messages))
        return messages


class LoopbackPortRig:
    """In this process."""

    def __init__(self) -> None:
        self.network = LoopbackNetwork()
        self.url = "loopback://port"

    def router(self, high_water_mark: int = 100) -> Port:
        """Serve."""
        return LoopbackRouter(self.network, self.url, codec(), codec(), high_water_mark)

    def dealer(self, identity: bytes, high_water_mark: int = 100) -> Dealer:
        """Connect."""
        return LoopbackDealer(self.network, self.url, identity, codec(), codec(), high_water_mark)

    def end(self, router: Port) -> None:
        """Nothing happens in the background."""
        router.close()

    def send_garbage(self, dealer: Port, frame: bytes) -> None:
        """Send past the codec."""
        assert isinstance(dealer, LoopbackDealer)
        dealer.send_frame(frame)

    def wait_until_away(self, dealer: Port) -> None:
        """Nothing happens in the background."""

    def wait_until_served(self, dealer: Port) -> None:
        """Nothing happens in the background."""

    def receive(self, port: Port, count: int) -> list[Received[Ask | Answer]]:
        """All there is has arrived."""
        messages = port.receive(count)
        if len(messages) != count:
            raise AssertionError(f"{len(messages)} of {count} messages are there")
        return messages


@contextmanager
def zmq_rig(folder: Path) -> Iterator[PortRig]:
    """Yield a rig and close its sockets."""
    rig = ZmqRig(folder)
    try:
        yield rig
    finally:
        for dealer in rig.dealers:
            dealer.close()
        rig.context.term()
        for router in rig.routers:
            rig.end(router)
