"""A model of Triton kernels on a device, step by step: see `core.executor.backend.Backend`.

Owns: the order of a step on the device. Never knows: plans, results, clocks. The host only says
what is to be done: it sends a step's numbers as one piece, queues the kernels, and goes on. Tokens
are fed back on the device. A step of decodes alone replays a graph if there is one with room for
it, any other step is launched kernel by kernel.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from core.executor.backend import Answer, Scores
from core.executor.gpu.decode_graphs import Capture, DecodeGraphs, record
from core.executor.gpu.device_batch import Bucket, DeviceStep, empty_step, host_step
from core.executor.gpu.device_rows import DeviceRows
from core.executor.gpu.device_sampler import DeviceSampler
from core.executor.gpu.transfers import Transfers
from core.executor.input_batch import ON_DEVICE, InputBatch, Int32Array
from core.executor.sampler import Sampled
from core.executor.sampling_batch import IndexArray, SamplingBatch
from core.kernels.triton.paged_attention import AttentionStep, TritonPagedAttention
from core.models.decoder import Decoder


class TritonBackend:
    """See `core.executor.backend.Backend`."""

    keeps_tokens = True

    def __init__(
        self, model: Decoder, caches: Sequence[Tensor], *, num_rows: int, max_blocks: int
    ) -> None:
        """`caches` is a tensor [blocks, …] per layer, on the device; rows have `max_blocks`."""
        self.model = model
        self.num_blocks = caches[0].shape[0]
        self.graphs: DecodeGraphs | None = None
        self._caches = caches
        self._transfers = Transfers(caches[0].device)
        self._rows = DeviceRows(num_rows, max_blocks, caches[0].device)
        self._sampler = DeviceSampler(self._transfers, self._rows)
        self.attentions = tuple(
            each for each in model.attentions if isinstance(each, TritonPagedAttention)
        )
        assert len(self.attentions) == len(model.attentions), "a model of other kernels"

    def forward(self, batch: InputBatch) -> Tensor:
        """Queue the step's tokens."""
        step = host_step(batch, self.attentions)
        changes = self._rows.changes(batch.row, batch.block_tables)
        graph = None if self.graphs is None else self.graphs.find(step)
        if graph is not None:
            self._rows.apply(*self._transfers.send(changes))
            return graph.run(step)
        *sent, places, blocks = self._transfers.send([*step.arrays, *changes])
        self._rows.apply(places, blocks)
        return self.compute(step.named(sent))

    def record_decodes(self, buckets: Iterable[Bucket], capture: Capture) -> None:
        """Have steps of decodes recorded, a graph for each of `buckets`, largest first."""
        nothing = empty_step(self.attentions)
        self.graphs = DecodeGraphs(
            [record(bucket, nothing, self.compute, capture, self._transfers) for bucket in buckets]
        )

    def compute(self, on_device: DeviceStep) -> Tensor:
        """Queue the kernels of a step that is on the device."""
        step = on_device.tensors
        shared = AttentionStep(
            token_sequence=step.token_sequence,
            positions=step.positions,
            first_token=step.first_token,
            num_tokens=step.num_tokens,
            first_position=step.first_position,
            block_tables=self._rows.block_tables.index_select(0, step.row),
        )
        for attention, units in zip(self.attentions, on_device.units, strict=True):
            attention.use(shared, units)
        fed_back = self._rows.last_tokens.index_select(0, step.token_row)
        token_ids = torch.where(step.token_ids == int(ON_DEVICE), fed_back, step.token_ids)
        return self.model.layers(token_ids, self._caches)

    def take(self, states: Tensor, places: IndexArray) -> Tensor:
        """Return the rows `places`; neighbours are not copied."""
        first = int(places[0])
        if np.array_equal(places, np.arange(first, first + len(places))):
            return states[first : first + len(places)]
        (index,) = self._transfers.send([places.astype(np.int64)])
        return states.index_select(0, index)

    def sample(self, states: Tensor, params: SamplingBatch, row: Int32Array) -> Answer[Sampled]:
        """Queue the choice of the tokens."""
        return self._sampler.sample(self.model.logits(states), params, row)

    def score(self, states: Tensor, token_id: Int32Array, num_top: Int32Array) -> Answer[Scores]:
        """Queue the log-probabilities."""
        return self._sampler.score(self.model.logits(states), token_id, num_top)

    def end(self) -> Answer[None]:
        """Mark this place in the queue."""
        return self._transfers.mark()
