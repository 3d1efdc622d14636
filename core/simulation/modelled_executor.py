"""An executor that computes nothing but keeps every promise of a real one.

Owns: a KV cache that holds token ids instead of keys and values, and the model "next token = hash
of all ids that the cache yields for this sequence". A plan that names wrong blocks, stale rows,
reused memory or a wrong position therefore yields other tokens. Never knows: the scheduler; it sees
rows, plans and span arenas only, as a real executor does.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.sampling_params import NO_LOGPROBS
from core.scheduler.plan import (
    LOGPROB,
    RESULT_ROW,
    CopyDirection,
    PlanFlag,
    RecordArray,
    ResultError,
    StepPlan,
    StepResult,
)

POISON = -(2**31)  # what a block holds before it is written
TokenIds = npt.NDArray[np.int32]
NextToken = Callable[[TokenIds, int, int], int]


@dataclass(frozen=True, slots=True)
class StepModel:
    """How long a step takes."""

    step_ns: int = 2_000_000
    token_ns: int = 1_000
    copy_ns: int = 10_000  # of a block

    def duration_ns(self, num_tokens: int, num_copies: int = 0) -> int:
        """Return the time of a step over `num_tokens` that copies so many blocks, ns."""
        return self.step_ns + self.token_ns * num_tokens + self.copy_ns * num_copies


def hashed_token(token_ids: TokenIds, seed: int, vocab_size: int) -> int:
    """Return the token that follows `token_ids`, int32[n]: a hash of all of them and the seed."""
    return zlib.crc32(token_ids.tobytes(), seed & 0xFFFFFFFF) % vocab_size


class ModelledExecutor:
    """One replica's executor; `arenas` maps a tokenizer to its span arena, int32[n]."""

    def __init__(
        self,
        rows: RecordArray,
        arenas: Mapping[int, TokenIds],
        *,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        vocab_size: int = 50_000,
        model: StepModel | None = None,
        next_token: NextToken = hashed_token,
    ) -> None:
        """Start with poisoned memory."""
        self._rows = rows
        self._arenas = arenas
        self._cache = np.full((num_blocks, block_size), POISON, np.int32)
        self._host = np.full((num_host_blocks, block_size), POISON, np.int32)
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._model = model or StepModel()
        self._next_token = next_token
        self._sampled: dict[tuple[int, int], int] = {}  # (row, generation) → its last token

    def execute(self, plan: StepPlan, started_ns: int) -> StepResult:
        """Compute `plan`, reading rows and spans as they are now."""
        self._copy(plan.copies)
        records: list[tuple[object, ...]] = []
        logprobs: list[tuple[int, float]] = []
        for entry in plan.rows:
            record = self._execute_row(entry, logprobs)
            if record is not None:
                records.append(record)
        return StepResult(
            plan.replica,
            plan.epoch,
            plan.step,
            started_ns,
            started_ns + self.duration_ns(plan),
            np.array(records, RESULT_ROW),
            np.array(logprobs, LOGPROB),
        )

    def duration_ns(self, plan: StepPlan) -> int:
        """Return how long `plan` takes, ns."""
        num_tokens = int(plan.rows["num_new_tokens"].sum())
        return self._model.duration_ns(num_tokens, len(plan.copies))

    def _copy(self, copies: RecordArray) -> None:
        """Make the copies out, then those in; host memory that was read is poisoned."""
        for direction in CopyDirection:
            chosen = copies[copies["direction"] == direction]
            blocks, host_blocks = chosen["block"], chosen["host_block"]
            if direction is CopyDirection.OUT:
                self._host[host_blocks] = self._cache[blocks]
            else:
                self._cache[blocks] = self._host[host_blocks]
                self._host[host_blocks] = POISON

    def _execute_row(
        self, entry: np.void, logprobs: list[tuple[int, float]]
    ) -> tuple[object, ...] | None:
        index, generation = int(entry["row"]), int(entry["generation"])
        row, flags = self._rows[index], int(entry["flags"])
        if int(row["generation"]) != generation:
            return _record(index, generation, error=ResultError.STALE_ROW)
        first = int(entry["first_position"])
        token_ids = self._new_tokens(row, entry)
        if not np.all((token_ids >= 0) & (token_ids < self._vocab_size)):
            return _record(index, generation, error=ResultError.BAD_TOKEN)
        self._write(row, first, token_ids)
        if not flags & (PlanFlag.SAMPLE | PlanFlag.PROMPT_LOGPROBS):
            return None
        sequence = self._read(row, first + len(token_ids))
        start, count = self._score_prompt(row, first, len(token_ids), flags, logprobs)
        token_id = -1
        if flags & PlanFlag.SAMPLE:
            token_id = self._next_token(sequence, int(row["seed"]), self._vocab_size)
            self._sampled[index, generation] = token_id
        return _record(
            index, generation, token_id, self._logprobs_of(row, token_id, logprobs), (start, count)
        )

    def _new_tokens(self, row: np.void, entry: np.void) -> TokenIds:
        """Return the ids at the new positions, the first one from the device if asked so."""
        arena = self._arenas[int(row["tokenizer"])]
        start = int(row["span_start"]) + int(entry["first_position"])
        token_ids = arena[start : start + int(entry["num_new_tokens"])].copy()
        if int(entry["flags"]) & PlanFlag.FEEDBACK:
            token_ids[0] = self._sampled[int(entry["row"]), int(entry["generation"])]
        return token_ids

    def _write(self, row: np.void, first: int, token_ids: TokenIds) -> None:
        positions = np.arange(first, first + len(token_ids))
        blocks = row["block_table"][positions // self._block_size]
        self._cache[blocks, positions % self._block_size] = token_ids

    def _read(self, row: np.void, length: int) -> TokenIds:
        num_blocks = -(-length // self._block_size)
        sequence: TokenIds = self._cache[row["block_table"][:num_blocks]].reshape(-1)[:length]
        return sequence

    def _score_prompt(
        self, row: np.void, first: int, count: int, flags: int, logprobs: list[tuple[int, float]]
    ) -> tuple[int, int]:
        """Append entries about the prompt tokens at the new positions: "logprob" −position."""
        start = len(logprobs)
        if flags & PlanFlag.PROMPT_LOGPROBS:
            end = min(first + count, int(row["prompt_len"]))
            sequence = self._arenas[int(row["tokenizer"])][int(row["span_start"]) :]
            for position in range(first, end):
                actual = (int(sequence[position]), -float(position))
                logprobs += [actual] + [(0, -99.0)] * int(row["num_prompt_logprobs"])
        return start, len(logprobs) - start

    def _logprobs_of(
        self, row: np.void, token_id: int, logprobs: list[tuple[int, float]]
    ) -> tuple[float, int, int]:
        """Return the token's own and append its alternatives."""
        wanted = int(row["num_logprobs"])
        if wanted == NO_LOGPROBS or token_id < 0:
            return float("nan"), 0, 0
        start = len(logprobs)
        logprobs += [(token_id + k, -1.0 - k) for k in range(wanted)]
        return -0.5, start, wanted


def _record(
    row: int,
    generation: int,
    token_id: int = -1,
    logprobs: tuple[float, int, int] = (float("nan"), 0, 0),
    prompt_logprobs: tuple[int, int] = (0, 0),
    error: ResultError = ResultError.NONE,
) -> tuple[object, ...]:
    """Return the fields of a RESULT_ROW."""
    return (row, generation, token_id, *logprobs, *prompt_logprobs, error)
