"""From a plan to the flat arrays of one forward pass, with every row checked.

Owns: reading rows and spans in shared memory, the verdict on each row (stale, bad token), and the
token fed back from the previous step. Never knows: tensors or sampling. A handful of numpy
operations a step, no Python loop over rows or tokens.

A plan that points outside the rows, spans or blocks is the scheduler's bug: IndexError, before any
memory is touched, also under `python -O`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.executor.results import NO_ERROR
from core.scheduler.plan import PlanFlag, RecordArray, ResultError

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

ON_DEVICE = np.int32(-(2**31))  # in place of a token that was sampled and is not known here


@dataclass(frozen=True, slots=True)
class Spans:
    """The token arenas, one int32 array per tokenizer."""

    arenas: Sequence[Int32Array]

    def read(self, tokenizer: Int32Array, where: Int64Array) -> Int32Array:
        """Return the ids at index `where` of arena `tokenizer`, element by element."""
        ids = np.empty(len(where), dtype=np.int32)
        for index in np.unique(tokenizer):
            mine = tokenizer == index
            places = where[mine]
            if places.min() < 0:
                raise IndexError("a span starts before its arena")
            ids[mine] = self.arenas[index][places]
        return ids


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The sequences of a step that can be computed, in plan order.

    All arrays int32: `row`, `first_position`, `num_tokens`, `first_token`, `flags`, `prompt_len`
    [n]; `token_ids` [tokens]; `block_tables` [n, blocks]. `generation` is uint32 [n].
    """

    row: Int32Array
    generation: npt.NDArray[np.uint32]
    flags: Int32Array
    first_position: Int32Array
    num_tokens: Int32Array
    first_token: Int32Array
    prompt_len: Int32Array
    token_ids: Int32Array
    block_tables: Int32Array

    def has(self, flag: PlanFlag) -> npt.NDArray[np.bool_]:
        """Return which sequences carry `flag`."""
        return np.asarray(self.flags & np.int32(flag), dtype=np.bool_)


