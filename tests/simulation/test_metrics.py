"""Every figure on histories small enough to work out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from core.errors import RejectionReason
from core.policy.base import Blocked
from core.request import RequestStatus
from core.simulation import metrics, prices
from core.simulation.history import History, Samples
from core.simulation.workload import START_NS, Promise, Workload
from core.tenancy.classes import TrafficClass
from tests.support.loads.workloads import NS_PER_MS, make_workload

LENGTH = RequestStatus.FINISHED_LENGTH
SHED = RequestStatus.FINISHED_SHED
STANDARD, BATCH = TrafficClass.STANDARD, TrafficClass.BATCH
PROMISED = {STANDARD: Promise(ttft_s=0.1, itl_s=0.02)}


def ns(times_ms: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return times since the start of the simulation as stamps."""
    return START_NS + np.round(np.array(times_ms, float) * NS_PER_MS).astype(np.int64)


def make_history(
    workload: Workload,
    tokens: Sequence[tuple[int, float]] = (),
    *,
    status: Sequence[RequestStatus] | None = None,
    reason: Sequence[RejectionReason] | None = None,
    started_ms: Sequence[float] | None = None,
    finished_ms: Sequence[float] | None = None,
    shares: Sequence[tuple[float, int, int]] = (),
) -> History:
    """Return a history of (request, ms) tokens and (end of step in ms, request, tokens) shares."""
    count = len(workload)
    ends_ms = sorted({share[0] for share in shares})
    return History(
        workload=workload,
        status=np.array(status or [LENGTH] * count),
        reason=np.array(reason or [RejectionReason.NONE] * count),
        first_start_ns=ns(started_ms) if started_ms is not None else workload.arrival_ns,
        finished_ns=ns(finished_ms) if finished_ms is not None else workload.arrival_ns + 1,
        step_begin_ns=ns([each - 1 for each in ends_ms]),
        step_end_ns=ns(ends_ms),
        token_request=np.array([request for request, _ in tokens], np.int64),
        token_ns=ns([when for _, when in tokens]),
        share_request=np.array([share[1] for share in shares], np.int64),
        share_tokens=np.array([share[2] for share in shares], np.int64),
        share_step=np.array([ends_ms.index(share[0]) for share in shares], np.int64),
        samples=Samples(),
        num_preemptions=0,
        recomputed_tokens=0,
        computed_tokens=sum(share[2] for share in shares),
        cached_tokens=0,
        protected=np.zeros(count, np.bool_),
        leftovers={},
    )


def everyone(history: History) -> metrics.Mask:
    """Return a mask of all requests."""
    return metrics.after_warm_up(history, 0.0)


def test_latencies_count_from_arrival_and_between_tokens() -> None:
    """Two requests whose tokens come mixed."""
    workload = make_workload([(0.0, 5, 3), (10.0, 5, 2)])
    tokens = [(0, 30.0), (1, 40.0), (0, 45.0), (0, 60.0), (1, 65.0)]
    times = metrics.request_times(make_history(workload, tokens))
    assert times.ttft_s == pytest.approx([0.030, 0.030])
    assert times.e2e_s == pytest.approx([0.060, 0.055])
    assert times.gap_s == pytest.approx([0.015, 0.015, 0.025])
    assert times.gap_request.tolist() == [0, 0, 1]
    assert times.num_tokens.tolist() == [3, 2]


def test_a_request_without_tokens_has_no_latencies() -> None:
    """It is not counted as 0."""
    workload = make_workload([(0.0, 5, 3), (10.0, 5, 2)])
    history = make_history(workload, [(1, 20.0), (1, 30.0)], status=[SHED, LENGTH])
    times = metrics.request_times(history)
    assert np.isnan(times.ttft_s).tolist() == [True, False]
    assert metrics.spread(times.ttft_s) == pytest.approx(
        {"p50": 0.01, "p90": 0.01, "p99": 0.01, "max": 0.01}
    )
    assert metrics.spread(np.array([np.nan])) == {}


@pytest.mark.parametrize(
    ("times_ms", "kept"),
    [
        ([100.0, 120.0, 140.0], True),  # both at their limits
        ([100.001, 110.0, 120.0], False),  # the first token too late
        ([50.0, 70.001, 90.0], False),  # one of two gaps too long
    ],
)
def test_a_promise_is_kept_up_to_its_limits(times_ms: list[float], kept: bool) -> None:
    """100 ms to the first token, 20 ms between tokens."""
    workload = make_workload([(0.0, 5, 3)], promises=PROMISED)
    history = make_history(workload, [(0, when) for when in times_ms])
    assert metrics.request_times(history).kept.tolist() == [kept]


