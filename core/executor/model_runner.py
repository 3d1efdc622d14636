"""One step on one model: rows in, sampled tokens and log-probabilities out.

Owns: the forward pass of a mixed batch, which positions go through the LM head, and the state
between steps (last sampled tokens, and where prompt log-probabilities are wanted the last hidden
state). Never knows: configuration, channels, clocks, or why a row is in the plan; nor which device
computes (`core.executor.backend`).

    run       launch, then collect
    launch    reads everything a plan names and gives the device its work
    collect   waits for the answer; steps are collected in the order in which they were launched

Between the two a further step may be launched, on a device that keeps sampled tokens: its FEEDBACK
rows begin with tokens that nobody has seen yet. If such a row's logits were not finite it goes on
from any token, and its logits are not finite again.

Logits are made for a bounded number of positions at a time. A row that cannot be computed gets an
error in the result and is left out of the pass; the others are computed as if it were not there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.executor.backend import Answer, Backend, Scores
from core.executor.input_batch import InputBatch, Int32Array, RowTable
from core.executor.results import NO_ERROR, empty_results, is_reported
from core.executor.sampler import Sampled
from core.executor.sampling_batch import IndexArray, read_sampling
from core.scheduler.plan import (
    LOGPROB,
    PlanFlag,
    RecordArray,
    ResultError,
    empty_logprobs,
)

LOGITS_BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True)
class _SampledPart:
    """Some sequences whose tokens were asked for, and where they go in the result."""

    batch: InputBatch
    sequences: IndexArray
    where: IndexArray
    answer: Answer[Sampled]


@dataclass(frozen=True, slots=True)
class _ScoredPrompt:
    """New positions of a prompt: LOGPROB[positions, 1 + k], and what fills parts of it."""

    where: int
    entries: RecordArray
    parts: list[tuple[RecordArray, Answer[Scores]]]


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device was given; for `ModelRunner.collect`."""

    results: RecordArray
    is_reported: npt.NDArray[np.bool_]
    sampled: list[_SampledPart]
    scored: list[_ScoredPrompt]
    end: Answer[None]

    def is_done(self) -> bool:
        """Tell whether `collect` would wait."""
        return self.end.is_here()


