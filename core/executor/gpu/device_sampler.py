"""From logits on the device to the next tokens, which stay there; the host is told later.

Owns: the order of `core.executor.sampler`'s rules on a device. Never knows: plans or results.
Tokens are chosen by one kernel for all rows, and once more for those whose logits are adjusted.
What goes to the host is a few numbers a row, and nobody waits for them here.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from core.executor.backend import Answer, Scores
from core.executor.gpu.adjustments import Adjustments
from core.executor.gpu.device_rows import DeviceRows
from core.executor.gpu.transfers import Array, Arriving, Transfers
from core.executor.input_batch import Int32Array
from core.executor.sampler import Sampled
from core.executor.sampling_batch import IndexArray, SamplingBatch
from core.kernels.choice import min_p_floor
from core.kernels.triton.choice import DrawTensors, choose
from core.kernels.triton.logprobs import token_logprobs
from core.scheduler.plan import LOGPROB


class DeviceSampler:
    """Samples into `rows`."""

    def __init__(self, transfers: Transfers, rows: DeviceRows) -> None:
        self._transfers = transfers
        self._rows = rows
        self._adjustments = Adjustments(transfers, rows)

    def sample(self, logits: Tensor, batch: SamplingBatch, row: Int32Array) -> Answer[Sampled]:
        """Choose a token for each row of `logits` float32 [n, vocabulary]; leaves them unchanged.

        `row` int32 [n] are the rows that remember the tokens.
        """
        rules, place = self._rules(batch, row)
        token_id, finite = choose(logits, rules)
        adjusted = np.flatnonzero(batch.adjusted)
        if len(adjusted):
            self._choose_adjusted(logits, batch, adjusted, row, rules, token_id)
        self._rows.last_tokens.index_copy_(0, place, token_id)
        num_top = np.maximum(batch.num_logprobs, 0).astype(np.int32)
        wanted = np.flatnonzero(batch.num_logprobs >= 0)
        asked = [token_id, finite.int()]
        if len(wanted):
            (index,) = self._transfers.send([wanted.astype(np.int64)])
            asked += _scores(logits[index], token_id[index], int(num_top.max()))
        arrived = self._transfers.fetch(asked)
        return Arriving(arrived, lambda arrays: _sampled(arrays, num_top, wanted))

    def score(self, logits: Tensor, token_id: Int32Array, num_top: Int32Array) -> Answer[Scores]:
        """Tell the log-probabilities of `token_id` int32 [n], and of the `num_top` best a row."""
        (ids,) = self._transfers.send([token_id])
        arrived = self._transfers.fetch(_scores(logits, ids, int(num_top.max(initial=0))))
        return Arriving(arrived, lambda arrays: _unpacked(arrays, num_top))

    def _rules(self, batch: SamplingBatch, row: Int32Array) -> tuple[DrawTensors, Tensor]:
        """Return how rows are drawn, and `row` int64, on the device."""
        *rules, place = self._transfers.send(
            [
                batch.temperature, batch.top_k, batch.top_p, min_p_floor(batch.min_p),
                batch.seed.view(np.int64), batch.choice, batch.output_index, row.astype(np.int64),
            ]
        )  # fmt: skip
        return DrawTensors(*rules), place

    def _choose_adjusted(
        self,
        logits: Tensor,
        batch: SamplingBatch,
        adjusted: IndexArray,
        row: Int32Array,
        rules: DrawTensors,
        token_id: Tensor,
    ) -> None:
        """Choose anew, into `token_id`, where logits are changed before the choice."""
        (index,) = self._transfers.send([adjusted.astype(np.int64)])
        work = logits[index]
        self._adjustments.apply(work, batch, adjusted, row)
        theirs = DrawTensors(*(getattr(rules, each.name)[index] for each in fields(rules)))
        token_id.index_copy_(0, index, choose(work, theirs)[0])


def _scores(logits: Tensor, token_id: Tensor, num_top: int) -> list[Tensor]:
    """Return (log-probabilities float32 [n, 1 + k], ids int32 [n, 1 + k]): the token, the best."""
    ids = token_id.unsqueeze(1)
    if num_top:
        best = logits.topk(min(num_top, logits.shape[1]), dim=1).indices
        ids = torch.cat((ids, best.int()), dim=1)
    return [token_logprobs(logits, ids), ids]


def _sampled(arrived: Sequence[Array], num_top: Int32Array, wanted: IndexArray) -> Sampled:
    token_id, finite, *scores = arrived
    logprob = np.full(len(token_id), np.nan, dtype=np.float32)
    top = np.empty(0, dtype=LOGPROB)
    if scores:
        logprob[wanted], top = _unpacked(scores, num_top[wanted])
    top_start = (np.cumsum(num_top) - num_top).astype(np.int32)
    return Sampled(token_id, finite != 0, logprob, top_start, num_top, top)


def _unpacked(scores: Sequence[Array], num_top: Int32Array) -> Scores:
    """Return the first log-probability of each row, and the `num_top` entries that follow it."""
    logprobs, ids = scores
    used = np.arange(ids.shape[1] - 1) < num_top[:, None]
    top = np.empty(int(num_top.sum()), dtype=LOGPROB)
    top["token_id"], top["logprob"] = ids[:, 1:][used], logprobs[:, 1:][used]
    return logprobs[:, 0], top
