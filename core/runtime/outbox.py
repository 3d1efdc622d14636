"""Outputs on their way to the tokenizers: cut into frames, and held back while a ring is full.

Owns: the frames that did not fit yet. Never knows: what the records say. It holds at most what one
round of the scheduler produces: while anything is held back, the loop takes nothing in and plans
nothing.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from core.request import RequestStatus
from core.scheduler.frames import output_parts
from core.scheduler.plan import OUTPUT, OutputBatch, OutputKind
from ipc.channel import Buffer, FrameSender


class Outbox:
    """The way out to all tokenizers; `max_records` and `max_logprobs` bound one frame."""

    def __init__(self, num_tokenizers: int, max_records: int, max_logprobs: int) -> None:
        self._held: list[deque[list[Buffer]]] = [deque() for _ in range(num_tokenizers)]
        self._max_records = max_records
        self._max_logprobs = max_logprobs

    @property
    def is_blocked(self) -> bool:
        """Whether some ring has no room for what is to be sent."""
        return any(self._held)

    def put(self, batches: Mapping[int, OutputBatch]) -> None:
        """Take in what happened to the requests of each tokenizer."""
        for tokenizer, batch in batches.items():
            for part in split(batch, self._max_records, self._max_logprobs):
                self._held[tokenizer].append(output_parts(part))

    def flush(self, senders: Sequence[FrameSender]) -> None:
        """Send as much as fits."""
        for held, sender in zip(self._held, senders, strict=True):
            while held and sender.send(held[0]):
                held.popleft()

    def forget(self, tokenizer: int) -> None:
        """Drop what a dead tokenizer will not read."""
        self._held[tokenizer].clear()


def split(batch: OutputBatch, max_records: int, max_logprobs: int) -> Iterator[OutputBatch]:
    """Yield `batch` in pieces of at most so many records and log-probabilities, in order.

    A single record may have up to `max_logprobs` of them.
    """
    if len(batch.records) <= max_records and len(batch.logprobs) <= max_logprobs:
        yield batch
        return
    first = 0
    while first < len(batch.records):
        last = _end_of_piece(
            batch.records["num_logprobs"][first : first + max_records], max_logprobs
        )
        yield _piece(batch, first, first + last)
        first += last


def _end_of_piece(num_logprobs: npt.NDArray[np.int32], max_logprobs: int) -> int:
    """Return how many of the leading records fit together; at least one."""
    totals = np.cumsum(num_logprobs, dtype=np.int64)
    return max(int(np.searchsorted(totals, max_logprobs, side="right")), 1)


def _piece(batch: OutputBatch, first: int, last: int) -> OutputBatch:
    """Return records [first, last) with their log-probabilities gathered one after the other."""
    records = batch.records[first:last].copy()
    counts = records["num_logprobs"].astype(np.int64)
    if not counts.any():
        return OutputBatch(records)
    starts = records["logprobs_start"].tolist()
    windows = [
        batch.logprobs[start : start + count]
        for start, count in zip(starts, counts.tolist(), strict=True)
    ]
    records["logprobs_start"] = np.cumsum(counts) - counts
    return OutputBatch(records, np.concatenate(windows))


def refusal(request_id: int) -> OutputBatch:
    """Return the two records that end a request that was refused because it made no sense."""
    records = np.zeros(2, OUTPUT)
    records["request_id"] = request_id
    records["kind"] = (OutputKind.FINISHED, OutputKind.RELEASED)
    records["status"] = RequestStatus.FINISHED_ERROR
    return OutputBatch(records)
