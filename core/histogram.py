"""Counts by bucket, for everything that is counted that way: one row, or one for each tenant.

Owns: the buckets, the sums, and the copy onto a page and back. Never knows: what is counted, or who
reads it. Values are noted first, because that happens in steps, and sorted into the buckets when
somebody asks, or there are many of them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S

MAX_NOTED = 256  # values


class Histogram:
    """How often a value fell into each bucket, by row: `counts` uint64[rows, n + 1], not
    cumulative, and `sums` float64[rows].

    `bounds` are the n upper bounds, inclusive and ascending; the last bucket takes the rest.
    """

    __slots__ = ("_bounds", "_cells", "_counts", "_noted", "_sums", "_totals", "_width")

    def __init__(self, bounds: Sequence[float], num_rows: int = 1) -> None:
        """Start empty."""
        self._bounds = bounds
        self._width = len(bounds) + 1
        self._counts: npt.NDArray[np.uint64] = np.zeros((num_rows, self._width), np.uint64)
        self._sums: npt.NDArray[np.float64] = np.zeros(num_rows, np.float64)
        self._cells = self._counts.reshape(-1).data
        self._totals: Any = self._sums.data  # mypy knows memoryviews of integers only
        self._noted: list[tuple[float, int]] = []  # values and their rows, not in the buckets yet

    @property
    def counts(self) -> npt.NDArray[np.uint64]:
        """How many values fell into each bucket, by row."""
        self._sort_in()
        return self._counts

    @property
    def sums(self) -> npt.NDArray[np.float64]:
        """The sum of all values, by row."""
        self._sort_in()
        return self._sums

    @property
    def count(self) -> int:
        """How many values were counted in all rows."""
        return int(self.counts.sum())

    @property
    def sum(self) -> float:
        """The sum over all rows."""
        return float(self.sums.sum())

    def observe(self, value: float, row: int = 0) -> None:
        """Count one value."""
        self._noted.append((value, row))
        if len(self._noted) >= MAX_NOTED:
            self._sort_in()

    def observe_ns(self, duration_ns: int, row: int = 0) -> None:
        """Count a duration in seconds; a negative one (clocks of two processes) counts as 0."""
        self.observe(duration_ns / NS_PER_S if duration_ns > 0 else 0.0, row)

    def clear(self, row: int) -> None:
        """Forget what was counted in one row."""
        self.counts[row] = 0
        self.sums[row] = 0.0

    def fill(self, records: Any) -> None:
        """Copy our first rows into histogram fields of a page: one record, or rows of them."""
        num_rows, shape = records["sum"].size, records["counts"].shape
        records["counts"] = self.counts[:num_rows].reshape(shape)
        records["sum"] = self.sums[:num_rows].reshape(records["sum"].shape)

    def fill_total(self, record: Any) -> None:
        """Copy the sum of all our rows into one histogram field."""
        record["counts"] = self.counts.sum(axis=0)
        record["sum"] = self.sums.sum()

    def resume(self, records: Any) -> None:
        """Go on from histogram fields that `fill` has written."""
        num_rows = records["sum"].size
        self.counts[:num_rows] = records["counts"].reshape(num_rows, self._width)
        self.sums[:num_rows] = records["sum"].reshape(num_rows)

    def _sort_in(self) -> None:
        """Put what was noted into the buckets."""
        cells, totals, width = self._cells, self._totals, self._width
        for value, row in self._noted:
            cells[row * width + bisect_left(self._bounds, value)] += 1
            totals[row] += value
        self._noted.clear()
