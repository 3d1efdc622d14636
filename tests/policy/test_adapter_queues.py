"""The order within a flow: by place, and in equal shares among adapters."""

from core.policy.queues.adapter_queues import MAX_ADAPTERS, AdapterQueues
from core.policy.queues.flows import place
from core.request import Request
from tests.support.scheduler.checked_engine import make_request


def waits(queues: AdapterQueues, number: int, adapter: str = "") -> Request:
    request = make_request(number, arrival_ns=number, order=number)
    request.adapter = adapter
    queues.add(request)
    return request


def serve(queues: AdapterQueues, units: int, window: int = 0) -> str:
    """Take the first out and charge it; return its adapter."""
    first = queues.peek(window)
    assert first is not None
    queues.remove(first)
    queues.charge(first.adapter, units)
    queues.check_integrity()
    return first.adapter


def test_with_one_adapter_the_order_is_that_of_places() -> None:
    """Nothing else counts, and nothing is charged."""
    queues = AdapterQueues(place)
    first, second = waits(queues, 1, "x"), waits(queues, 2, "x")
    assert not queues.charge("x", 10**9)
    assert queues.peek(0) is first
    assert queues.first(5) == [first, second]
    assert queues.rank(second) == 1


def test_a_flood_of_one_adapter_does_not_hide_another() -> None:
    """Behind a long queue the other is served in turn."""
    queues = AdapterQueues(place)
    for number in range(1, 11):
        waits(queues, number, "flood")
    for number in range(11, 14):
        waits(queues, number, "quiet")
    served = [serve(queues, 10) for _ in range(8)]
    assert served == ["flood", "quiet"] * 3 + ["flood", "flood"]


def test_within_the_window_the_earlier_place_is_first() -> None:
    """An adapter may be ahead by so much."""
    queues = AdapterQueues(place)
    for number in range(1, 6):
        waits(queues, number, "early")
    waits(queues, 9, "late")
    assert [serve(queues, 10, window=25) for _ in range(4)] == ["early"] * 3 + ["late"]


def test_an_adapter_that_idled_has_saved_nothing_up() -> None:
    """It comes in turn, not in one go."""
    queues = AdapterQueues(place)
    waits(queues, 1, "other")
    serve(queues, 10)
    for number in range(2, 20):
        waits(queues, number, "busy")
    for _ in range(10):
        serve(queues, 10)
    for number in range(20, 25):
        waits(queues, number, "other")
    assert sorted(serve(queues, 10) for _ in range(4)) == ["busy", "busy", "other", "other"]


def test_adapters_beyond_the_limit_share_a_queue() -> None:
    """So that names of clients cost nothing."""
    queues = AdapterQueues(place)
    for number in range(1, 3 * MAX_ADAPTERS):
        waits(queues, number, f"adapter-{number}")
    assert len(queues) == 3 * MAX_ADAPTERS - 1
    assert len(queues.first(1000)) == len(queues)
    while (request := queues.peek(0)) is not None:
        queues.remove(request)
        queues.charge(request.adapter, 5)
    queues.check_integrity()
