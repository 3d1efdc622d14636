"""The place queue: order, lazy deletion and its bound."""

from hypothesis import given
from hypothesis import strategies as st

from core.policy.queues.place_queue import MIN_STALE_ENTRIES, PlaceQueue
from core.request import Request
from tests.support.scheduler.checked_engine import make_request


def by_arrival(request: Request) -> tuple[int, ...]:
    return (request.arrival_ns, request.request_id)


def test_the_smallest_place_comes_first_whatever_the_order_of_adding() -> None:
    """First returns requests by their places."""
    queue = PlaceQueue(by_arrival)
    requests = [make_request(i, arrival_ns=i) for i in range(5)]
    for i in (3, 0, 4, 1, 2):
        queue.add(requests[i])
    assert queue.first(3) == requests[:3]


def test_a_request_that_comes_back_gets_its_old_place() -> None:
    """A request that was removed and added again stands where it stood, once."""
    queue = PlaceQueue(by_arrival)
    requests = [make_request(i, arrival_ns=i) for i in range(3)]
    for request in requests:
        queue.add(request)
    queue.remove(requests[1])
    assert queue.first(9) == [requests[0], requests[2]]
    queue.add(requests[1])
    assert queue.first(9) == requests
    queue.check_integrity()


def test_stale_entries_are_bounded() -> None:
    """Removing from the middle does not let the heap grow without bound."""
    queue = PlaceQueue(by_arrival)
    queue.add(make_request(0, arrival_ns=0))
    for i in range(1, 10 * MIN_STALE_ENTRIES):
        request = make_request(i, arrival_ns=i)
        queue.add(request)
        queue.remove(request)
    assert queue.num_entries <= 2 + MIN_STALE_ENTRIES
    assert len(queue) == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 15)), max_size=80), st.integers(0, 20))
def test_the_queue_agrees_with_a_sorted_list(steps: list[tuple[bool, int]], count: int) -> None:
    """After any adding and removing, first(n) is the beginning of the sorted waiting requests."""
    queue = PlaceQueue(by_arrival)
    requests = [make_request(i, arrival_ns=(7 * i) % 5) for i in range(16)]
    waiting: set[Request] = set()
    for is_add, i in steps:
        request = requests[i]
        if is_add and request not in waiting:
            queue.add(request)
            waiting.add(request)
        elif not is_add and request in waiting:
            queue.remove(request)
            waiting.remove(request)
        queue.check_integrity()
    assert queue.first(count) == sorted(waiting, key=by_arrival)[:count]