@pytest.mark.parametrize(("num_gaps", "kept"), [(99, False), (100, True)])
def test_one_gap_in_a_hundred_may_be_late(num_gaps: int, kept: bool) -> None:
    """At least 99 % of a request's gaps must be within the cap."""
    workload = make_workload([(0.0, 5, num_gaps + 1)], promises=PROMISED)
    times_ms = [10.0, *(60.0 + number for number in range(num_gaps))]
    history = make_history(workload, [(0, when) for when in times_ms])
    times = metrics.request_times(history)
    assert times.num_late_gaps.tolist() == [1]
    assert times.kept.tolist() == [kept]


@pytest.mark.parametrize("status", [SHED, RequestStatus.FINISHED_ABORTED, RequestStatus.WAITING])
def test_who_was_not_served_to_the_end_has_kept_nothing(status: RequestStatus) -> None:
    """Whatever tokens came before."""
    workload = make_workload([(0.0, 5, 1)])
    times = metrics.request_times(make_history(workload, [(0, 1.0)], status=[status]))
    assert times.kept.tolist() == [False]
    assert times.refused.tolist() == [status is SHED]


def test_goodput_counts_refusals_against_a_policy() -> None:
    """Two of four requests kept over one second: 2 a second, 3 tokens a second, half missed."""
    rows = [(0.0, 5, 1), (300.0, 5, 2), (600.0, 5, 1), (1000.0, 5, 1)]
    workload = make_workload(rows, promises=PROMISED)
    tokens = [(0, 50.0), (1, 310.0), (1, 320.0), (2, 900.0)]
    history = make_history(workload, tokens, status=[LENGTH, LENGTH, LENGTH, SHED])
    summary = metrics.summary(history, metrics.request_times(history), everyone(history))
    assert (summary.num_requests, summary.num_refused) == (4, 1)
    assert summary.goodput_rps == pytest.approx(2.0)
    assert summary.goodput_tokens_per_s == pytest.approx(3.0)
    assert summary.miss_share == pytest.approx(0.5)
    assert summary.ttft_miss_share == pytest.approx(0.5)


def test_the_worst_class_decides() -> None:
    """One class keeps everything, the other half."""
    rows = [(0.0, 5, 1), (1.0, 5, 1), (2.0, 5, 1)]
    workload = make_workload(rows, classes=[STANDARD, BATCH, STANDARD], promises=PROMISED)
    history = make_history(workload, [(0, 10.0), (1, 999.0), (2, 500.0)])
    times = metrics.request_times(history)
    by_class = metrics.by_class(history, times, everyone(history))
    assert {name: each.miss_share for name, each in by_class.items()} == {
        "standard": 0.5, "batch": 0.0,
    }  # fmt: skip


def test_all_classes_count_the_same_seconds() -> None:
    """One kept request of a class among four seconds of arrivals is a quarter a second; requests
    that came all at once count the seconds until the last of them ended.
    """
    workload = make_workload([(0.0, 5, 1), (4000.0, 5, 1)], classes=[STANDARD, BATCH])
    history = make_history(workload, [(0, 10.0), (1, 4010.0)])
    times = metrics.request_times(history)
    by_class = metrics.by_class(history, times, everyone(history))
    assert [each.goodput_rps for each in by_class.values()] == pytest.approx([0.25, 0.25])
    at_once = make_history(
        make_workload([(0.0, 5, 1)] * 2), [(0, 10.0), (1, 500.0)], finished_ms=[10.0, 500.0]
    )
    summary = metrics.summary(at_once, metrics.request_times(at_once), everyone(at_once))
    assert summary.goodput_rps == pytest.approx(4.0)


def test_a_warm_up_leaves_out_the_first_arrivals() -> None:
    """A tenth of ten is one."""
    history = make_history(make_workload([(float(number), 1, 1) for number in range(10)]))
    assert metrics.after_warm_up(history, 0.1).tolist() == [False] + [True] * 9


def test_quartiles_are_of_prompt_lengths() -> None:
    """Only the longest quarter misses."""
    rows = [(0.0, 10 * (number + 1), 1) for number in range(8)]
    workload = make_workload(rows, promises=PROMISED)
    tokens = [(number, 10.0 if number < 6 else 500.0) for number in range(8)]
    history = make_history(workload, tokens)
    shares = metrics.by_prompt_quartile(history, metrics.request_times(history), everyone(history))
    assert shares == [1.0, 1.0, 1.0, 0.0]


def test_refusals_are_counted_by_reason() -> None:
    """With the public code of each."""
    shed, full = RejectionReason.SHED_PREDICTED, RejectionReason.QUEUE_FULL_REQUESTS
    workload = make_workload([(0.0, 1, 1)] * 4)
    history = make_history(workload, reason=[shed, full, shed, RejectionReason.NONE])
    assert metrics.refusals(history) == {"shed_predicted": 2, "queue_full_requests": 1}


