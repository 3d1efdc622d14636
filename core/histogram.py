"""Counts by bucket, for everything that is counted that way: one row, or one for each tenant.

Owns: the buckets, the sums, and the copy onto a page and back. Never knows: what is counted, or who
reads it. Counting is two additions through memoryviews, because it happens for every token.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S


class Histogram:
    """How often a value fell into each bucket, by row: `counts` uint64[rows, n + 1], not
    cumulative, and `sums` float64[rows].

    `bounds` are the n upper bounds, inclusive and ascending; the last bucket takes the rest.
    """

    __slots__ = ("_bounds", "_cells", "_totals", "_width", "counts", "sums")

    def __init__(self, bounds: Sequence[float], num_rows: int = 1) -> None:
        """Start empty."""
        self._bounds = bounds
        self._width = len(bounds) + 1
        self.counts: npt.NDArray[np.uint64] = np.zeros((num_rows, self._width), np.uint64)
        self.sums: npt.NDArray[np.float64] = np.zeros(num_rows, np.float64)
        self._cells = self.counts.reshape(-1).data
        self._totals: Any = self.sums.data  # mypy knows memoryviews of integers only

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
        self._cells[row * self._width + bisect_left(self._bounds, value)] += 1
        self._totals[row] += value

    def observe_ns(self, duration_ns: int, row: int = 0) -> None:
        """Count a duration in seconds; a negative one (clocks of two processes) counts as 0."""
        self.observe(max(0, duration_ns) / NS_PER_S, row)

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
