"""Histograms: buckets, rows, and the way onto a page and back."""

import numpy as np
import pytest

from core.clock import NS_PER_MS
from core.histogram import Histogram
from core.tenancy.rows import OTHER, OTHER_NAME, TenantRows
from ipc.pages import histogram

BOUNDS = (0.01, 0.025)
ROWS = np.dtype([("name", "S8"), ("wait", histogram(BOUNDS))])


@pytest.mark.parametrize(
    ("duration_ms", "bucket"), [(-1, 0), (0, 0), (10, 0), (10.001, 1), (25, 1), (26, 2), (8e4, 2)]
)
def test_a_bucket_holds_up_to_its_bound(duration_ms: float, bucket: int) -> None:
    """Bounds are inclusive, as Prometheus has them; the last bucket takes the rest; no time is
    negative.
    """
    counted = Histogram(BOUNDS)
    counted.observe_ns(round(duration_ms * NS_PER_MS))
    assert counted.counts[0].tolist() == [int(bucket == index) for index in range(3)]
    assert counted.sum == pytest.approx(max(0, duration_ms) / 1000)


def test_rows_are_counted_apart_and_together() -> None:
    """What is counted in one row is in no other, and the whole is their sum."""
    counted = Histogram(BOUNDS, num_rows=3)
    counted.observe(0.02, row=1)
    counted.observe(7, row=2)
    assert counted.counts.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert counted.count == 2
    assert counted.sum == pytest.approx(7.02)
    total = np.zeros((), histogram(BOUNDS))
    counted.fill_total(total)
    assert total["counts"].tolist() == [0, 1, 1]


def test_a_page_brings_all_of_it_back() -> None:
    """One that resumes from a page goes on as if it had counted that itself."""
    counted, page = Histogram(BOUNDS, num_rows=4), np.zeros(2, ROWS)
    for row in range(4):
        counted.observe(row / 100, row)
    counted.fill(page["wait"])
    again = Histogram(BOUNDS, num_rows=4)
    again.resume(page["wait"])
    assert again.counts[:2].tolist() == counted.counts[:2].tolist()
    assert again.counts[2:].sum() == 0
    again.observe(0.0, row=1)
    assert again.counts[1].tolist() == [2, 0, 0]


def test_tenants_beyond_the_last_row_share_the_first() -> None:
    """A tenant keeps its row; nobody can make the table grow."""
    rows = TenantRows(3)
    assert [rows.row(name) for name in ("a", "b", "a", "c", OTHER_NAME)] == [1, 2, 1, OTHER, OTHER]
    assert rows.names == [OTHER_NAME, "a", "b"]