def test_service_counts_outputs_twice_by_window_and_tenant() -> None:
    """Windows of one second; a step counts where it ends."""
    workload = make_workload([(0.0, 50, 2), (0.0, 30, 1)], tenants=[0, 1])
    shares = [(900.0, 0, 50), (900.0, 1, 30), (1100.0, 0, 1)]
    history = make_history(workload, shares=shares)
    assert metrics.service(history, window_s=1.0).tolist() == [[50.0, 30.0], [2.0, 0.0]]


def test_only_tenants_that_wait_all_through_a_window_are_compared() -> None:
    """In the first second both have somebody waiting, in the second only one."""
    rows = [(0.0, 10, 1), (0.0, 10, 1), (500.0, 10, 1)]
    workload = make_workload(rows, tenants=[0, 1, 1])
    shares = [(800.0, 0, 30), (900.0, 1, 10), (1900.0, 0, 99), (2000.0, 1, 5)]
    history = make_history(workload, started_ms=[2500.0, 600.0, 1500.0], shares=shares)
    competing = metrics.backlogged(history, window_s=1.0)
    assert competing[:2].tolist() == [[True, True], [True, False]]
    fairness = metrics.fairness(history, window_s=1.0)
    assert (fairness.num_windows, fairness.max_difference_tokens) == (1, 20.0)
    assert fairness.jain_index == pytest.approx(40**2 / (2 * (30**2 + 10**2)))


@pytest.mark.parametrize(
    ("values", "index"), [([3.0, 3.0, 3.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([0.0, 0.0], 1.0)]
)
def test_jains_index_is_1_for_equals_and_1_over_n_for_one_alone(
    values: list[float], index: float
) -> None:
    """And 1 where nobody gets anything."""
    assert metrics.jain_index(np.array(values)) == pytest.approx(index)


def test_the_backlog_is_what_arrived_less_what_was_computed_or_refused() -> None:
    """Prompt tokens only: a share of one token is an output."""
    rows = [(0.0, 100, 2), (1000.0, 50, 1), (2000.0, 70, 1)]
    workload = make_workload(rows)
    history = make_history(
        workload,
        status=[LENGTH, SHED, LENGTH],
        reason=[RejectionReason.NONE, RejectionReason.SHED_PREDICTED, RejectionReason.NONE],
        finished_ms=[900.0, 1500.0, 3000.0],
        shares=[(400.0, 0, 60), (800.0, 0, 40), (900.0, 0, 1)],
    )
    times_s, tokens = metrics.backlog(history, num_points=5)
    assert times_s.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert tokens.tolist() == [100.0, 40.0, 50.0, 0.0, 70.0]


@pytest.mark.parametrize(("speed", "stable"), [(1.0, True), (0.97, False)])
def test_a_backlog_that_grows_by_more_than_a_hundredth_is_not_stable(
    speed: float, stable: bool
) -> None:
    """Requests of 100 tokens each second, computed at `speed` of that."""
    workload = make_workload([(1000.0 * number, 100, 1) for number in range(100)])
    shares = [(1000.0 * number / speed + 10, number, 100) for number in range(100)]
    assert metrics.is_stable(make_history(workload, shares=shares), 0.1) is stable


def test_protected_requests_that_miss_are_counted() -> None:
    """Only those that the policy was sure of, late or refused."""
    workload = make_workload([(0.0, 5, 1)] * 4, promises=PROMISED)
    history = make_history(
        workload, [(0, 50.0), (1, 150.0), (2, 150.0)], status=[LENGTH, LENGTH, LENGTH, SHED]
    )
    history = replace(history, protected=np.array([True, True, False, True]))
    found = prices.protected(history, metrics.request_times(history), everyone(history))
    assert (found.num_requests, found.num_missed, found.miss_share) == (3, 2, 2 / 3)


def test_a_promise_is_paid_for_in_unused_tokens_and_refusals() -> None:
    """Shares of what was computed; an early refusal counts for the class of the request."""
    shed, full = RejectionReason.SHED_PREDICTED, RejectionReason.QUEUE_FULL_REQUESTS
    workload = make_workload([(0.0, 100, 1)] * 3, classes=[STANDARD, BATCH, BATCH])
    history = make_history(
        workload, shares=[(1.0, 0, 100)], reason=[RejectionReason.NONE, shed, full]
    )
    left = {Blocked.ITL: 30, Blocked.RESERVE: 5, Blocked.CLASS_CAP: 5, Blocked.SEQUENCES: 7}
    found = prices.prices(replace(history, leftovers=left, recomputed_tokens=2))
    assert found == prices.Prices(0.3, 0.1, 0.0, 0.02, {"batch": 1})
