"""What the sampler must know of the rows it samples, as arrays read from the rows once a step.

Owns: `SamplingBatch` and its reading. Never knows: logits. Everything a row carries besides the
common numbers (logit bias, stop ids, token history) is flattened to (which row, id, value) triples
of those rows only that use it, so that the usual greedy batch costs nothing.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.executor.input_batch import InputBatch, Int32Array, RowTable
from core.scheduler.plan import RecordArray

Float32Array = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TokenTriples:
    """(index of the row in the batch, token id, value) of some rows' adjustments."""

    index: IndexArray
    token_id: Int32Array
    value: Float32Array


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Parameters of n sampled rows, arrays [n]; `history` has their tokens if penalties need them.

    `output_index` is the number of tokens generated before this one. In `history`, value 1 marks a
    generated token, 0 a prompt token. `bias` adds to logits, `forbidden` lists ids that must not be
    drawn yet (min_tokens).
    """

    output_index: Int32Array
    seed: npt.NDArray[np.uint64]
    choice: Int32Array
    temperature: Float32Array
    top_k: Int32Array
    top_p: Float32Array
    min_p: Float32Array
    repetition_penalty: Float32Array
    presence_penalty: Float32Array
    frequency_penalty: Float32Array
    num_logprobs: Int32Array
    bias: TokenTriples
    forbidden: TokenTriples
    history: TokenTriples

    @property
    def adjusted(self) -> BoolArray:
        """Which rows' logits are changed before the choice."""
        changed = np.zeros(len(self.temperature), dtype=np.bool_)
        for triples in (self.bias, self.forbidden, self.history):
            changed[triples.index] = True
        return changed


def greedy(count: int) -> SamplingBatch:
    """Return the parameters of rows that want the best token and nothing else."""
    zeros, ones = np.zeros(count, np.int32), np.ones(count, np.float32)
    none = np.zeros(count, np.float32)
    return SamplingBatch(
        output_index=zeros,
        seed=np.zeros(count, np.uint64),
        choice=zeros,
        temperature=none,
        top_k=zeros,
        top_p=ones,
        min_p=none,
        repetition_penalty=ones,
        presence_penalty=none,
        frequency_penalty=none,
        num_logprobs=np.full(count, -1, np.int32),
        bias=_no_triples(),
        forbidden=_no_triples(),
        history=_no_triples(),
    )


def read_sampling(
    table: RowTable, batch: InputBatch, sequences: IndexArray, eos_token_ids: tuple[int, ...]
) -> SamplingBatch:
    """Return the parameters of `sequences` of the step's `batch`."""
    row = batch.row[sequences]
    rows = table.rows
    ends = batch.first_position[sequences] + batch.num_tokens[sequences]
    output_index = ends - batch.prompt_len[sequences]
    penalties = {
        name: rows[name][row]
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
    }
    penalized = (
        (penalties["repetition_penalty"] != 1.0)
        | (penalties["presence_penalty"] != 0.0)
        | (penalties["frequency_penalty"] != 0.0)
    )
    return SamplingBatch(
        output_index=output_index,
        **{
            name: rows[name][row]
            for name in ("seed", "choice", "temperature", "top_k", "top_p", "min_p", "num_logprobs")
        },
        **penalties,
        bias=_bias(rows, row),
        forbidden=_forbidden(rows, row, output_index, eos_token_ids),
        history=_history(table, batch, sequences, np.flatnonzero(penalized)),
    )


def _bias(rows: RecordArray, row: Int32Array) -> TokenTriples:
    counts = rows["num_logit_bias"][row]
    users = np.flatnonzero(counts)
    if not len(users):
        return _no_triples()
    used = np.arange(rows.dtype["logit_bias_ids"].shape[0]) < counts[users, None]
    return TokenTriples(
        np.repeat(users, counts[users]),
        rows["logit_bias_ids"][row[users]][used],
        rows["logit_bias_values"][row[users]][used],
    )


def _forbidden(
    rows: RecordArray, row: Int32Array, output_index: Int32Array, eos_token_ids: tuple[int, ...]
) -> TokenTriples:
    users = np.flatnonzero(output_index < rows["min_tokens"][row])
    if not len(users):
        return _no_triples()
    counts = rows["num_stop_token_ids"][row[users]]
    used = np.arange(rows.dtype["stop_token_ids"].shape[0]) < counts[:, None]
    stops = rows["stop_token_ids"][row[users]][used]
    index = np.concatenate((np.repeat(users, counts), np.repeat(users, len(eos_token_ids))))
    ids = np.concatenate((stops, np.tile(np.array(eos_token_ids, dtype=np.int32), len(users))))
    return TokenTriples(index, ids, np.full(len(ids), -np.inf, dtype=np.float32))


def _history(
    table: RowTable, batch: InputBatch, sequences: IndexArray, users: IndexArray
) -> TokenTriples:
    if not len(users):
        return _no_triples()
    ids, which, position = table.history(batch, sequences[users])
    generated = position >= batch.prompt_len[which]
    return TokenTriples(
        np.searchsorted(sequences, which).astype(np.intp), ids, generated.astype(np.float32)
    )


def _no_triples() -> TokenTriples:
    return TokenTriples(
        np.empty(0, dtype=np.intp), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32)
    )
