"""Outputs on their way to the tokenizers: cut into frames, and held back while a ring is full.

Owns: the frames that did not fit yet, and the word for whether planning should wait for their
readers. Never knows: what the records say.

    a reader is slow          planning waits, so that outputs do not grow old on the way
    one of several stalls     the others go on; it keeps up to MAX_HELD_BYTES for when it wakes
    all of them stall         planning waits until one reads, or is replaced

While planning waits, a line grows by no more than the plans in flight and two records a request.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_MS
from core.request import RequestStatus
from core.scheduler.frames import output_parts
from core.scheduler.plan import OUTPUT, OutputBatch, OutputKind
from ipc.channel import Buffer, FrameSender

STALL_NS = 100 * NS_PER_MS  # a reader that has taken nothing for so long is not merely slow
MAX_HELD_BYTES = 16 * 2**20  # for one reader that stalls


@dataclass(slots=True)
class Line:
    """What waits for one tokenizer; `moved_ns` is when it last took a frame or nothing waited."""

    frames: deque[list[Buffer]] = field(default_factory=deque)
    num_bytes: int = 0
    moved_ns: int = 0

    def append(self, parts: list[Buffer]) -> None:
        """Put a frame at the end."""
        self.frames.append(parts)
        self.num_bytes += frame_bytes(parts)

    def flush(self, sender: FrameSender, now_ns: int) -> None:
        """Send as much as fits."""
        if not self.frames:
            self.moved_ns = now_ns
        while self.frames and sender.send(self.frames[0]):
            self.num_bytes -= frame_bytes(self.frames.popleft())
            self.moved_ns = now_ns

    def may_be_left_behind(self, now_ns: int) -> bool:
        """Return whether the reader stalls and there is room for more until it wakes."""
        return now_ns - self.moved_ns >= STALL_NS and self.num_bytes < MAX_HELD_BYTES


class Outbox:
    """The way out to all tokenizers; `max_records` and `max_logprobs` bound one frame."""

    def __init__(self, num_tokenizers: int, max_records: int, max_logprobs: int) -> None:
        self._lines = [Line() for _ in range(num_tokenizers)]
        self._max_records = max_records
        self._max_logprobs = max_logprobs

    @property
    def is_empty(self) -> bool:
        """Whether everything is sent."""
        return not any(line.frames for line in self._lines)

    @property
    def num_bytes(self) -> int:
        """What waits for room, bytes."""
        return sum(line.num_bytes for line in self._lines)

    def is_blocked(self, now_ns: int) -> bool:
        """Return whether planning should wait until more is read."""
        held = [line for line in self._lines if line.frames]
        num_left_behind = sum(line.may_be_left_behind(now_ns) for line in held)
        return num_left_behind < len(held) or num_left_behind == len(self._lines)

    def put(self, batches: Mapping[int, OutputBatch]) -> None:
        """Take in what happened to the requests of each tokenizer."""
        for tokenizer, batch in batches.items():
            for part in split(batch, self._max_records, self._max_logprobs):
                self._lines[tokenizer].append(output_parts(part))

    def flush(self, senders: Sequence[FrameSender], now_ns: int) -> None:
        """Send as much as fits."""
        for line, sender in zip(self._lines, senders, strict=True):
            line.flush(sender, now_ns)

    def forget(self, tokenizer: int) -> None:
        """Drop what a dead tokenizer will not read."""
        self._lines[tokenizer] = Line()


def frame_bytes(parts: Sequence[Buffer]) -> int:
    """Return the size of a frame in parts."""
    return sum(memoryview(part).nbytes for part in parts)


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