class ModelRunner:
    """Runs plans on the model of `backend`."""

    def __init__(
        self, backend: Backend, table: RowTable, *, logits_bytes_max: int = LOGITS_BYTES_MAX
    ) -> None:
        self._backend = backend
        self._model = backend.model
        self._table = table
        self._head_rows_max = max(1, logits_bytes_max // (4 * self._model.config.vocab_size))
        self._prompt_states: dict[int, tuple[int, int, Tensor]] = {}

    @property
    def runs_ahead(self) -> bool:
        """Whether a step may be launched before the one before it is collected."""
        return self._backend.keeps_tokens

    def run(self, plan: RecordArray) -> tuple[RecordArray, RecordArray]:
        """Compute PLAN_ROW[n]; return (RESULT_ROW[m], LOGPROB[k]), m <= n, in plan order."""
        return self.collect(self.launch(plan))

    def launch(self, plan: RecordArray) -> LaunchedStep:
        """Begin with PLAN_ROW[n]; the plan, its rows and spans are not read again."""
        batch, errors = self._table.assemble(plan)
        results, reported = empty_results(plan, errors), is_reported(plan, errors)
        computed = np.flatnonzero(errors == NO_ERROR)
        if not len(computed):
            return LaunchedStep(results, reported, [], [], self._backend.end())
        self._check_blocks(batch)
        states = self._backend.forward(batch)
        sampled = self._sample(states, batch, computed)
        scored = self._score_prompts(states, batch, results, computed)
        return LaunchedStep(results, reported, sampled, scored, self._backend.end())

    def collect(self, step: LaunchedStep) -> tuple[RecordArray, RecordArray]:
        """Wait for a step; return as `run`."""
        step.end.get()
        logprobs: list[RecordArray] = []
        for part in step.sampled:
            sampled = part.answer.get()
            _report(sampled, step.results, part.where, _total(logprobs))
            logprobs.append(sampled.top)
            if not self._backend.keeps_tokens:
                self._remember(part, sampled)
        for prompt in step.scored:
            _fill(prompt)
            step.results["prompt_logprobs_start"][prompt.where] = _total(logprobs)
            logprobs.append(prompt.entries.reshape(-1))
        entries = np.concatenate(logprobs) if logprobs else empty_logprobs()
        return step.results[step.is_reported], entries

    def forget_rows(self) -> None:
        """Drop what is kept per row between steps."""
        self._table.forget()
        self._prompt_states.clear()

    def _check_blocks(self, batch: InputBatch) -> None:
        """A block outside the pool would be a write into foreign memory: IndexError."""
        ends = batch.first_position + batch.num_tokens
        if ends.max() > self._model.num_positions:
            raise IndexError("a position beyond the context")
        needed = -(-ends // self._model.attention_shape.block_size)
        used = np.arange(batch.block_tables.shape[1]) < needed[:, None]
        blocks = batch.block_tables[used]
        if blocks.min() < 0 or blocks.max() >= self._backend.num_blocks:
            raise IndexError("a block outside the pool")

    def _sample(
        self, states: Tensor, batch: InputBatch, computed: IndexArray
    ) -> list[_SampledPart]:
        """Ask for a token of every sequence with SAMPLE, some at a time."""
        asked = []
        sequences = np.flatnonzero(batch.has(PlanFlag.SAMPLE))
        last_token = batch.first_token + batch.num_tokens - 1
        for part in _slices(sequences, self._head_rows_max):
            params = read_sampling(self._table, batch, part, self._model.config.eos_token_ids)
            last_states = self._backend.take(states, last_token[part])
            answer = self._backend.sample(last_states, params, batch.row[part])
            asked.append(_SampledPart(batch, part, computed[part], answer))
            if self._backend.keeps_tokens:
                self._table.promise(batch.row[part], batch.generation[part])
        return asked

    def _remember(self, part: _SampledPart, sampled: Sampled) -> None:
        good = part.sequences[sampled.finite]
        row, generation = part.batch.row[good], part.batch.generation[good]
        self._table.remember(row, generation, sampled.token_id[sampled.finite])

    def _score_prompts(
        self, states: Tensor, batch: InputBatch, results: RecordArray, computed: IndexArray
    ) -> list[_ScoredPrompt]:
        """Ask for the log-probabilities of every prompt with PROMPT_LOGPROBS."""
        scored = []
        for sequence in np.flatnonzero(batch.has(PlanFlag.PROMPT_LOGPROBS)):
            where = int(computed[sequence])
            prompt = self._score_prompt(states, batch, int(sequence), where)
            results["num_prompt_logprobs"][where] = prompt.entries.size
            scored.append(prompt)
        return scored

    def _score_prompt(
        self, states: Tensor, batch: InputBatch, sequence: int, where: int
    ) -> _ScoredPrompt:
        """Ask for (1 + k) entries for each new position inside the prompt, the actual token first.

        A token's probability comes from the state before it: the chunk's own states shifted by
        one, and for its first token the state kept from the chunk before. Where there is none
        (position 0) the entries are NaN with id -1 besides the token itself.
        """
        row, first = int(batch.row[sequence]), int(batch.first_position[sequence])
        start = int(batch.first_token[sequence])
        count = int(batch.num_tokens[sequence])
        scored = max(0, min(count, int(batch.prompt_len[sequence]) - first))
        before = self._state_before(row, int(batch.generation[sequence]), first)
        self._prompt_states.pop(row, None)
        if first + count < batch.prompt_len[sequence]:
            last = states[start + count - 1 : start + count].clone()
            self._prompt_states[row] = (int(batch.generation[sequence]), first + count, last)
        num_top = max(int(self._table.rows["num_prompt_logprobs"][row]), 0)
        ids = batch.token_ids[start : start + scored]
        entries = _unknown_entries(ids, num_top)
        if not scored:
            return _ScoredPrompt(where, entries, [])
        own = states[start : start + scored - 1]
        known = 0 if before is None else 1
        if before is not None:
            own = torch.cat((before, own))
        return _ScoredPrompt(where, entries, self._ask(entries[1 - known :], own, ids[1 - known :]))

    def _state_before(self, row: int, generation: int, position: int) -> Tensor | None:
        kept_generation, kept_position, state = self._prompt_states.get(row, (-1, -1, None))
        return state if (kept_generation, kept_position) == (generation, position) else None

    def _ask(
        self, entries: RecordArray, states: Tensor, ids: Int32Array
    ) -> list[tuple[RecordArray, Answer[Scores]]]:
        """Ask, in parts, for what fills LOGPROB[positions, 1 + k] from the states before `ids`."""
        asked = []
        for part in _slices(np.arange(len(ids)), self._head_rows_max):
            counts = np.full(len(part), entries.shape[1] - 1, dtype=np.int32)
            answer = self._backend.score(states[part[0] : part[-1] + 1], ids[part], counts)
            asked.append((entries[part[0] : part[-1] + 1], answer))
        return asked


def _report(sampled: Sampled, results: RecordArray, where: IndexArray, logprobs_start: int) -> None:
    results["token_id"][where] = np.where(sampled.finite, sampled.token_id, -1)
    results["logprob"][where] = sampled.logprob
    results["logprobs_start"][where] = sampled.top_start + logprobs_start
    results["num_logprobs"][where] = np.where(sampled.finite, sampled.num_top, 0)
    results["error"][where[~sampled.finite]] = ResultError.NON_FINITE


def _fill(prompt: _ScoredPrompt) -> None:
    for entries, answer in prompt.parts:
        actual, top = answer.get()
        entries["logprob"][:, 0] = actual
        entries[:, 1:] = top.reshape(len(entries), -1)


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
