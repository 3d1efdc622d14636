"""What one http process counts, and how it gets onto its board page.

Owns: the counters and the three client-side histograms (TTFT, ITL, E2E: from accept to write).
Never knows: who reads the page. Counting is plain integers, because it happens for every token;
`publish` copies them.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.messages.http import Chunk
from ipc.pages import ITL_BUCKETS_S, LATENCY_BUCKETS_S, MAX_REJECTION_REASONS, TTFT_BUCKETS_S

NUM_STATUS_CLASSES = 6
COUNTERS = (
    "requests", "responses", "rejections", "disconnects", "slow_readers_cut", "streamed_tokens",
)  # fmt: skip
HISTOGRAMS = ("ttft", "itl", "e2e")


class Histogram:
    """Counts per bucket (the last is +Inf, not cumulative) and the sum in seconds."""

    __slots__ = ("_bounds", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, duration_ns: int) -> None:
        """Count one duration."""
        duration_s = duration_ns / NS_PER_S
        self.counts[bisect_left(self._bounds, duration_s)] += 1
        self.sum_s += duration_s


class Telemetry:
    """Counters of one process; they only grow, except `num_streams`."""

    def __init__(self) -> None:
        self.requests = 0
        self.num_streams = 0
        self.responses = [0] * NUM_STATUS_CLASSES
        self.rejections = [0] * MAX_REJECTION_REASONS
        self.disconnects = 0
        self.slow_readers_cut = 0
        self.streamed_tokens = 0
        self.dropped_frames = 0
        self.ttft = Histogram(TTFT_BUCKETS_S)
        self.itl = Histogram(ITL_BUCKETS_S)
        self.e2e = Histogram(LATENCY_BUCKETS_S)

    def count_response(self, status: int) -> None:
        """Count one answer by the class of its status."""
        self.responses[status // 100] += 1

    def count_rejection(self, reason: RejectionReason) -> None:
        """Count one refusal, whether it became a status or an event in a stream."""
        self.rejections[reason] += 1

    def resume(self, page: npt.NDArray[np.void]) -> None:
        """Go on from a predecessor's page, so that the sum over all http processes never falls."""
        for name in COUNTERS:
            setattr(self, name, page[name].tolist())
        for name in HISTOGRAMS:
            histogram: Histogram = getattr(self, name)
            histogram.counts = page[name]["counts"].tolist()
            histogram.sum_s = float(page[name]["sum_s"])

    def fill(self, page: npt.NDArray[np.void], num_connections: int) -> None:
        """Write everything into `page`, an HTTP_PAGE of shape ()."""
        page["num_connections"] = num_connections
        page["num_streams"] = self.num_streams
        page["dropped_frames"] = self.dropped_frames
        for name in COUNTERS:
            page[name] = getattr(self, name)
        for name in HISTOGRAMS:
            histogram: Histogram = getattr(self, name)
            page[name]["counts"] = histogram.counts
            page[name]["sum_s"] = histogram.sum_s


class StreamTimer:
    """The times of one operation: first output, gaps between outputs of a choice, and the end."""

    __slots__ = ("_accepted_ns", "_last_ns", "_telemetry")

    def __init__(self, telemetry: Telemetry, accepted_ns: int) -> None:
        self._telemetry = telemetry
        self._accepted_ns = accepted_ns
        self._last_ns: dict[int, int] = {}

    def output(self, chunk: Chunk, now_ns: int) -> None:
        """Note that a chunk was handed to the client at `now_ns`."""
        telemetry = self._telemetry
        last_ns = self._last_ns.get(chunk.choice)
        if last_ns is not None:
            telemetry.itl.observe(now_ns - last_ns)
        elif not self._last_ns:
            telemetry.ttft.observe(now_ns - self._accepted_ns)
        self._last_ns[chunk.choice] = now_ns
        if chunk.finish_reason:
            telemetry.streamed_tokens += chunk.num_output_tokens

    def end(self, now_ns: int) -> None:
        """Note that the client has everything."""
        self._telemetry.e2e.observe(now_ns - self._accepted_ns)
