"""Logit bias, min_tokens and penalties on the device: rules 2 and 3 of `core.executor.sampler`.

Owns: their arithmetic, which is the CPU's. Never knows: who asked, or what is chosen. Rows that
have penalties get two planes as wide as the vocabulary, of what was seen and how often it was
generated: nothing is sorted, and tokens that only the device knows count like all others.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from core.executor.gpu.device_rows import DeviceRows
from core.executor.gpu.transfers import Array, Transfers
from core.executor.input_batch import ON_DEVICE, Int32Array
from core.executor.sampling_batch import IndexArray, SamplingBatch, TokenTriples


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Changes the logits of the rows that ask for it."""

    transfers: Transfers
    rows: DeviceRows

    def apply(
        self, logits: Tensor, batch: SamplingBatch, adjusted: IndexArray, row: Int32Array
    ) -> None:
        """Change logits float32 [adjusted, vocabulary] in place.

        Its rows are the sequences `adjusted` of the batch; `row` int32 [sequences] are their rows.
        """
        place = np.full(len(row), -1, dtype=np.int64)
        place[adjusted] = np.arange(len(adjusted))
        for triples in (batch.bias, batch.forbidden):
            if len(triples.index):
                self._add(logits, triples, place)
        if len(batch.history.index):
            self._penalize(logits, batch, place, row)

    def _add(self, logits: Tensor, triples: TokenTriples, place: IndexArray) -> None:
        width = logits.shape[1]
        inside = (triples.token_id >= 0) & (triples.token_id < width)
        keys = place[triples.index[inside]] * width + triples.token_id[inside]
        where, values = self.transfers.send([keys, triples.value[inside]])
        logits.view(-1).index_add_(0, where, values)

    def _penalize(
        self, logits: Tensor, batch: SamplingBatch, place: IndexArray, row: Int32Array
    ) -> None:
        """Penalize what was seen; planes have a last column for tokens outside the vocabulary."""
        history, width = batch.history, logits.shape[1]
        users, user = np.unique(history.index, return_inverse=True)
        outside = (history.token_id >= width) | (
            (history.token_id < 0) & (history.token_id != ON_DEVICE)
        )
        token_id = np.where(outside, np.int32(width), history.token_id)
        known: list[Array] = [
            place[users],
            row[history.index],
            token_id,
            user.astype(np.int64),
            history.value,
        ]
        penalties = [
            each[users]
            for each in (
                batch.repetition_penalty, batch.frequency_penalty, batch.presence_penalty,
            )
        ]  # fmt: skip
        where, rows, ids, owner, value, *factors = self.transfers.send([*known, *penalties])
        ids = torch.where(ids == int(ON_DEVICE), self.rows.last_tokens[rows], ids)
        keys = owner * (width + 1) + ids
        seen = torch.zeros(len(users), width + 1, dtype=torch.bool, device=logits.device)
        seen.view(-1).index_fill_(0, keys, True)
        generated = torch.zeros(seen.shape, dtype=torch.float32, device=logits.device)
        generated.view(-1).index_add_(0, keys, value)
        penalized = _penalized(logits[where], seen[:, :width], generated[:, :width], *factors)
        logits.index_copy_(0, where, penalized)


def _penalized(
    logits: Tensor,
    seen: Tensor,
    generated: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Return logits [users, vocabulary] of which those seen are changed; penalties [users]."""
    factor = repetition.unsqueeze(1)
    values = torch.where(logits > 0, logits / factor, logits * factor)
    values -= frequency.unsqueeze(1) * generated
    values -= presence.unsqueeze(1) * (generated > 0)
    return torch.where(seen, values, logits)
