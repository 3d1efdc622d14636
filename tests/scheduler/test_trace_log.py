"""What has ended is a row of a trace; the ring is bounded and its rows are numbered."""

from core.errors import Rejection, RejectionReason
from core.request import RequestStatus
from core.scheduler.trace_log import COLUMNS, TraceLog
from tests.support.scheduler.checked_engine import make_request


def test_a_request_becomes_a_row_when_it_ends() -> None:
    """Lengths, owner, outcome, and times since its arrival."""
    log, request = TraceLog(), make_request(1, arrival_ns=100)
    request.status = RequestStatus.FINISHED_STOPPED
    request.num_output_tokens, request.first_start_ns, request.first_token_ns = 2, 130, 150
    log.add(request, now_ns=190)
    [row] = log.rows(0, 10)
    record = dict(zip(COLUMNS, row, strict=True))
    assert record["output_tokens"] == 2
    assert record["outcome"] == "stopped"
    assert (record["tenant"], record["class"]) == (request.tenant, request.traffic_class.label)
    assert (record["queue_ns"], record["ttft_ns"], record["e2e_ns"]) == (30, 50, 90)


def test_a_refused_request_counts_as_long_as_it_could_have_become() -> None:
    """Nobody knows better; its reason is the outcome and it has no first token."""
    log, request = TraceLog(), make_request(1)
    request.status = RequestStatus.FINISHED_SHED
    request.rejection = Rejection(RejectionReason.QUEUE_FULL_REQUESTS)
    log.add(request, now_ns=5)
    record = dict(zip(COLUMNS, log.rows(0, 1)[0], strict=True))
    assert record["output_tokens"] == request.max_tokens
    assert (record["outcome"], record["ttft_ns"]) == ("queue_full_requests", 0)


def test_the_oldest_rows_make_room() -> None:
    """Numbers go on, so that a reader knows what it has missed."""
    log = TraceLog(max_rows=4)
    for number in range(10):
        log.add(make_request(number, arrival_ns=number), now_ns=100)
    assert (log.num_rows, log.first_row) == (10, 6)
    assert [row[0] for row in log.rows(7, 2)] == [7, 8]
    assert log.rows(10, 5) == []
