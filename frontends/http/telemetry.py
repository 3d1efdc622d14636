"""What one http process counts, and how it gets onto its board page.

Owns: the counters and the three client-side times (TTFT, ITL, E2E: from accept to write), by class
and by tenant; over all of either they are the same, but for tenants whose row is another's now.
Never knows: who reads the page, or whose row may pass on (`row_offers`). Counting is plain
integers, because it happens for every token; `fill` copies them.
"""

import threading
from collections.abc import Container

import numpy as np
import numpy.typing as npt

from core.errors import RejectionReason
from core.histogram import Histogram
from core.messages.http import Chunk
from core.tenancy.classes import NUM_CLASSES, TrafficClass
from core.tenancy.rows import OTHER, TenantRows
from ipc.pages import (
    CHOICE_BUCKETS,
    ITL_BUCKETS_S,
    LATENCY_BUCKETS_S,
    MAX_PAGE_TENANTS,
    MAX_REJECTION_REASONS,
    TTFT_BUCKETS_S,
)

NUM_STATUS_CLASSES = 6
COUNTERS = (
    "requests", "responses", "rejections", "disconnects", "slow_readers_cut", "streamed_tokens",
    "lost_spans",
)  # fmt: skip


class ClientTimes:
    """The three times, in `num_rows` rows."""

    def __init__(self, num_rows: int) -> None:
        self.ttft = Histogram(TTFT_BUCKETS_S, num_rows)
        self.itl = Histogram(ITL_BUCKETS_S, num_rows)
        self.e2e = Histogram(LATENCY_BUCKETS_S, num_rows)
        self._fields = (("ttft", self.ttft), ("itl", self.itl), ("e2e", self.e2e))

    def fill(self, rows: npt.NDArray[np.void]) -> None:
        """Copy the first rows into `rows`, HTTP_CLASS[n] or HTTP_TENANT[n]."""
        for name, histogram in self._fields:
            histogram.fill(rows[name])

    def fill_totals(self, page: npt.NDArray[np.void]) -> None:
        """Copy the sums over all rows into `page`, an HTTP_PAGE of shape ()."""
        for name, histogram in self._fields:
            histogram.fill_total(page[name])

    def clear(self, row: int) -> None:
        """Forget what was counted in one row."""
        for _, histogram in self._fields:
            histogram.clear(row)

    def resume(self, rows: npt.NDArray[np.void]) -> None:
        """Go on from `rows`, which `fill` has written."""
        for name, histogram in self._fields:
            histogram.resume(rows[name])


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
        self.lost_spans = 0
        self._losing = threading.Lock()
        self.choices = Histogram(CHOICE_BUCKETS)
        self.by_class = ClientTimes(NUM_CLASSES)
        self.by_tenant = ClientTimes(MAX_PAGE_TENANTS)
        self.tenants = TenantRows(MAX_PAGE_TENANTS)
        self.tenants.on_reuse.append(self._forget_tenant)
        self.num_answers = np.zeros(MAX_PAGE_TENANTS, np.int64)  # under way, by tenant
        self._tenant_requests = np.zeros(MAX_PAGE_TENANTS, np.uint64)
        self._tenant_rejections = np.zeros((MAX_PAGE_TENANTS, MAX_REJECTION_REASONS), np.uint64)
        self._dropped_before = 0

    def count_response(self, status: int) -> None:
        """Count one answer by the class of its status."""
        self.responses[status // 100] += 1

    def count_request(self, tenant: str) -> None:
        """Count one request for output, before anything can refuse it."""
        self._tenant_requests[self.tenants.row(tenant)] += np.uint64(1)

    def count_rejection(self, reason: RejectionReason, tenant: str) -> None:
        """Count one refusal, whether it became a status or an event in a stream."""
        self.rejections[reason] += 1
        self._tenant_rejections[self.tenants.row(tenant), reason] += np.uint64(1)

    def former_tenants(self, listed: Container[str]) -> list[int]:
        """Return the rows of tenants that are not `listed` and wait for no answer."""
        names = self.tenants.names
        idle = np.flatnonzero(self.num_answers[: len(names)] == 0).tolist()
        return [row for row in idle if row != OTHER and names[row] not in listed]

    def lose_spans(self, num_spans: int) -> None:
        """Count spans of traces that nobody will see; from any thread."""
        with self._losing:
            self.lost_spans += num_spans

    def resume(self, page: npt.NDArray[np.void]) -> None:
        """Go on from a predecessor's page, so that no counter ever falls."""
        for name in COUNTERS:
            setattr(self, name, page[name].tolist())
        self._dropped_before = int(page["dropped_frames"])
        self.choices.resume(page["choices"])
        self.by_class.resume(page["classes"])
        rows = page["tenants"][: int(page["num_tenants"])]
        names = (name.decode() for name in rows["name"].tolist())
        self.tenants.resume(names, rows["tenure"].tolist())
        self.by_tenant.resume(rows)
        self._tenant_requests[: len(rows)] = rows["requests"]
        self._tenant_rejections[: len(rows)] = rows["rejections"]

    def fill(self, page: npt.NDArray[np.void], dropped_frames: int) -> None:
        """Write all counters into `page`, an HTTP_PAGE of shape ()."""
        page["num_streams"] = self.num_streams
        page["dropped_frames"] = self._dropped_before + dropped_frames
        for name in COUNTERS:
            page[name] = getattr(self, name)
        self.choices.fill(page["choices"])
        self.by_class.fill(page["classes"])
        self.by_class.fill_totals(page)
        names = self.tenants.names
        rows = page["tenants"][: len(names)]
        page["num_tenants"] = len(names)
        page["tenant_names_left"] = self.tenants.num_left
        rows["name"] = [name.encode() for name in names]
        rows["tenure"] = self.tenants.tenures
        rows["requests"] = self._tenant_requests[: len(names)]
        rows["rejections"] = self._tenant_rejections[: len(names)]
        self.by_tenant.fill(rows)

    def _forget_tenant(self, row: int) -> None:
        """Begin at 0 for the tenant that gets this row; the totals keep what was counted."""
        self._tenant_requests[row] = 0
        self._tenant_rejections[row] = 0
        self.by_tenant.clear(row)


class StreamTimer:
    """The times of one operation: first output, gaps between outputs of a choice, and the end.
    Its tenant keeps its row until it is closed.

    `traffic_class` is the one that serves it, once that is known; `first_ns` and `ended_ns` are 0
    until then.
    """

    __slots__ = (
        "_last_ns", "_telemetry", "_tenant_row", "accepted_ns", "ended_ns", "first_ns",
        "traffic_class",
    )  # fmt: skip

    def __init__(
        self, telemetry: Telemetry, accepted_ns: int, tenant: str, traffic_class: TrafficClass
    ) -> None:
        self.traffic_class = traffic_class
        self._telemetry = telemetry
        self.accepted_ns = accepted_ns
        self.first_ns = 0
        self.ended_ns = 0
        self._tenant_row = telemetry.tenants.row(tenant)
        self._last_ns: dict[int, int] = {}
        telemetry.num_answers[self._tenant_row] += 1

    def output(self, chunk: Chunk, now_ns: int) -> None:
        """Note that a chunk was handed to the client at `now_ns`."""
        telemetry = self._telemetry
        last_ns = self._last_ns.get(chunk.choice)
        if last_ns is not None:
            telemetry.by_class.itl.observe_ns(now_ns - last_ns, self.traffic_class)
            telemetry.by_tenant.itl.observe_ns(now_ns - last_ns, self._tenant_row)
        elif not self._last_ns:
            self.first_ns = now_ns
            ttft_ns = now_ns - self.accepted_ns
            telemetry.by_class.ttft.observe_ns(ttft_ns, self.traffic_class)
            telemetry.by_tenant.ttft.observe_ns(ttft_ns, self._tenant_row)
        self._last_ns[chunk.choice] = now_ns
        if chunk.finish_reason:
            telemetry.streamed_tokens += chunk.num_output_tokens

    def end(self, now_ns: int) -> None:
        """Note that the client has everything."""
        self.ended_ns = now_ns
        e2e_ns = now_ns - self.accepted_ns
        self._telemetry.by_class.e2e.observe_ns(e2e_ns, self.traffic_class)
        self._telemetry.by_tenant.e2e.observe_ns(e2e_ns, self._tenant_row)

    def close(self) -> None:
        """Note that nothing more comes; called once."""
        self._telemetry.num_answers[self._tenant_row] -= 1
