"""An executor without a model: token ids from a hash, time from a formula.

Owns: the same checks and answers as the real one, so that the scheduler cannot tell them apart.
Never knows: tensors; time passes only through the sleeper it is given, so a test or a simulation
may use a virtual clock.

A token is a pure function of (seed, choice, prompt, output index), whatever the batch, the
chunking or the replica. A step takes `step_us` + `token_us` for each computed token, and for each
block that is swapped what copying the KV of a small model takes.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from core.clock import NS_PER_US, Clock
from core.executor.input_batch import InputBatch, RowTable
from core.executor.philox import words
from core.executor.protocol import (
    NO_STATISTICS,
    DoneStep,
    ExecutorInfo,
    ExecutorSettings,
    ExecutorStatistics,
)
from core.executor.results import NO_ERROR, empty_results, is_reported
from core.policy.cost_model import CostBasis
from core.scheduler.plan import (
    LOGPROB,
    PlanFlag,
    RecordArray,
    StepPlan,
    StepResult,
    empty_logprobs,
)

Sleeper = Callable[[int], None]  # waits that many ns

DEFAULT_NUM_KV_BLOCKS = 4096
TOKEN_BYTES = 2**14  # of KV, about those of a model of 10^8 parameters
COPY_BYTES_PER_US = 5000


class SimulatedExecutor:
    """See `core.executor.protocol.Executor`."""

    def __init__(
        self,
        settings: ExecutorSettings,
        rows: RecordArray,
        spans: Sequence[npt.NDArray[np.int32]],
        clock: Clock,
        sleep_ns: Sleeper,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...] = (),
        eos_probability: float = 0.0,
    ) -> None:
        """End-of-sequence ids appear with `eos_probability` a token, by default never."""
        assert len(eos_token_ids) < vocab_size, "a vocabulary of end tokens only"
        self._settings = settings
        self._block_bytes = settings.block_size * TOKEN_BYTES
        self._clock = clock
        self._sleep_ns = sleep_ns
        self._spans = spans
        self._table = RowTable(rows, spans, vocab_size=vocab_size, block_size=settings.block_size)
        self._eos = np.array(eos_token_ids, dtype=np.int32)
        self._ordinary = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), self._eos)
        self._eos_probability = eos_probability if eos_token_ids else 0.0
        self._prompt_hashes: dict[int, tuple[int, int]] = {}  # row: (generation, hash)
        self._statistics = NO_STATISTICS

    def load(self) -> ExecutorInfo:
        """Return the facts; nothing is loaded."""
        settings = self._settings
        return ExecutorInfo(
            num_kv_blocks=settings.num_kv_blocks or DEFAULT_NUM_KV_BLOCKS,
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
            vocab_size=len(self._ordinary) + len(self._eos),
            weights_bytes=0,
            kv_bytes=0,
            kernel_path="simulated",
            device_name="simulated",
            threads=1,
            basis=CostBasis(
                step_ns=settings.simulated_step_us * NS_PER_US,
                token_ns=settings.simulated_token_us * NS_PER_US,
            ),
            num_host_blocks=settings.swap_memory_bytes // self._block_bytes,
            block_bytes=self._block_bytes,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Answer one step after its modelled time."""
        started_ns = self._clock.now_ns()
        num_tokens = int(plan.rows["num_new_tokens"].sum())
        step_us = self._settings.simulated_step_us + self._settings.simulated_token_us * num_tokens
        step_us += len(plan.copies) * self._block_bytes / COPY_BYTES_PER_US
        self._sleep_ns(round(step_us * NS_PER_US))
        rows, logprobs = self._answer(plan.rows)
        result = StepResult(
            replica=plan.replica,
            epoch=plan.epoch,
            step=plan.step,
            started_ns=started_ns,
            finished_ns=self._clock.now_ns(),
            rows=rows,
            logprobs=logprobs,
            scheduler_epoch=plan.scheduler_epoch,
        )
        self._statistics = self._statistics.after(num_tokens, result)
        return result

    def launch(self, plan: StepPlan) -> DoneStep:
        """Answer one step."""
        return DoneStep(self.execute(plan))

    def forget_rows(self) -> None:
        """Drop what was kept per row."""
        self._table.forget()
        self._prompt_hashes.clear()

    def statistics(self) -> ExecutorStatistics:
        """Return counters."""
        return self._statistics

    def _answer(self, plan: RecordArray) -> tuple[RecordArray, RecordArray]:
        batch, errors = self._table.assemble(plan)
        results = empty_results(plan, errors)
        computed = np.flatnonzero(errors == NO_ERROR)
        sampled = np.flatnonzero(batch.has(PlanFlag.SAMPLE))
        entries: list[RecordArray] = []
        if len(sampled):
            token_ids = self._draw(batch, sampled)
            results["token_id"][computed[sampled]] = token_ids
            self._table.remember(batch.row[sampled], batch.generation[sampled], token_ids)
            self._add_logprobs(batch, sampled, results, computed, entries)
        for sequence in np.flatnonzero(batch.has(PlanFlag.PROMPT_LOGPROBS)):
            self._add_prompt_logprobs(batch, int(sequence), results, computed, entries)
        logprobs = np.concatenate(entries) if entries else empty_logprobs()
        return results[is_reported(plan, errors)], logprobs

    def _draw(self, batch: InputBatch, sampled: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
        row = batch.row[sampled]
        ends = batch.first_position[sampled] + batch.num_tokens[sampled]
        hashes = [self._prompt_hash(batch, int(sequence)) for sequence in sampled]
        seeds = np.bitwise_xor(self._table.rows["seed"][row], np.array(hashes, dtype=np.uint64))
        drawn = words(seeds, self._table.rows["choice"][row], ends - batch.prompt_len[sampled])
        token_ids = self._ordinary[drawn[:, 0] % len(self._ordinary)]
        if self._eos_probability:
            ends_now = drawn[:, 1] < self._eos_probability * 2.0**32
            token_ids = np.where(ends_now, self._eos[drawn[:, 2] % len(self._eos)], token_ids)
        return token_ids

    def _prompt_hash(self, batch: InputBatch, sequence: int) -> int:
        """Return a 64-bit hash of the prompt, computed once for each request in a row."""
        row, generation = int(batch.row[sequence]), int(batch.generation[sequence])
        kept_generation, prompt_hash = self._prompt_hashes.get(row, (-1, 0))
        if kept_generation == generation:
            return prompt_hash
        fields = self._table.rows[row]
        start = int(fields["span_start"])
        arena = self._spans[int(fields["tokenizer"])]
        prompt = np.ascontiguousarray(arena[start : start + int(fields["prompt_len"])])
        digest = hashlib.blake2b(prompt.tobytes(), digest_size=8).digest()
        prompt_hash = int.from_bytes(digest, "little")
        self._prompt_hashes[row] = (generation, prompt_hash)
        return prompt_hash

    def _add_logprobs(
        self,
        batch: InputBatch,
        sampled: npt.NDArray[np.intp],
        results: RecordArray,
        computed: npt.NDArray[np.intp],
        entries: list[RecordArray],
    ) -> None:
        counts = self._table.rows["num_logprobs"][batch.row[sampled]]
        for sequence, count in zip(sampled[counts >= 0], counts[counts >= 0], strict=True):
            result = computed[sequence]
            top = self._ranking(int(results["token_id"][result]), int(count))
            results["logprob"][result] = -1.0
            results["logprobs_start"][result] = sum(map(len, entries))
            results["num_logprobs"][result] = len(top)
            entries.append(top)

    def _add_prompt_logprobs(
        self,
        batch: InputBatch,
        sequence: int,
        results: RecordArray,
        computed: npt.NDArray[np.intp],
        entries: list[RecordArray],
    ) -> None:
        first = int(batch.first_position[sequence])
        count = min(int(batch.num_tokens[sequence]), int(batch.prompt_len[sequence]) - first)
        num_top = int(self._table.rows["num_prompt_logprobs"][batch.row[sequence]])
        start = int(batch.first_token[sequence])
        scored = []
        for offset in range(max(0, count)):
            token_id = int(batch.token_ids[start + offset])
            entry = self._ranking(token_id, max(num_top, 0))
            actual = np.array([(token_id, -1.0)], dtype=LOGPROB)
            both = np.concatenate((actual, entry))
            if first + offset == 0:
                both["logprob"] = np.nan
                both["token_id"][1:] = -1
            scored.append(both)
        result = computed[sequence]
        results["prompt_logprobs_start"][result] = sum(map(len, entries))
        results["num_prompt_logprobs"][result] = sum(map(len, scored))
        entries.extend(scored)

    def _ranking(self, token_id: int, count: int) -> RecordArray:
        """Return `count` best tokens as LOGPROB: the token itself at -1, then the ids after it."""
        vocab_size = len(self._ordinary) + len(self._eos)
        top = np.empty(count, dtype=LOGPROB)
        top["token_id"] = (token_id + np.arange(count)) % vocab_size
        top["logprob"] = -1.0 - np.arange(count)
        return top
