"""From logits to the next tokens: adjustments, filters, one draw a row.

Owns: the order of the rules and their arithmetic. Never knows: rows in shared memory, plans, KV.
The order, per row (rules that a row does not use cost nothing):

    1. log-probabilities, where wanted, of the raw logits
    2. logit bias, min_tokens (end tokens at minus infinity)
    3. repetition penalty over prompt + output: positive logits divided, negative multiplied;
       frequency (times count) and presence penalty over the output only, subtracted
    4. temperature 0: the largest logit, of equal ones the smallest id
    5. otherwise one draw from the softmax filtered by temperature, min_p, top_k and top_p (see
       `core.kernels.choice`), with u from Philox (seed, choice, output index)

One uniform number a row is all the randomness, so a draw can be repeated anywhere. Every step
treats a row by itself: its token does not depend on the rest of the batch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.executor.philox import uniforms
from core.executor.sampling_batch import Float32Array, IndexArray, SamplingBatch
from core.kernels.choice import Choice, DrawRules
from core.scheduler.plan import LOGPROB, RecordArray, empty_logprobs


@dataclass(frozen=True, slots=True)
class Sampled:
    """The choice of each row [n]; `finite` is False where the logits hold NaN or infinity.

    `logprob` is NaN where none is wanted. Row i's best tokens are the `num_top[i]` entries of
    `top` from `top_start[i]` on, best first, the chosen one among them if it is that good.
    """

    token_id: npt.NDArray[np.int32]
    finite: npt.NDArray[np.bool_]
    logprob: Float32Array
    top_start: npt.NDArray[np.int32]
    num_top: npt.NDArray[np.int32]
    top: RecordArray  # LOGPROB[m]


def sample(logits: Tensor, batch: SamplingBatch, choice: Choice) -> Sampled:
    """Choose a token for each row of `logits` float32 [n, vocabulary]; leaves them unchanged."""
    largest, token_id = choice.argmax(logits)
    worked = np.flatnonzero(batch.adjusted | (batch.temperature > 0))
    if len(worked):
        token_id[worked] = _choose(logits, batch, worked, choice)
    logprob, top_start, num_top, top = _wanted_logprobs(logits, batch, token_id)
    return Sampled(token_id, np.isfinite(largest), logprob, top_start, num_top, top)


def _choose(
    logits: Tensor, batch: SamplingBatch, worked: IndexArray, choice: Choice
) -> npt.NDArray[np.int32]:
    """Return the tokens of the rows that need more than the largest raw logit."""
    work = logits[torch.from_numpy(worked)]
    place = np.full(len(logits), -1, dtype=np.int64)
    place[worked] = np.arange(len(worked))
    _adjust(work, batch, place)
    chosen = choice.argmax(work)[1]
    random = np.flatnonzero(batch.temperature[worked] > 0)
    if len(random):
        rules = _draw_rules(batch, worked[random])
        chosen[random] = choice.draw(work[torch.from_numpy(random)], rules)
    return chosen


def _draw_rules(batch: SamplingBatch, rows: IndexArray) -> DrawRules:
    return DrawRules(
        temperature=batch.temperature[rows],
        top_k=batch.top_k[rows],
        top_p=batch.top_p[rows],
        min_p=batch.min_p[rows],
        uniform=uniforms(batch.seed[rows], batch.choice[rows], batch.output_index[rows]),
    )


def _adjust(work: Tensor, batch: SamplingBatch, place: npt.NDArray[np.int64]) -> None:
    """Apply bias, min_tokens and penalties in place; `place` maps batch rows to rows of `work`."""
    width = work.shape[1]
    flat = work.view(-1)
    for triples in (batch.bias, batch.forbidden):
        if len(triples.index):
            inside = (triples.token_id >= 0) & (triples.token_id < width)
            keys = place[triples.index[inside]] * width + triples.token_id[inside]
            flat.index_add_(0, torch.from_numpy(keys), torch.from_numpy(triples.value[inside]))
    if len(batch.history.index):
        _penalize(flat, batch, place, width)


def _penalize(flat: Tensor, batch: SamplingBatch, place: npt.NDArray[np.int64], width: int) -> None:
    index = batch.history.index
    inside = (batch.history.token_id >= 0) & (batch.history.token_id < width)
    tokens = index[inside].astype(np.int64) * width + batch.history.token_id[inside]
    seen, where = np.unique(tokens, return_inverse=True)
    counts = np.bincount(where, weights=batch.history.value[inside], minlength=len(seen))
    row = seen // width
    keys = torch.from_numpy(place[row] * width + seen % width)
    values = flat[keys].numpy()
    repetition = batch.repetition_penalty[row]
    values = np.where(values > 0, values / repetition, values * repetition)
    values -= batch.frequency_penalty[row] * counts.astype(np.float32)
    values -= batch.presence_penalty[row] * (counts > 0)
    flat[keys] = torch.from_numpy(values.astype(np.float32))


def _wanted_logprobs(
    logits: Tensor, batch: SamplingBatch, token_id: npt.NDArray[np.int32]
) -> tuple[Float32Array, npt.NDArray[np.int32], npt.NDArray[np.int32], RecordArray]:
    n = len(token_id)
    logprob = np.full(n, np.nan, dtype=np.float32)
    num_top = np.maximum(batch.num_logprobs, 0).astype(np.int32)
    top_start = (np.cumsum(num_top) - num_top).astype(np.int32)
    wanted = np.flatnonzero(batch.num_logprobs >= 0)
    if not len(wanted):
        return logprob, top_start, num_top, empty_logprobs()
    actual, top = token_logprobs(
        logits[torch.from_numpy(wanted)], token_id[wanted], num_top[wanted]
    )
    logprob[wanted] = actual
    return logprob, top_start, num_top, top


def token_logprobs(
    logits: Tensor, token_id: npt.NDArray[np.int32], num_top: npt.NDArray[np.int32]
) -> tuple[Float32Array, RecordArray]:
    """Return the log-probability of `token_id` [n] and the `num_top` [n] best tokens of each row.

    The best are LOGPROB[sum of num_top], best first, row after row.
    """
    logprobs = torch.log_softmax(logits, dim=1)
    actual = logprobs.gather(1, torch.from_numpy(token_id).long().unsqueeze(1)).squeeze(1)
    most = int(num_top.max(initial=0))
    top = np.empty(int(num_top.sum()), dtype=LOGPROB)
    if most:
        values, ids = logprobs.topk(min(most, logits.shape[1]), dim=1)
        used = np.arange(values.shape[1]) < num_top[:, None]
        top["token_id"], top["logprob"] = ids.numpy()[used], values.numpy()[used]
    return actual.numpy(), top
