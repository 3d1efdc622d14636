"""A tokenizer's arena: where the token ids of every live request lie.

Owns: which chunks of an int32 array are taken. Never knows: requests, processes, or when a span may
be reused (its owner frees it when the scheduler says RELEASED). Only the owning tokenizer
allocates, in its own memory; everyone else maps the ids and is told `span_start` with the request.

    span      ids [start, start + num_ids), whole chunks of 256, start a multiple of 256
    written   the prompt part by the tokenizer before it submits; the rest by the scheduler
    found     first fit over the free runs, which are sorted and coalesced on free

The free runs are two sorted arrays, so finding, splitting and joining are each one vector
operation.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ipc.layout import Layout, records_layout
from ipc.segment import Segment

CHUNK_IDS = 256

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """How full an arena is, in chunks."""

    num_chunks: int
    num_used_chunks: int
    num_spans: int
    num_free_runs: int
    largest_free_chunks: int


def spans_layout(num_tokens: int) -> Layout:
    """Return the layout of an arena for `num_tokens` ids, rounded up to whole chunks."""
    return records_layout("spans", np.dtype(np.int32), _num_chunks(num_tokens) * CHUNK_IDS)


def map_spans(segment: Segment, num_tokens: int) -> Ids:
    """Return all ids of an arena, int32[num_tokens rounded up]; read-only if the segment is."""
    return spans_layout(num_tokens).views(segment)["records"]


class SpanArena:
    """The allocator over an arena's ids; starts empty, also after a restart."""

    def __init__(self, ids: Ids) -> None:
        assert len(ids) % CHUNK_IDS == 0, len(ids)
        self._ids = ids
        self._num_chunks = len(ids) // CHUNK_IDS
        self._spans: dict[int, int] = {}  # first chunk → chunks
        self._num_used_chunks = 0
        self._free_starts = np.zeros(64, np.int64)
        self._free_lengths = np.zeros(64, np.int64)
        self._free_lengths[0] = self._num_chunks
        self._num_free_runs = 1 if self._num_chunks else 0

    def allocate(self, num_ids: int) -> int | None:
        """Return the first id of a new span of `num_ids`, or None if no free run is long enough."""
        length = max(_num_chunks(num_ids), 1)
        fits = self._free_lengths[: self._num_free_runs] >= length
        run = int(fits.argmax()) if self._num_free_runs else 0
        if not self._num_free_runs or not fits[run]:
            return None
        first = int(self._free_starts[run])
        self._free_starts[run] += length
        self._free_lengths[run] -= length
        if self._free_lengths[run] == 0:
            self._remove_run(run)
        self._spans[first] = length
        self._num_used_chunks += length
        return first * CHUNK_IDS

    def free(self, start: int) -> None:
        """Give a span back; KeyError if none starts there."""
        first, rest = divmod(start, CHUNK_IDS)
        if rest or first not in self._spans:
            raise KeyError(start)
        length = self._spans.pop(first)
        self._num_used_chunks -= length
        self._add_run(first, length)

    def view(self, start: int, num_ids: int) -> Ids:
        """Return ids [start, start + num_ids)."""
        return self._ids[start : start + num_ids]

    def statistics(self) -> SpanStatistics:
        """Return counters."""
        free = self._free_lengths[: self._num_free_runs]
        return SpanStatistics(
            self._num_chunks,
            self._num_used_chunks,
            len(self._spans),
            self._num_free_runs,
            int(free.max()) if self._num_free_runs else 0,
        )

    def check_integrity(self) -> None:
        """Assert that spans and free runs tile the arena and that no two free runs touch."""
        free = list(zip(self._free_starts, self._free_lengths, strict=True))[: self._num_free_runs]
        position, was_free = 0, False
        for first, length, is_free in sorted(
            [(int(f), int(n), True) for f, n in free]
            + [(f, n, False) for f, n in self._spans.items()]
        ):
            assert first == position, (first, position)
            assert length > 0, first
            assert not (is_free and was_free), first
            position, was_free = first + length, is_free
        assert position == self._num_chunks, (position, self._num_chunks)
        assert self._num_used_chunks == sum(self._spans.values())

    def _add_run(self, first: int, length: int) -> None:
        """Insert a free run at its place and join it with its neighbours."""
        starts, lengths, count = self._free_starts, self._free_lengths, self._num_free_runs
        run = int(starts[:count].searchsorted(first))
        joins_next = run < count and starts[run] == first + length
        if run > 0 and starts[run - 1] + lengths[run - 1] == first:
            lengths[run - 1] += length + (lengths[run] if joins_next else 0)
            if joins_next:
                self._remove_run(run)
        elif joins_next:
            starts[run] = first
            lengths[run] += length
        else:
            self._insert_run(run, first, length)

    def _insert_run(self, run: int, first: int, length: int) -> None:
        count = self._num_free_runs
        if count == len(self._free_starts):
            self._free_starts = np.concatenate(
                [self._free_starts, np.zeros_like(self._free_starts)]
            )
            self._free_lengths = np.concatenate(
                [self._free_lengths, np.zeros_like(self._free_lengths)]
            )
        for array, value in ((self._free_starts, first), (self._free_lengths, length)):
            array[run + 1 : count + 1] = array[run:count]
            array[run] = value
        self._num_free_runs = count + 1

    def _remove_run(self, run: int) -> None:
        count = self._num_free_runs
        for array in (self._free_starts, self._free_lengths):
            array[run : count - 1] = array[run + 1 : count]
        self._num_free_runs = count - 1


def _num_chunks(num_ids: int) -> int:
    return -(-num_ids // CHUNK_IDS)
