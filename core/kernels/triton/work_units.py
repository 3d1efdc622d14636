"""Cuts the attention of a step into units of work for the GPU, once for all layers.

Owns: which query rows and which keys one program takes. Never knows: tensors, devices, layers.

A *row* is one query head of one token, of the query heads that share a KV head; a sequence has
tokens * group rows a KV head. Sequences with few rows (decodes) go into tiles of `NARROW_ROWS`, the
others into tiles of `wide_rows`. Where one tile holds all rows of a sequence, its keys are cut at
multiples of `SPLIT_KEYS`, so that a long context occupies many processors (Dao et al.,
Flash-Decoding, 2023): each part leaves a partial result, and a merge unit joins them. Tiles and
cuts follow from the sequence alone, never from how many others there are: its numbers do not
depend on them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.kernels.paged_attention import AttentionBatch, AttentionShape, Int32Array

IndexArray = npt.NDArray[np.signedinteger]

NARROW_ROWS = 16  # the smallest tile of a matrix instruction
SPLIT_KEYS = 512
NO_PARTIAL = -1
NO_SEQUENCE = -1  # of padding: nothing is read or written for it


@dataclass(frozen=True, slots=True)
class WorkUnits:
    """The units of all sequences in tiles of `tile_rows`; int32 arrays [units] and [merges].

    Unit u takes the rows from `first_row[u]` on of `sequence[u]`, and the keys at positions
    `first_key[u]` to before `end_key[u]`, as far as rows see them. `partial[u]` is the place of its
    partial result, `NO_PARTIAL` if it is the only unit of its rows. Merge m joins the
    `merge_count[m]` partial results from `merge_first[m]` on into rows of `merge_sequence[m]`.
    """

    tile_rows: int
    sequence: Int32Array
    first_row: Int32Array
    first_key: Int32Array
    end_key: Int32Array
    partial: Int32Array
    merge_sequence: Int32Array
    merge_first: Int32Array
    merge_count: Int32Array

    @property
    def num_partials(self) -> int:
        """How many partial results there are."""
        return int(self.merge_count.sum())

    @property
    def arrays(self) -> tuple[Int32Array, ...]:
        """All arrays, in the order in which they are listed here."""
        return (
            self.sequence, self.first_row, self.first_key, self.end_key, self.partial,
            self.merge_sequence, self.merge_first, self.merge_count,
        )  # fmt: skip

    def without_units(self) -> "WorkUnits":
        """Return tiles of the same size, and nothing to do."""
        return WorkUnits(self.tile_rows, *(array[:0] for array in self.arrays))

    def padded(self, num_units: int, num_merges: int) -> "WorkUnits":
        """Return the same with as many units and merges as wanted, the rest of no sequence."""
        units = [_pad(array, num_units) for array in self.arrays[:5]]
        merges = [_pad(array, num_merges) for array in self.arrays[5:]]
        return WorkUnits(self.tile_rows, *units, *merges)


def cut(
    batch: AttentionBatch, shape: AttentionShape, window: int, wide_rows: int
) -> tuple[WorkUnits, WorkUnits]:
    """Return the units in narrow and in wide tiles; `window` 0 = none."""
    narrow = batch.num_tokens * shape.group <= NARROW_ROWS
    return (
        _cut(batch, np.flatnonzero(narrow), shape.group, window, NARROW_ROWS),
        _cut(batch, np.flatnonzero(~narrow), shape.group, window, wide_rows),
    )


def _cut(
    batch: AttentionBatch, sequences: IndexArray, group: int, window: int, tile_rows: int
) -> WorkUnits:
    context = (batch.first_position + batch.num_tokens)[sequences]
    lowest = batch.first_position[sequences] - window + 1 if window else np.zeros_like(context)
    first_split = np.maximum(lowest, 0) // SPLIT_KEYS
    tiles = -(-batch.num_tokens[sequences] * group // tile_rows)
    splits = np.where(tiles == 1, -(-context // SPLIT_KEYS) - first_split, 1)
    # One of the two is 1, so a unit is either a tile or a part of the keys.
    counts = tiles * splits
    owner = np.repeat(np.arange(len(sequences)), counts)
    ordinal = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_split = (splits > 1)[owner]
    split = first_split[owner] + np.where(is_split, ordinal, 0)
    end_key = np.where(is_split, (split + 1) * SPLIT_KEYS, context[owner])
    is_merged = splits > 1
    return WorkUnits(
        tile_rows=tile_rows,
        sequence=_int32(sequences[owner]),
        first_row=_int32(np.where(is_split, 0, ordinal * tile_rows)),
        first_key=_int32(split * SPLIT_KEYS),
        end_key=_int32(np.minimum(end_key, context[owner])),
        partial=_int32(np.where(is_split, np.cumsum(is_split) - 1, NO_PARTIAL)),
        merge_sequence=_int32(sequences[is_merged]),
        merge_first=_int32((np.cumsum(splits * is_merged) - splits)[is_merged]),
        merge_count=_int32(splits[is_merged]),
    )


def _pad(array: Int32Array, count: int) -> Int32Array:
    padded = np.full(count, NO_SEQUENCE, dtype=np.int32)
    padded[: len(array)] = array
    return padded


def _int32(array: IndexArray) -> Int32Array:
    return np.ascontiguousarray(array, dtype=np.int32)