class RowTable:
    """The rows of a replica as the executor sees them, and the last sampled token of each."""

    def __init__(
        self, rows: RecordArray, spans: Sequence[Int32Array], *, vocab_size: int, block_size: int
    ) -> None:
        self.rows = rows
        self._spans = Spans(spans)
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._sampled_ids = np.zeros(len(rows), dtype=np.int32)
        self._sampled_generations = np.zeros(len(rows), dtype=np.uint32)
        self._has_sampled = np.zeros(len(rows), dtype=np.bool_)

    def assemble(self, plan: RecordArray) -> tuple[InputBatch, npt.NDArray[np.uint32]]:
        """Return the computable part of PLAN_ROW[n] `plan` and the ResultError of each of its n."""
        if plan["num_new_tokens"].min(initial=1) <= 0 or plan["first_position"].min(initial=0) < 0:
            raise IndexError("a plan row without new tokens, or before the first position")
        errors = np.zeros(len(plan), dtype=np.uint32)
        errors[self._stale(plan)] = ResultError.STALE_ROW
        live = np.flatnonzero(errors == NO_ERROR)
        token_ids, fed_back = self._token_ids(plan[live])
        bad = (token_ids < 0) | (token_ids >= self._vocab_size)
        bad[fed_back] = False
        if bad.any():
            sequence = np.repeat(live, plan["num_new_tokens"][live])
            errors[sequence[bad]] = ResultError.BAD_TOKEN
            token_ids = token_ids[errors[sequence] == NO_ERROR]
        return self._batch(plan[errors == NO_ERROR], token_ids), errors

    def remember(
        self, row: Int32Array, generation: npt.NDArray[np.uint32], token_ids: Int32Array
    ) -> None:
        """Keep what was sampled, for rows whose next plan says FEEDBACK."""
        self._sampled_ids[row] = token_ids
        self._sampled_generations[row] = generation
        self._has_sampled[row] = True

    def promise(self, row: Int32Array, generation: npt.NDArray[np.uint32]) -> None:
        """Note that these rows were sampled and the device knows their tokens: ON_DEVICE."""
        self.remember(row, generation, np.full(len(row), ON_DEVICE))

    def forget(self) -> None:
        """Drop all sampled tokens: generations begin anew."""
        self._has_sampled[:] = False

    def history(
        self, batch: InputBatch, sequences: npt.NDArray[np.intp]
    ) -> tuple[Int32Array, npt.NDArray[np.intp], Int32Array]:
        """Return (ids, sequence, position) of all tokens up to the last new one of `sequences`."""
        lengths = batch.first_position[sequences] + batch.num_tokens[sequences]
        position = _ranges(lengths)
        sequence = np.repeat(sequences, lengths)
        ids = self._read(batch.row[sequences], lengths, position)
        fed_back = batch.has(PlanFlag.FEEDBACK)[sequences]
        fed_place = np.cumsum(lengths) - lengths + batch.first_position[sequences]
        ids[fed_place[fed_back]] = batch.token_ids[batch.first_token[sequences[fed_back]]]
        return ids, sequence, position

    def _stale(self, plan: RecordArray) -> npt.NDArray[np.bool_]:
        row, generation = plan["row"], plan["generation"]
        if row.min(initial=0) < 0:
            raise IndexError("a plan names a row that does not exist")
        fed_back = (plan["flags"] & PlanFlag.FEEDBACK) != 0
        unknown = ~self._has_sampled[row] | (self._sampled_generations[row] != generation)
        changed = np.not_equal(self.rows["generation"][row], generation)
        return np.asarray(changed | (fed_back & unknown))

    def _token_ids(self, plan: RecordArray) -> tuple[Int32Array, npt.NDArray[np.intp]]:
        """Return the ids of all new tokens, and the places of those that are fed back."""
        counts = plan["num_new_tokens"]
        position = _ranges(counts) + np.repeat(plan["first_position"], counts)
        ids = self._read(plan["row"], counts, position)
        is_fed_back = (plan["flags"] & PlanFlag.FEEDBACK) != 0
        places = (np.cumsum(counts) - counts)[is_fed_back]
        ids[places] = self._sampled_ids[plan["row"][is_fed_back]]
        return ids, places

    def _read(self, row: Int32Array, counts: Int32Array, position: Int32Array) -> Int32Array:
        """Return `counts` ids of each row's span, at `position` in it."""
        where = np.repeat(self.rows["span_start"][row], counts) + position.astype(np.int64)
        return self._spans.read(np.repeat(self.rows["tokenizer"][row], counts), where)

    def _batch(self, plan: RecordArray, token_ids: Int32Array) -> InputBatch:
        row, counts = plan["row"], plan["num_new_tokens"]
        ends = plan["first_position"] + counts
        num_blocks = -(-int(ends.max(initial=0)) // self._block_size)
        block_tables = np.ascontiguousarray(self.rows["block_table"][row, :num_blocks])
        if num_blocks > self.rows.dtype["block_table"].shape[0]:
            raise IndexError("a plan row beyond the context")
        return InputBatch(
            row=np.ascontiguousarray(row),
            generation=np.ascontiguousarray(plan["generation"]),
            flags=plan["flags"].astype(np.int32),
            first_position=np.ascontiguousarray(plan["first_position"]),
            num_tokens=np.ascontiguousarray(counts),
            first_token=(np.cumsum(counts) - counts).astype(np.int32),
            prompt_len=self.rows["prompt_len"][row],
            token_ids=token_ids,
            block_tables=block_tables,
        )


def _ranges(counts: Int32Array) -> Int32Array:
    """Return 0..counts[0]-1, 0..counts[1]-1, … in one array."""
    before = np.cumsum(counts) - counts
    total = int(counts.sum())
    return (np.arange(total) - np.repeat(before, counts)).astype(np.int32)
