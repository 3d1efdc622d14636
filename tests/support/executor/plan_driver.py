"""Plays the scheduler for an executor: rows, spans, blocks, plans; decides nothing by itself.

Owns: one arena, the row table and a block pool that hands out scattered blocks. A test adds
sequences and steps them in chunks as it likes; sampled ids go into the span as the scheduler
would write them. Freed rows keep their bytes, and generations count up, as in the real engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from core.clock import Clock
from core.executor.protocol import Executor
from core.scheduler.plan import (
    COPY,
    PLAN_ROW,
    CopyDirection,
    PlanFlag,
    RecordArray,
    ResultError,
    StepPlan,
    StepResult,
    row_dtype,
)


class ManualClock:
    """A clock that only moves when it is slept on."""

    def __init__(self) -> None:
        self.ns = 1

    def now_ns(self) -> int:
        """Return the time, ns."""
        return self.ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Move the time."""
        self.ns += duration_ns


NEUTRAL = {"top_p": 1.0, "repetition_penalty": 1.0, "num_logprobs": -1, "num_prompt_logprobs": -1}


@dataclass(slots=True, eq=False)
class Running:
    """One running sequence; `outputs` and `logprobs` are what was sampled so far."""

    row: int
    generation: int
    span_start: int
    prompt_len: int
    max_tokens: int
    blocks: list[int]
    fields: dict[str, object]
    computed: int = 0
    outputs: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_entries: list[tuple[int, float]] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Tokens that exist."""
        return self.prompt_len + len(self.outputs)

    @property
    def done(self) -> bool:
        """Whether all tokens are sampled."""
        return len(self.outputs) == self.max_tokens


class PlanDriver:
    """Drives `make(rows, spans, clock)`, an executor that is loaded here."""

    def __init__(
        self,
        make: Callable[
            [RecordArray, Sequence[np.ndarray[tuple[int], np.dtype[np.int32]]], Clock], Executor
        ],
        *,
        block_size: int,
        num_rows: int = 8,
        max_blocks: int = 32,
        seed: int = 0,
    ) -> None:
        self.rows = np.zeros(num_rows, dtype=row_dtype(max_blocks))
        self.arena = np.full(1 << 16, -7, dtype=np.int32)
        self.clock = ManualClock()
        self.executor = make(self.rows, [self.arena], self.clock)
        self.info = self.executor.load()
        self.block_size = block_size
        self.random = np.random.default_rng(seed)
        self.free_blocks = [int(b) for b in self.random.permutation(self.info.num_kv_blocks)]
        self.free_rows = list(range(num_rows))
        self._generation = 0
        self._span_end = 0
        self._steps = 0

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        row: int | None = None,
        shared_blocks: Sequence[int] = (),
        **fields: object,
    ) -> Running:
        """Put a sequence into a row; `fields` are row fields; `shared_blocks` come first."""
        row = self.free_rows[0] if row is None else row
        self.free_rows.remove(row)
        count = -(-(len(prompt) + max_tokens) // self.block_size) - len(shared_blocks)
        blocks = [*shared_blocks, *(self.free_blocks.pop() for _ in range(count))]
        start = self._span_end
        self._span_end += len(prompt) + max_tokens
        self.arena[start : start + len(prompt)] = prompt
        sequence = Running(row, 0, start, len(prompt), max_tokens, blocks, dict(fields))
        sequence.computed = len(shared_blocks) * self.block_size
        self._write_row(sequence)
        return sequence

    def _write_row(self, sequence: Running) -> None:
        self._generation += 1
        sequence.generation = self._generation
        self.rows[sequence.row] = np.zeros((), dtype=self.rows.dtype)
        fields = self.rows[sequence.row]
        values = {
            **NEUTRAL,
            "span_start": sequence.span_start,
            "prompt_len": sequence.prompt_len,
            "max_tokens": sequence.max_tokens,
            **sequence.fields,
        }
        for name in self.rows.dtype.names or ():
            if name in values:
                fields[name] = values[name]
        fields["block_table"][: len(sequence.blocks)] = sequence.blocks
        fields["generation"] = sequence.generation

    def preempt(self, sequence: Running, row: int | None = None) -> None:
        """Take row and blocks away and begin again elsewhere, with all tokens so far."""
        self.release(sequence)
        sequence.row = self.free_rows[-1] if row is None else row
        self.free_rows.remove(sequence.row)
        count = len(sequence.blocks)
        sequence.blocks = [self.free_blocks.pop(0) for _ in range(count)]
        sequence.computed = 0
        self._write_row(sequence)

    def release(self, sequence: Running) -> None:
        """Give row and blocks back."""
        self.free_rows.append(sequence.row)
        self.free_blocks.extend(sequence.blocks)

    def plan(self, chunks: Mapping[Running, int], *, feedback: bool = False) -> StepPlan:
        """Return the plan that computes so many tokens of each sequence; decodes come first."""
        records = []
        for sequence, count in sorted(chunks.items(), key=lambda item: item[1] != 1):
            flags = PlanFlag(0)
            if sequence.computed + count == sequence.total:
                flags |= PlanFlag.SAMPLE
            if feedback and sequence.outputs and sequence.computed == sequence.total - 1:
                flags |= PlanFlag.FEEDBACK
            if sequence.fields.get("num_prompt_logprobs", -1) != -1 and not sequence.outputs:
                flags |= PlanFlag.PROMPT_LOGPROBS
            place = (sequence.row, sequence.generation, count, sequence.computed, int(flags))
            records.append(place)
        self._steps += 1
        return StepPlan(0, 1, self._steps, np.array(records, dtype=PLAN_ROW))

    def copy(self, *copies: tuple[CopyDirection, int, int]) -> None:
        """Run a step that only copies: (direction, block, host block)."""
        self._steps += 1
        nothing = np.empty(0, dtype=PLAN_ROW)
        plan = StepPlan(0, 1, self._steps, nothing, copies=np.array(list(copies), dtype=COPY))
        assert not len(self.executor.execute(plan).rows)

    def step(self, chunks: Mapping[Running, int], *, feedback: bool = False) -> StepResult:
        """Run one step and take its results in; asserts that no row failed."""
        result = self.executor.execute(self.plan(chunks, feedback=feedback))
        by_row = {sequence.row: sequence for sequence in chunks}
        for sequence, count in chunks.items():
            sequence.computed += count
        for record in result.rows:
            assert record["error"] == ResultError.NONE, record
            self._take(by_row[int(record["row"])], record, result, hide=feedback)
        return result

    def _take(self, sequence: Running, record: np.void, result: StepResult, *, hide: bool) -> None:
        start = int(record["prompt_logprobs_start"])
        entries = result.logprobs[start : start + int(record["num_prompt_logprobs"])]
        sequence.prompt_entries.extend((int(e["token_id"]), float(e["logprob"])) for e in entries)
        if record["token_id"] < 0:
            return
        if not hide:
            self.arena[sequence.span_start + sequence.total] = record["token_id"]
        sequence.outputs.append(int(record["token_id"]))
        sequence.logprobs.append(float(record["logprob"]))

    def finish(self, sequences: Sequence[Running], *, chunk_max: int = 16) -> None:
        """Step all sequences to their ends in chunks of random size."""
        while live := [sequence for sequence in sequences if not sequence.done]:
            self.step({sequence: self.random_chunk(sequence, chunk_max) for sequence in live})

    def random_chunk(self, sequence: Running, chunk_max: int) -> int:
        """Return a random number of the tokens that are left to compute."""
        left = sequence.total - sequence.computed
        return int(self.random.integers(1, min(left, chunk_max) + 1))
