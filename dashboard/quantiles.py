"""Quantiles of histograms: from counts by bucket to times."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import sub

from dashboard.frame import Histogram


def since(later: Histogram, earlier: Histogram) -> Histogram:
    """Return what was added between two readings of one histogram."""
    if len(earlier.counts) != len(later.counts):
        return later
    counts = tuple(map(sub, later.counts, earlier.counts))
    if min(counts, default=0) < 0:  # a process was restarted: it counts from 0 again
        return later
    return Histogram(counts, later.sum_s - earlier.sum_s)


def quantile(histogram: Histogram, bounds_s: Sequence[float], q: float) -> float | None:
    """Return a quantile, linear within its bucket; the last bound if it lies beyond; None of none.

    `bounds_s` are the upper bounds, ascending, of all buckets but the endless last one.
    """
    up_to = list(accumulate(histogram.counts))
    if not up_to or not up_to[-1]:
        return None
    rank = q * up_to[-1]
    index = bisect_left(up_to, rank)
    if index >= len(bounds_s):
        return bounds_s[-1]
    low = bounds_s[index - 1] if index else 0.0
    count = histogram.counts[index]
    return low + (bounds_s[index] - low) * (rank - up_to[index] + count) / count


def share_within(histogram: Histogram, bounds_s: Sequence[float], limit_s: float) -> float | None:
    """Return the share of values that were at most `limit_s`; whole buckets, so rather too few."""
    total = sum(histogram.counts)
    if not total:
        return None
    within = sum(
        count for count, bound in zip(histogram.counts, bounds_s, strict=False) if bound <= limit_s
    )
    return within / total
