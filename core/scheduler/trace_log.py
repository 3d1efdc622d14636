"""What came in and what became of it: the last requests that ended, as rows of a trace.

Owns: the columns and a ring of them; beside it the samples of steps. Never knows: text, token ids,
files. A request is one row, written once, when it ends; the ring is bounded, and a
reader that names the row it wants next learns how many it has missed.
"""

import numpy as np

from core.errors import RejectionReason
from core.request import Request, RequestStatus
from core.scheduler.step_samples import StepSamples
from core.tenancy.classes import CLASS_NAMES

MAX_ROWS = 100_000
MAX_NOTED = 64  # of these

COLUMNS = (
    "arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "prefix_hit_tokens", "tenant",
    "class", "outcome", "queue_ns", "ttft_ns", "e2e_ns",
)  # fmt: skip
"""Of a row as `TraceLog.rows` returns it; a time that never was is 0."""

_ROW = np.dtype([
    ("arrival_ns", np.int64), ("prompt_len", np.int32), ("num_output_tokens", np.int32),
    ("max_tokens", np.int32), ("num_cached_tokens", np.int32), ("tenant", np.int32),
    ("traffic_class", np.uint8), ("status", np.uint8), ("reason", np.uint8),
    ("queue_ns", np.int64), ("ttft_ns", np.int64), ("e2e_ns", np.int64),
])  # fmt: skip

Row = tuple[int, int, int, int, int, str, str, str, int, int, int]


class TraceLog:
    """The last `max_rows` ends, numbered from 0 since the start."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        """Start with none; the ring takes its memory as it fills."""
        self.num_rows = 0  # since the start, kept or not
        self._ring = np.zeros(max_rows, _ROW)
        self._noted: list[tuple[int, ...]] = []  # the last rows, not in the ring yet
        self._tenants: dict[str, int] = {}
        self._names: list[str] = []
        self.steps = StepSamples()

    @property
    def first_row(self) -> int:
        """The number of the oldest row that is still there."""
        return max(0, self.num_rows - len(self._ring))

    def add(self, request: Request, now_ns: int) -> None:
        """Note the end of `request`."""
        rejection = request.rejection
        noted = (
            request.arrival_ns,
            request.prompt_len,
            request.num_output_tokens,
            request.max_tokens,
            request.num_cached_tokens,
            self._tenant(request.tenant),
            request.traffic_class,
            request.status,
            rejection.reason if rejection is not None else 0,
            request.first_start_ns and request.first_start_ns - request.arrival_ns,
            request.first_token_ns and request.first_token_ns - request.arrival_ns,
            now_ns - request.arrival_ns,
        )
        self._noted.append(noted)
        self.num_rows += 1
        if len(self._noted) >= MAX_NOTED:
            self._write()

    def rows(self, first: int, limit: int) -> list[Row]:
        """Return up to `limit` rows from number `first` on, which must still be there."""
        assert first >= self.first_row, (first, self.first_row)
        self._write()
        numbers = np.arange(first, min(first + limit, self.num_rows))
        return [self._row(record) for record in self._ring[numbers % len(self._ring)].tolist()]

    def _write(self) -> None:
        """Put what was noted into the ring, all at once."""
        kept = self._noted[-len(self._ring) :]
        places = np.arange(self.num_rows - len(kept), self.num_rows) % len(self._ring)
        self._ring[places] = np.array(kept, _ROW)
        self._noted.clear()

    def _tenant(self, name: str) -> int:
        index = self._tenants.setdefault(name, len(self._names))
        if index == len(self._names):
            self._names.append(name)
        return index

    def _row(self, record: tuple[int, ...]) -> Row:
        """Return a record in words; of a request that got nothing, what it could have got."""
        arrival, prompt, output, asked, cached, tenant, kind, status, reason, *times = record
        if not output and reason:
            output = asked
        queue_ns, ttft_ns, e2e_ns = times
        return (
            arrival, prompt, max(1, output), asked, cached, self._names[tenant],
            CLASS_NAMES[kind], _outcome(status, reason), queue_ns, ttft_ns, e2e_ns,
        )  # fmt: skip


def _outcome(status: int, reason: int) -> str:
    if reason:
        return RejectionReason(reason).code
    return RequestStatus(status).name.lower().removeprefix("finished_")
