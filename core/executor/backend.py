"""The device under a ModelRunner: one small interface, and the CPU behind it.

Owns: what a step asks of a device. Never knows: plans, results, or why a row is computed. A device
may lag behind: `sample` and `score` return answers that can be waited for, so that a step can be
given to it while the one before runs.

    CpuBackend                        this file; all is computed when it is asked for
    core.executor.gpu.backend         Triton kernels: on CUDA, or on the CPU by their interpreter
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from core.executor.input_batch import InputBatch, Int32Array
from core.executor.sampler import Sampled, sample, token_logprobs
from core.executor.sampling_batch import Float32Array, IndexArray, SamplingBatch
from core.kernels.choice import Choice
from core.kernels.paged_attention import AttentionBatch
from core.models.decoder import Decoder
from core.scheduler.plan import RecordArray

Scores = tuple[Float32Array, RecordArray]
ValueT_co = TypeVar("ValueT_co", covariant=True)


class Answer(Protocol[ValueT_co]):
    """What a device was asked for. Whoever asks in order is answered in order."""

    def is_here(self) -> bool:
        """Tell whether `get` would wait."""
        ...

    def get(self) -> ValueT_co:
        """Wait for the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Known(Generic[ValueT_co]):
    """An answer that was here at once."""

    value: ValueT_co

    def is_here(self) -> bool:
        """It is."""
        return True

    def get(self) -> ValueT_co:
        """Return it."""
        return self.value


class Backend(Protocol):
    """A model on a device, with its KV cache; not thread-safe."""

    @property
    def model(self) -> Decoder:
        """The model."""
        ...

    @property
    def num_blocks(self) -> int:
        """KV blocks of the cache."""
        ...

    @property
    def keeps_tokens(self) -> bool:
        """Whether the last sampled token of each row stays on the device.

        Then `InputBatch.token_ids` says ON_DEVICE for it, and the device fills it in.
        """
        ...

    def forward(self, batch: InputBatch) -> Tensor:
        """Compute the step's tokens; return the states [tokens or more, hidden].

        They are valid until the next step.
        """
        ...

    def take(self, states: Tensor, places: IndexArray) -> Tensor:
        """Return the rows `places` of the states."""
        ...

    def sample(self, states: Tensor, params: SamplingBatch, row: Int32Array) -> Answer[Sampled]:
        """Choose a token after each of `states` [n, hidden]; `row` int32 [n] are their rows."""
        ...

    def score(self, states: Tensor, token_id: Int32Array, num_top: Int32Array) -> Answer[Scores]:
        """Tell the log-probability of `token_id` [n] after `states`, and the best of each; see
        `core.executor.sampler.token_logprobs`.
        """
        ...

    def end(self) -> Answer[None]:
        """Return what is here when all that was asked so far is computed."""
        ...


class CpuBackend:
    """See `Backend`: the model's CPU kernels, nothing waits."""

    keeps_tokens = False

    def __init__(self, model: Decoder, caches: Sequence[Tensor], choice: Choice) -> None:
        """`caches` is a tensor [blocks, …] per layer."""
        self.model = model
        self.num_blocks = caches[0].shape[0]
        self._caches = caches
        self._choice = choice

    def forward(self, batch: InputBatch) -> Tensor:
        """Compute the step's tokens."""
        attention = attention_batch(batch)
        return self.model.forward(torch.from_numpy(batch.token_ids), attention, self._caches)

    def take(self, states: Tensor, places: IndexArray) -> Tensor:
        """Return the rows `places`."""
        return states[torch.from_numpy(places).long()]

    def sample(self, states: Tensor, params: SamplingBatch, row: Int32Array) -> Answer[Sampled]:
        """Choose the tokens at once."""
        return Known(sample(self.model.logits(states), params, self._choice))

    def score(self, states: Tensor, token_id: Int32Array, num_top: Int32Array) -> Answer[Scores]:
        """Tell the log-probabilities at once."""
        return Known(token_logprobs(self.model.logits(states), token_id, num_top))

    def end(self) -> Answer[None]:
        """It is."""
        return Known(None)


def attention_batch(batch: InputBatch) -> AttentionBatch:
    """Return what the attention must know of a step."""
    return AttentionBatch(
        first_token=batch.first_token,
        num_tokens=batch.num_tokens,
        first_position=batch.first_position,
        block_tables=batch.block_tables,
    )
