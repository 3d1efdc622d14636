"""The heap on latest starts and the sums by deadline, against the slow way to the same answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.policy.lateness.deadlines import BUCKET_NS, Demand, FenwickTree, LatestStarts
from core.request import Request
from tests.support.scheduler.checked_engine import make_request

ENTRIES = st.lists(st.tuples(st.integers(0, 200), st.integers(-50, 50)), max_size=60)
PUTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), max_size=40)
DUES = st.lists(st.tuples(st.integers(0, 40 * BUCKET_NS), st.integers(1, 999)), max_size=40)


@given(ENTRIES, st.integers(-1, 250))
def test_a_prefix_is_the_sum_of_its_entries(entries: list[tuple[int, int]], index: int) -> None:
    """Whatever was added in whatever order."""
    tree = FenwickTree(bits=8)
    for where, amount in entries:
        tree.add(where, amount)
    assert tree.prefix(index) == sum(amount for where, amount in entries if where <= index)


@given(ENTRIES)
def test_a_tree_that_is_all_zeros_again_takes_no_memory(entries: list[tuple[int, int]]) -> None:
    """Nodes exist only where something is."""
    tree = FenwickTree()
    for where, amount in entries:
        tree.add(where, amount)
    for where, amount in reversed(entries):
        tree.add(where, -amount)
    assert len(tree) == 0


def test_an_index_outside_the_tree_is_refused() -> None:
    """A negative index, and one beyond the size."""
    tree = FenwickTree(bits=4)
    for index in (-1, 15):
        with pytest.raises(AssertionError):
            tree.add(index, 1)


@given(PUTS, st.integers(0, 120))
def test_who_is_overdue_comes_out_once_and_in_order(
    puts: list[tuple[int, int]], now_ns: int
) -> None:
    """The last time that was put counts; who was discarded never comes."""
    starts, times = LatestStarts(), dict[Request, int]()
    requests = [make_request(number) for number in range(6)]
    for number, when_ns in puts:
        starts.put(requests[number], when_ns)
        times[requests[number]] = when_ns
    starts.discard(requests[0])
    times.pop(requests[0], None)
    overdue = starts.pop_before(now_ns)
    assert sorted(overdue, key=id) == sorted((r for r in times if times[r] < now_ns), key=id)
    assert [times[request] for request in overdue] == sorted(times[r] for r in overdue)
    assert len(starts) == len(times) - len(overdue)
    assert all((request in starts) == (times[request] >= now_ns) for request in times)


def test_a_time_that_is_put_again_and_again_leaves_no_heap_of_entries() -> None:
    """Stale entries are swept when they outnumber the live ones by far."""
    starts, request = LatestStarts(), make_request()
    for when_ns in range(10_000):
        starts.put(request, when_ns)
    assert starts.num_entries < 3000
    assert starts.pop_before(10_000) == [request]


@given(DUES, DUES, st.integers(0, 45 * BUCKET_NS))
def test_demand_is_the_work_in_the_buckets_up_to_a_time(
    dues: list[tuple[int, int]], gone: list[tuple[int, int]], until_ns: int
) -> None:
    """What was taken back does not count."""
    demand = Demand()
    for due_ns, work in dues + gone:
        demand.add(due_ns, work)
    for due_ns, work in gone:
        demand.add(due_ns, -work)
    expected = [work for due_ns, work in dues if due_ns // BUCKET_NS <= until_ns // BUCKET_NS]
    assert demand.due_by(until_ns) == sum(expected)
