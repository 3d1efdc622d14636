"""What a message port promises, over zmq and on loopback."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipc.channel import Received
from tests.support.channels.port_rigs import Answer, Ask, LoopbackPortRig, PortRig, zmq_rig

MANY = 1_000_000  # more than can be sent while a disconnection is being noticed


@pytest.fixture(params=["zmq", "loopback"])
def rig(request: pytest.FixtureRequest) -> Iterator[PortRig]:
    if request.param == "loopback":
        yield LoopbackPortRig()
        return
    with tempfile.TemporaryDirectory() as folder, zmq_rig(Path(folder)) as made:
        yield made


def test_messages_arrive_in_order_with_their_sender(rig: PortRig) -> None:
    """The router receives what dealers send, oldest first, with their identities."""
    router, dealer = rig.router(), rig.dealer(b"http.0.1")
    assert [dealer.send(Ask(n)) for n in range(50)] == [True] * 50
    assert rig.receive(router, 50) == [Received(b"http.0.1", Ask(n)) for n in range(50)]


def test_answers_reach_the_peer_they_are_for(rig: PortRig) -> None:
    """A message to an identity arrives there and nowhere else, from peer b""."""
    router = rig.router()
    one, two = rig.dealer(b"one"), rig.dealer(b"two")
    for dealer in (one, two):
        dealer.send(Ask(0))
    rig.receive(router, 2)
    assert router.send(Answer(1), b"one")
    assert router.send(Answer(2), b"two")
    assert rig.receive(one, 1) == [Received(b"", Answer(1))]
    assert rig.receive(two, 1) == [Received(b"", Answer(2))]
    assert one.receive(10) == []


def test_an_identity_is_no_prefix(rig: PortRig) -> None:
    """A message for `a1` never reaches `a10`."""
    router, dealer = rig.router(), rig.dealer(b"a10")
    dealer.send(Ask(0))
    rig.receive(router, 1)
    assert not router.send(Answer(1), b"a1")


def test_an_unknown_peer_is_an_answer_not_an_error(rig: PortRig) -> None:
    """Sending to somebody who never came is False."""
    assert not rig.router().send(Answer(1), b"nobody")


def test_receive_takes_no_more_than_it_may(rig: PortRig) -> None:
    """At most `limit` messages are returned; the rest stays for the next step."""
    router, dealer = rig.router(), rig.dealer(b"me")
    for n in range(5):
        dealer.send(Ask(n))
    assert [m.message for m in rig.receive(router, 3)] == [Ask(0), Ask(1), Ask(2)]
    assert [m.message for m in rig.receive(router, 2)] == [Ask(3), Ask(4)]
    assert router.receive(10) == []


def test_garbage_is_counted_and_dropped(rig: PortRig) -> None:
    """Frames that are no message cost a count; those before and after arrive."""
    router, dealer = rig.router(), rig.dealer(b"me")
    dealer.send(Ask(1))
    for frame in (b"", b"\x00", b"\x01", b"\x01\xff", b"\x02" + b"\x81" * 20, bytes(1000)):
        rig.send_garbage(dealer, frame)
    dealer.send(Ask(2))
    assert [m.message for m in rig.receive(router, 2)] == [Ask(1), Ask(2)]
    assert router.dropped_frames == 6


def test_a_full_queue_refuses_and_keeps_what_it_took(rig: PortRig) -> None:
    """A peer that reads nothing is refused at some point; all that was accepted arrives."""
    router, dealer = rig.router(high_water_mark=4), rig.dealer(b"me", high_water_mark=4)
    accepted = 0
    while dealer.send(Ask(accepted, "x" * 65536)):
        accepted += 1
        assert accepted < 1000
    assert accepted >= 4
    numbers = [m.message.number for m in rig.receive(router, accepted)]
    assert numbers == list(range(accepted))


def test_nothing_queues_for_a_server_that_is_not_there(rig: PortRig) -> None:
    """Without a router a dealer's send is False, and a later router sees nothing of it."""
    early = rig.dealer(b"early")
    assert not early.send(Ask(1))
    router, late = rig.router(), rig.dealer(b"late")
    assert late.send(Ask(2))
    assert rig.receive(router, 1) == [Received(b"late", Ask(2))]
    assert router.receive(10) == []


def test_a_restarted_server_sees_only_what_is_meant_for_it(rig: PortRig) -> None:
    """Messages that the old router did not take are gone; the same dealers reach the new one."""
    router, dealer = rig.router(), rig.dealer(b"me")
    assert dealer.send(Ask(1))
    rig.receive(router, 1)
    router.close()
    rig.wait_until_away(dealer)
    assert not dealer.send(Ask(2))
    successor = rig.router()
    rig.wait_until_served(dealer)
    assert dealer.send(Ask(3))
    assert rig.receive(successor, 1) == [Received(b"me", Ask(3))]
    assert successor.send(Answer(4), b"me")
    assert rig.receive(dealer, 1) == [Received(b"", Answer(4))]


def test_nothing_is_lost_after_a_reconnection(rig: PortRig) -> None:
    """The old connection may still look alive; what is sent now arrives at the new server."""
    router, dealer = rig.router(), rig.dealer(b"me")
    assert dealer.send(Ask(1))
    rig.receive(router, 1)
    rig.end(router)
    successor = rig.router()
    dealer.reconnect()
    rig.wait_until_served(dealer)
    assert dealer.send(Ask(2))
    assert rig.receive(successor, 1) == [Received(b"me", Ask(2))]


def test_a_new_peer_takes_over_its_identity(rig: PortRig) -> None:
    """When an identity connects again, answers go to the new connection."""
    router, old = rig.router(), rig.dealer(b"me")
    old.send(Ask(1))
    rig.receive(router, 1)
    new = rig.dealer(b"me")
    new.send(Ask(2))
    assert rig.receive(router, 1) == [Received(b"me", Ask(2))]
    assert router.send(Answer(3), b"me")
    assert rig.receive(new, 1) == [Received(b"", Answer(3))]


def test_a_peer_that_left_is_gone(rig: PortRig) -> None:
    """After a dealer closes, sending to it becomes False."""
    router, dealer = rig.router(high_water_mark=MANY), rig.dealer(b"me")
    dealer.send(Ask(1))
    rig.receive(router, 1)
    dealer.close()
    assert not all(router.send(Answer(0), b"me") for _ in range(MANY))
