"""One step on one model: rows in, sampled tokens and log-probabilities out.

Owns: the forward pass of a mixed batch, which positions go through the LM head, and the state
between steps (last sampled tokens, and where prompt log-probabilities are wanted the last hidden
state). Never knows: configuration, channels, clocks, or why a row is in the plan.

Logits are made for a bounded number of positions at a time. A row that cannot be computed gets an
error in the result and is left out of the pass; the others are computed as if it were not there.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.executor.input_batch import InputBatch, Int32Array, RowTable
from core.executor.results import NO_ERROR, empty_results, is_reported
from core.executor.sampler import Sampled, sample, token_logprobs
from core.executor.sampling_batch import IndexArray, read_sampling
from core.kernels.choice import Choice
from core.kernels.paged_attention import AttentionBatch
from core.models.decoder import Decoder
from core.scheduler.plan import (
    LOGPROB,
    PlanFlag,
    RecordArray,
    ResultError,
    empty_logprobs,
)

LOGITS_BYTES_MAX = 64 * 2**20


class ModelRunner:
    """Runs plans on `model` with the KV `caches` (one tensor per layer)."""

    def __init__(
        self,
        model: Decoder,
        caches: Sequence[Tensor],
        table: RowTable,
        choice: Choice,
        *,
        logits_bytes_max: int = LOGITS_BYTES_MAX,
    ) -> None:
        self._model = model
        self._caches = caches
        self._table = table
        self._choice = choice
        self._num_blocks = caches[0].shape[0]
        self._head_rows_max = max(1, logits_bytes_max // (4 * model.config.vocab_size))
        self._prompt_states: dict[int, tuple[int, int, Tensor]] = {}

    def run(self, plan: RecordArray) -> tuple[RecordArray, RecordArray]:
        """Compute PLAN_ROW[n]; return (RESULT_ROW[m], LOGPROB[k]), m <= n, in plan order."""
        batch, errors = self._table.assemble(plan)
        results = empty_results(plan, errors)
        computed = np.flatnonzero(errors == NO_ERROR)
        logprobs: list[RecordArray] = []
        if len(computed):
            hidden = self._forward(batch)
            self._sample(hidden, batch, results, computed, logprobs)
            self._score_prompts(hidden, batch, results, computed, logprobs)
        entries = np.concatenate(logprobs) if logprobs else empty_logprobs()
        return results[is_reported(plan, errors)], entries

    def forget_rows(self) -> None:
        """Drop what is kept per row between steps."""
        self._table.forget()
        self._prompt_states.clear()

    def _forward(self, batch: InputBatch) -> Tensor:
        attention = AttentionBatch(
            first_token=batch.first_token,
            num_tokens=batch.num_tokens,
            first_position=batch.first_position,
            block_tables=batch.block_tables,
        )
        self._check_blocks(batch)
        return self._model.forward(torch.from_numpy(batch.token_ids), attention, self._caches)

    def _check_blocks(self, batch: InputBatch) -> None:
        """A block outside the pool would be a write into foreign memory: IndexError."""
        ends = batch.first_position + batch.num_tokens
        if ends.max() > self._model.num_positions:
            raise IndexError("a position beyond the context")
        needed = -(-ends // self._model.attention_shape.block_size)
        used = np.arange(batch.block_tables.shape[1]) < needed[:, None]
        blocks = batch.block_tables[used]
        if blocks.min() < 0 or blocks.max() >= self._num_blocks:
            raise IndexError("a block outside the pool")

    def _sample(
        self,
        hidden: Tensor,
        batch: InputBatch,
        results: RecordArray,
        computed: IndexArray,
        logprobs: list[RecordArray],
    ) -> None:
        """Sample every sequence with SAMPLE, some at a time, into `results` and `logprobs`."""
        sequences = np.flatnonzero(batch.has(PlanFlag.SAMPLE))
        last_token = batch.first_token + batch.num_tokens - 1
        for part in _slices(sequences, self._head_rows_max):
            logits = self._model.logits(hidden[torch.from_numpy(last_token[part]).long()])
            params = read_sampling(self._table, batch, part, self._model.config.eos_token_ids)
            sampled = sample(logits, params, self._choice)
            self._report(sampled, results, computed[part], _total(logprobs))
            logprobs.append(sampled.top)
            good = part[sampled.finite]
            self._table.remember(
                batch.row[good], batch.generation[good], sampled.token_id[sampled.finite]
            )

    def _report(
        self, sampled: Sampled, results: RecordArray, where: IndexArray, logprobs_start: int
    ) -> None:
        results["token_id"][where] = np.where(sampled.finite, sampled.token_id, -1)
        results["logprob"][where] = sampled.logprob
        results["logprobs_start"][where] = sampled.top_start + logprobs_start
        results["num_logprobs"][where] = np.where(sampled.finite, sampled.num_top, 0)
        results["error"][where[~sampled.finite]] = ResultError.NON_FINITE

    def _score_prompts(
        self,
        hidden: Tensor,
        batch: InputBatch,
        results: RecordArray,
        computed: IndexArray,
        logprobs: list[RecordArray],
    ) -> None:
        for sequence in np.flatnonzero(batch.has(PlanFlag.PROMPT_LOGPROBS)):
            entries = self._prompt_logprobs(hidden, batch, int(sequence))
            result = computed[sequence]
            results["prompt_logprobs_start"][result] = _total(logprobs)
            results["num_prompt_logprobs"][result] = len(entries)
            logprobs.append(entries)

    def _prompt_logprobs(self, hidden: Tensor, batch: InputBatch, sequence: int) -> RecordArray:
        """Return (1 + k) entries for each new position inside the prompt, the actual token first.

        A token's probability comes from the state before it: the chunk's own states shifted by
        one, and for its first token the state kept from the chunk before. Where there is none
        (position 0) the entries are NaN with id -1 besides the token itself.
        """
        row, first = int(batch.row[sequence]), int(batch.first_position[sequence])
        start = int(batch.first_token[sequence])
        count = int(batch.num_tokens[sequence])
        scored = min(count, int(batch.prompt_len[sequence]) - first)
        before = self._state_before(row, int(batch.generation[sequence]), first)
        self._prompt_states.pop(row, None)
        if first + count < batch.prompt_len[sequence]:
            last = hidden[start + count - 1 : start + count].clone()
            self._prompt_states[row] = (int(batch.generation[sequence]), first + count, last)
        if scored <= 0:
            return empty_logprobs()
        states = hidden[start : start + scored - 1]
        known = 0 if before is None else 1
        if before is not None:
            states = torch.cat((before, states))
        ids = batch.token_ids[start : start + scored]
        num_top = int(self._table.rows["num_prompt_logprobs"][row])
        entries = _unknown_entries(ids, max(num_top, 0))
        self._fill(entries[1 - known :], states, ids[1 - known :])
        return entries.reshape(-1)

    def _state_before(self, row: int, generation: int, position: int) -> Tensor | None:
        kept_generation, kept_position, state = self._prompt_states.get(row, (-1, -1, None))
        return state if (kept_generation, kept_position) == (generation, position) else None

    def _fill(self, entries: RecordArray, states: Tensor, ids: Int32Array) -> None:
        """Fill LOGPROB[positions, 1 + k] `entries` from the states before `ids`, in parts."""
        num_top = entries.shape[1] - 1
        for part in _slices(np.arange(len(ids)), self._head_rows_max):
            logits = self._model.logits(states[torch.from_numpy(part)])
            counts = np.full(len(part), num_top, dtype=np.int32)
            actual, top = token_logprobs(logits, ids[part], counts)
            entries["logprob"][part, 0] = actual
            entries[part, 1:] = top.reshape(len(part), num_top)


def _slices(indices: npt.NDArray[np.intp], size: int) -> Iterator[npt.NDArray[np.intp]]:
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def _total(parts: list[RecordArray]) -> int:
    return sum(len(part) for part in parts)


def _unknown_entries(ids: Int32Array, num_top: int) -> RecordArray:
    entries = np.empty((len(ids), 1 + num_top), dtype=LOGPROB)
    entries["token_id"] = -1
    entries["token_id"][:, 0] = ids
    entries["logprob"] = np.nan
    return entries
