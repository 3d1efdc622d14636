"""When requests must have started or ended: the heap of their deadlines."""

from core.request import RequestStatus
from core.scheduler.deadlines import MIN_SWEEP_SIZE, DeadlineHeap, DeadlineKind
from tests.support.scheduler.checked_engine import make_request


def test_deadlines_come_in_order_and_only_when_due() -> None:
    """What is due comes out earliest first, once; the rest stays."""
    heap, first, second = DeadlineHeap(), make_request(1), make_request(2)
    heap.add(20, DeadlineKind.START, second)
    heap.add(10, DeadlineKind.END, first)
    heap.add(30, DeadlineKind.END, second)
    assert heap.next_ns() == 10
    assert heap.pop_due(20) == [(DeadlineKind.END, first), (DeadlineKind.START, second)]
    assert heap.pop_due(20) == []
    assert heap.next_ns() == 30


def test_a_deadline_that_no_longer_matters_is_silent() -> None:
    """A start deadline of a running request and any deadline of a finished one are dropped."""
    heap, started, ended = DeadlineHeap(), make_request(1), make_request(2)
    heap.add(10, DeadlineKind.START, started)
    heap.add(10, DeadlineKind.END, ended)
    started.move_to(RequestStatus.RUNNING)
    ended.move_to(RequestStatus.FINISHED_ABORTED)
    assert heap.next_ns() is None
    assert heap.pop_due(99) == []


def test_stale_deadlines_are_swept() -> None:
    """Deadlines of finished requests do not pile up until they would have passed."""
    heap = DeadlineHeap()
    for i in range(5 * MIN_SWEEP_SIZE):
        request = make_request(i)
        heap.add(10**15, DeadlineKind.END, request)
        request.move_to(RequestStatus.FINISHED_ABORTED)
    assert len(heap) <= MIN_SWEEP_SIZE + 1
