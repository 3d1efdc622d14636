"""How long the outputs of each flow have been, and what that says of one under way.

Owns: a histogram of output lengths for each flow, in buckets that widen with the length, and the
table of quantiles that is read off it. Never knows: memory, requests, why anybody asks. A flow's
counts are halved whenever they reach `MAX_SAMPLES`, so that it forgets what it was long ago; memory
is bounded by the number of flows.

What is left of an output of which j tokens exist is the quantile of the lengths beyond j, less j.
Beyond all that was ever seen it is as much again as there is.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
AnyTokens = npt.NDArray[np.int32] | Tokens

BUCKETS_PER_OCTAVE = 4
MAX_OCTAVES = 17
EDGES: Tokens = np.unique(
    np.round(2.0 ** (np.arange(MAX_OCTAVES * BUCKETS_PER_OCTAVE + 1) / BUCKETS_PER_OCTAVE))
).astype(np.int64)  # the longest output in each bucket
BUCKET_OF = EDGES.searchsorted(np.arange(EDGES[-1] + 1)).astype(np.int8)  # of each length
LONGEST = len(BUCKET_OF) - 1
MIN_SAMPLES = 16  # with fewer there is no history
MAX_SAMPLES = 512
UNKNOWN_TOKENS = 1024  # an output without history, unless the request wants less
GROWTH = 64  # flows


class OutputHistory:
    """Output lengths by flow; `quantile_of` tells which quantile counts for a flow."""

    def __init__(self, quantile_of: Callable[[int], float]) -> None:
        """Start without any history."""
        self._quantile_of = quantile_of
        self._counts = np.zeros((0, len(EDGES)), np.float32)
        self._totals: list[float] = []  # of them
        self._lengths = np.zeros((0, len(EDGES)), np.int64)  # the quantile from each bucket on
        self._is_known = np.zeros(0, np.bool_)

    def note(self, flow: int, num_output_tokens: int) -> None:
        """Take in an output of `flow` that came to its end."""
        if num_output_tokens <= 0:
            return
        self._make_place(flow)
        counts = self._counts[flow]
        counts[BUCKET_OF[min(num_output_tokens, LONGEST)]] += 1
        self._totals[flow] += 1
        if self._totals[flow] >= MAX_SAMPLES:
            counts *= 0.5
            self._totals[flow] *= 0.5
        self._tabulate(flow)

    def forget(self, flow: int) -> None:
        """Let there be no history of `flow`: it is another tenant's now."""
        if flow < len(self._is_known):
            self._counts[flow] = 0
            self._totals[flow] = 0.0
            self._is_known[flow] = False

    def tabulate(self) -> None:
        """Read all quantiles anew: those that count have changed."""
        for flow in np.flatnonzero(self._is_known).tolist():
            self._tabulate(flow)

    def left(self, flows: AnyTokens, num_output_tokens: AnyTokens, max_left: AnyTokens) -> Tokens:
        """Return how many more tokens each row will have; all are int[n].

        At least one, unless none may come, and at the most `max_left`.
        """
        if len(self._is_known) <= int(flows.max(initial=-1)):
            self._make_place(int(flows.max()))
        lengths = self._lengths[flows, BUCKET_OF.take(num_output_tokens + 1, mode="clip")]
        expected = np.where(self._is_known[flows], lengths - num_output_tokens, UNKNOWN_TOKENS)
        left: Tokens = np.minimum(np.maximum(expected, 1), max_left)
        return left

    def left_of(self, flow: int, num_output_tokens: int, max_left: int) -> int:
        """Return how many more tokens one request will have."""
        if flow >= len(self._is_known) or not self._is_known[flow]:
            return min(UNKNOWN_TOKENS, max_left)
        length = int(self._lengths[flow, BUCKET_OF[min(num_output_tokens + 1, LONGEST)]])
        return min(max(1, length - num_output_tokens), max_left)

    def _tabulate(self, flow: int) -> None:
        """Find, for outputs that reach each bucket, where the quantile of their lengths is."""
        if self._totals[flow] < MIN_SAMPLES:
            return
        up_to = self._counts[flow].cumsum(dtype=np.float64)
        before = up_to - self._counts[flow]
        wanted = before + self._quantile_of(flow) * (up_to[-1] - before)
        buckets = np.minimum(up_to.searchsorted(wanted - 1e-6), len(EDGES) - 1)
        has_longer = before < up_to[-1] - 1e-6
        self._lengths[flow] = np.where(has_longer, EDGES[buckets], 2 * EDGES)
        self._is_known[flow] = True

    def _make_place(self, flow: int) -> None:
        missing = flow + 1 - len(self._is_known)
        if missing <= 0:
            return
        missing += GROWTH
        shape = (missing, len(EDGES))
        self._totals += [0.0] * missing
        self._counts = np.concatenate([self._counts, np.zeros(shape, np.float32)])
        self._lengths = np.concatenate([self._lengths, np.zeros(shape, np.int64)])
        self._is_known = np.concatenate([self._is_known, np.zeros(missing, np.bool_)])
