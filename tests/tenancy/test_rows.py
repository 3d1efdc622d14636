"""Rows of tenants: kept while anybody needs them, given up in order, never two tenants' at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tenancy.rows import OTHER, OTHER_NAME, TenantRows

NEVER_NS, KEPT_NS = 0, 100
NAMES = ("a", "b", "c", "d", "e")


def full(*names: str) -> TenantRows:
    """Return a table of `names`, without a row that nobody has had."""
    rows = TenantRows(1 + len(names))
    rows.know(names)
    return rows


def test_a_fresh_row_is_taken_before_anybody_gives_one_up() -> None:
    """So a tenant that is added again soon finds what was counted."""
    rows = TenantRows(4)
    rows.know("ab")
    rows.offer([1], [2], KEPT_NS, 1)
    assert rows.row("c") == 3
    assert rows.row("a") == 1


def test_rows_pass_on_in_the_order_in_which_their_tenants_went() -> None:
    """Those of tenants that are there but never asked come last; then OTHER is left."""
    rows = full("a", "b", "c")
    rows.offer([2], [], NEVER_NS, 1)
    rows.offer([1, 2], [3], KEPT_NS, 2)
    assert rows.num_left == 3
    assert [rows.row(name) for name in "defg"] == [2, 1, 3, OTHER]
    assert rows.names == [OTHER_NAME, "e", "d", "f"]
    assert rows.num_left == 0


def test_a_row_waits_until_its_last_counters_are_kept() -> None:
    """They are on pages from when its tenant was found gone."""
    rows = full("a")
    rows.offer([1], [], 9, 10)
    assert rows.row("b") == OTHER
    rows.offer([1], [], 9, 11)
    assert rows.row("b") == OTHER
    rows.offer([1], [], 10, 12)
    assert rows.row("b") == 1


@pytest.mark.parametrize("mention", ["row", "know"])
def test_a_tenant_that_is_mentioned_keeps_its_row(mention: str) -> None:
    """It was added again, or asks for something; when it goes again it waits anew."""
    rows = full("a")
    rows.offer([1], [], KEPT_NS, 1)
    if mention == "row":
        assert rows.row("a") == 1
    else:
        rows.know("a")
    assert rows.row("b") == OTHER
    rows.offer([1], [], KEPT_NS, KEPT_NS + 1)
    assert rows.row("b") == OTHER


def test_who_has_asked_for_nothing_takes_no_row_from_who_is_there() -> None:
    """A tenant that is only listed gets that of one that is gone, not of another that is listed."""
    rows = full("a", "b")
    rows.offer([2], [1], KEPT_NS, 1)
    rows.know("cd")
    assert rows.names == [OTHER_NAME, "a", "c"]
    assert rows.row("d") == 1


def test_who_counts_is_told_of_a_row_before_it_passes_on() -> None:
    """While it still has the old name; a fresh row is nobody's."""
    rows = TenantRows(2)
    told: list[tuple[int, str]] = []
    rows.on_reuse.append(lambda row: told.append((row, rows.names[row])))
    rows.row("a")
    rows.offer([1], [], KEPT_NS, 1)
    rows.row("b")
    assert told == [(1, "a")]


def test_no_two_tenures_have_the_same_number() -> None:
    """Not of one tenant either, and not after a restart."""
    rows = full("a")
    tenures = list(rows.tenures)
    for name in "bab":
        rows.offer([1], [], KEPT_NS, 1)
        rows.row(name)
        tenures.append(rows.tenures[1])
    later = TenantRows(2)
    later.resume(rows.names, rows.tenures)
    assert later.tenures == rows.tenures
    later.offer([1], [], KEPT_NS, 1)
    later.row("c")
    assert sorted({*tenures, later.tenures[1]}) == [0, 1, 2, 3, 4, 5]


def test_a_table_without_a_predecessor_begins_with_other() -> None:
    """Its page was all zeros."""
    rows = TenantRows(2)
    rows.resume([], [])
    assert (rows.names, rows.tenures, rows.version) == ([OTHER_NAME], [0], 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["row", "know", "offer"]),
            st.sampled_from(NAMES),
            st.sets(st.integers(1, 3)),
            st.sets(st.integers(1, 3)),
        ),
        max_size=40,
    )
)
def test_a_row_is_one_tenants_at_a_time(
    steps: list[tuple[str, str, set[int], set[int]]],
) -> None:
    """Names and rows belong together; a row that nobody offered passes to nobody."""
    rows = TenantRows(4)
    reused: list[int] = []
    rows.on_reuse.append(reused.append)
    for now_ns, (kind, name, gone, unused) in enumerate(steps, 1):
        before, offered = list(rows.names), rows.num_left
        if kind == "offer":
            there = range(1, len(rows.names))
            rows.offer(gone & {*there}, unused & {*there}, now_ns - 2, now_ns)
            continue
        if kind == "row":
            row = rows.row(name)
            assert rows.find(name) == (row or None)
        else:
            rows.know([name])
        assert len(set(rows.names)) == len(set(rows.tenures)) == len(rows.names)
        assert all(rows.find(each) == index for index, each in enumerate(rows.names))
        changed = [i for i, each in enumerate(before) if rows.names[i] != each]
        assert changed == reused
        assert len(changed) <= offered
        reused.clear()
