"""zmq ports beyond the contract: the socket file, the poller, asyncio."""

import asyncio
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from ipc.async_port import AsyncPort
from ipc.channel import Received
from ipc.errors import IpcError
from ipc.ports import Context, DealerPort, RouterPort
from tests.support.channels.port_rigs import Answer, Ask, codec

DEADLINE_S = 60

Message = Ask | Answer


class Ports:
    """Makes ports of one url, and closes them all."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "port.sock"
        self.context: Context = zmq.Context()
        self.made: list[RouterPort[Message, Message] | DealerPort[Message, Message]] = []

    def router(self, url: str = "") -> RouterPort[Message, Message]:
        port = RouterPort(self.context, url or f"ipc://{self.path}", codec(), codec())
        self.made.append(port)
        return port

    def dealer(self, identity: bytes = b"me") -> DealerPort[Message, Message]:
        port = DealerPort(self.context, f"ipc://{self.path}", identity, codec(), codec())
        self.made.append(port)
        assert port.socket.poll(DEADLINE_S * 1000, zmq.POLLOUT)
        return port


@pytest.fixture
def ports() -> Iterator[Ports]:
    with tempfile.TemporaryDirectory() as folder:
        made = Ports(folder)
        yield made
        for port in made.made:
            port.close()
        made.context.term()


def test_the_socket_file_is_private(ports: Ports) -> None:
    """Mode 0600, whatever the umask says."""
    ports.router()
    assert stat.S_IMODE(ports.path.stat().st_mode) == 0o600


def test_the_file_of_a_killed_predecessor_is_replaced(ports: Ports) -> None:
    """A socket file that nobody listens on does not keep its path."""
    ports.path.write_bytes(b"")
    router = ports.router()
    assert ports.dealer().send(Ask(1))
    assert router.socket.poll(DEADLINE_S * 1000, zmq.POLLIN)


def test_a_place_that_cannot_be_bound_is_an_error(ports: Ports) -> None:
    """The message names the url, and the socket is closed."""
    with pytest.raises(IpcError, match="ipc:///nowhere/x"):
        ports.router("ipc:///nowhere/x.sock")


def test_a_port_works_in_a_poller_beside_other_fds(ports: Ports) -> None:
    """`port.socket` is level-triggered in zmq's poller: it stays readable until it is drained."""
    router, dealer = ports.router(), ports.dealer()
    poller = zmq.Poller()
    poller.register(router.socket, zmq.POLLIN)
    assert dict(poller.poll(0)) == {}
    dealer.send(Ask(1))
    dealer.send(Ask(2))
    assert dict(poller.poll(DEADLINE_S * 1000)) == {router.socket: zmq.POLLIN}
    router.receive(1)
    assert dict(poller.poll(DEADLINE_S * 1000)) == {router.socket: zmq.POLLIN}
    router.receive(1)
    assert dict(poller.poll(0)) == {}


def test_receiving_in_asyncio_waits_for_messages(ports: Ports) -> None:
    """`receive` sleeps until something comes, however sends and receives interleave."""

    async def converse() -> list[int]:
        server = AsyncPort(ports.router())
        client = AsyncPort(ports.dealer())
        answering = asyncio.create_task(answer_all(server, 200))
        numbers = [await ask(client, number) for number in range(200)]
        await answering
        return numbers

    assert asyncio.run(asyncio.wait_for(converse(), DEADLINE_S)) == list(range(200))


async def answer_all(server: AsyncPort[Message, Message], count: int) -> None:
    while count > 0:
        for received in await server.receive():
            assert server.send_nowait(Answer(received.message.number), received.peer)
            count -= 1


async def ask(client: AsyncPort[Message, Message], number: int) -> int:
    assert client.send_nowait(Ask(number))
    [received] = await client.receive()
    return received.message.number


def test_sending_does_not_eat_the_wakeup_of_the_receiver(ports: Ports) -> None:
    """A message that arrives while the same port sends is still received: zmq's edge may be spent
    by the send, so the send wakes the receiver."""

    async def converse() -> list[Received[Message]]:
        router = ports.router()
        dealer = ports.dealer()
        client = AsyncPort(dealer)
        client.send_nowait(Ask(0))
        assert router.socket.poll(DEADLINE_S * 1000, zmq.POLLIN)
        [first] = router.receive(1)
        receiving = asyncio.create_task(client.receive())
        await asyncio.sleep(0)  # the receiver waits now
        router.send(Answer(1), first.peer)
        assert dealer.socket.poll(DEADLINE_S * 1000, zmq.POLLIN)  # spends the edge
        client.send_nowait(Ask(2))
        return await receiving

    assert asyncio.run(asyncio.wait_for(converse(), DEADLINE_S)) == [Received(b"", Answer(1))]


def test_a_cancelled_receiver_can_be_followed_by_another(ports: Ports) -> None:
    """Cancelling `receive` leaves no watcher behind, and nothing is lost."""

    async def converse() -> list[Received[Message]]:
        server, client = AsyncPort(ports.router()), AsyncPort(ports.dealer())
        receiving = asyncio.create_task(server.receive())
        await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.gather(receiving, return_exceptions=True)
        client.send_nowait(Ask(7))
        return await server.receive()

    assert asyncio.run(asyncio.wait_for(converse(), DEADLINE_S)) == [Received(b"me", Ask(7))]
