"""A model of random weights, and streams that decode and prefill on it, for the GPU benchmark.

Owns: Llama-3-8B's shapes and a toy's, the rows and plans of streams. Never knows: what is measured.
Streams have no scheduler: every step computes all of them, on blocks that lie all over the pool.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.executor.backend import Backend
from core.executor.input_batch import RowTable
from core.executor.model_runner import LaunchedStep, ModelRunner
from core.kernels.kernel_set import KernelSet
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig, Features, WeightNames
from core.models.decoder_weights import pack_weights
from core.models.rope_config import RopeConfig
from core.scheduler.plan import PLAN_ROW, PlanFlag, RecordArray, row_dtype

BLOCK_SIZE = 32
# Llama 3 8B as its config.json has it, and a model that an interpreter gets through.
LLAMA_3_8B = DecoderConfig(
    family="llama",
    weight_names=WeightNames(),
    features=Features(),
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=8192,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=500000.0, rotary_dim=128),
)
TOY = replace(
    LLAMA_3_8B,
    vocab_size=304,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_position=512,
    rope=RopeConfig(theta=10000.0, rotary_dim=16),
)


@dataclass(frozen=True, slots=True)
class RandomTensors:
    """Weights out of nothing, each the same for its name; see `core.models.weights.TensorSource`.

    Matrices keep the scale of their input, norms are near 1.
    """

    device: torch.device

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor."""
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        noise = torch.empty(shape, dtype=torch.float32, device=self.device)
        noise.normal_(generator=generator)
        if len(shape) == 1:
            return noise.mul_(0.1).add_(1.0).to(dtype)
        return noise.mul_(1.5 / shape[1] ** 0.5).to(dtype)


def make_model(config: DecoderConfig, kernels: KernelSet, device: torch.device) -> Decoder:
    """Return the model with weights drawn on `device`."""
    weights = pack_weights(RandomTensors(device), config, kernels)
    return Decoder(
        config, weights, kernels, block_size=BLOCK_SIZE, num_positions=config.max_position
    )


def make_pool(
    model: Decoder, num_blocks: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Return zeroed caches of all layers."""
    shape = model.attention_shape.cache_shape(num_blocks)
    return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(model.config.num_layers)]


def make_rows(num_rows: int, config: DecoderConfig) -> RecordArray:
    """Return row_dtype[num_rows] of greedy streams in as many tokens as the model has positions."""
    rows = np.zeros(num_rows, row_dtype(-(-config.max_position // BLOCK_SIZE)))
    rows["generation"], rows["top_p"], rows["repetition_penalty"] = 1, 1.0, 1.0
    rows["num_logprobs"] = rows["num_prompt_logprobs"] = -1
    rows["span_start"] = np.arange(num_rows) * config.max_position
    return rows


class Streams:
    """As many streams as `rows`, each with `context` tokens; options are fields of the rows."""

    def __init__(
        self, backend: Backend, rows: RecordArray, context: int, room: int, **options: object
    ) -> None:
        """Each may grow by `room` tokens."""
        config, count = backend.model.config, len(rows)
        random = np.random.default_rng(0)
        blocks = -(-(context + room) // BLOCK_SIZE)
        assert count * blocks <= backend.num_blocks, "more blocks than the pool has"
        order = random.permutation(backend.num_blocks)[: count * blocks]
        rows["block_table"][:, :blocks] = order.reshape(count, blocks)
        rows["prompt_len"] = context
        for name, value in options.items():
            rows[name] = value
        self.arena = random.integers(0, config.vocab_size, count * config.max_position, np.int32)
        table = RowTable(rows, [self.arena], vocab_size=config.vocab_size, block_size=BLOCK_SIZE)
        self.runner = ModelRunner(backend, table)
        self._rows = rows
        self._context = self._position = context

    def decode(self) -> LaunchedStep:
        """Launch a step of a token of every stream; the last one's tokens need not be known.

        The first one takes what the arena has, as if the prompts were all in the cache.
        """
        is_fed_back = self._position > self._context
        flags = PlanFlag.SAMPLE | (PlanFlag.FEEDBACK if is_fed_back else PlanFlag(0))
        count = len(self._rows)
        step = self.launch([self._position] * count, [1] * count, flags)
        self._position += 1
        return step

    def launch(self, first: Sequence[int], counts: Sequence[int], flags: PlanFlag) -> LaunchedStep:
        """Launch a step of so many tokens of the first streams, each from its position on."""
        plan = [
            (row, 1, count, start, int(flags))
            for row, (start, count) in enumerate(zip(first, counts, strict=True))
        ]
        return self.runner.launch(np.array(plan, PLAN_ROW))

    def write(self, position: int, token_ids: npt.NDArray[np.int32]) -> None:
        """Put the streams' tokens at `position` into their spans, as a scheduler does."""
        self.arena[self._rows["span_start"] + position] = token_ids
