"""What an executor computes on: memory, kernels and how a model gets there.

Owns: the `Device` protocol. Never knows: plans or steps. Opened once by the executor
(`core.executor.devices`), asked in this order while it loads, and from then on only the backend
that it made is used.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from core.executor.backend import Backend
from core.executor.kv_budget import KvDemand
from core.executor.protocol import DeviceReadings, ExecutorSettings
from core.kernels.kernel_set import KernelSet
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig
from core.parallel.ranks import Ranks
from core.scheduler.plan import RecordArray

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class SwapCopies(Protocol):
    """Host memory for KV blocks, and the copies between it and the pool."""

    def copy(self, copies: RecordArray) -> None:
        """Make COPY[n] before anything that is computed later, those out before those in.

        IndexError if a block is outside its memory.
        """
        ...

    def wait(self) -> None:
        """Wait until all copies are made."""
        ...


class Device(Protocol):
    """A device of this machine, for one executor."""

    @property
    def name(self) -> str:
        """What it calls itself."""
        ...

    @property
    def threads(self) -> int:
        """Compute threads of this process."""
        ...

    @property
    def facts(self) -> tuple[object, ...]:
        """What the costs of steps depend on, besides model and settings."""
        ...

    def readings(self, now_ns: int) -> DeviceReadings:
        """Return how it is, as far as it tells."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether the ranks of a replica take of the same memory, or each has its own."""
        ...

    def make_ranks(self) -> Ranks:
        """Return the group that the executor belongs to, not joined yet."""
        ...

    def loading(self) -> AbstractContextManager[None]:
        """Return what gives a lack of memory its name while a model is loaded: StartError."""
        ...

    def free_bytes(self) -> int:
        """Return how much memory may still be taken."""
        ...

    def make_kernels(self, config: DecoderConfig) -> KernelSet:
        """Return what a model of these shapes is made by."""
        ...

    def demand(self, model: Decoder) -> KvDemand:
        """Return what the loaded model takes of the memory, and of a block."""
        ...

    def allocate(self, model: Decoder, num_blocks: int) -> list[Tensor]:
        """Return the KV pool, a zeroed tensor a layer; raises StartError."""
        ...

    def make_swap_space(self, pool: Sequence[Tensor], num_blocks: int) -> SwapCopies:
        """Return host memory for so many blocks; raises StartError."""
        ...

    def make_backend(self, model: Decoder, pool: Sequence[Tensor], rows: RecordArray) -> Backend:
        """Return the model on the device, ready for its first step, for row_dtype[n] `rows`."""
        ...

    def make_scratch_backend(self, backend: Backend) -> Backend:
        """Return a backend for steps that are timed before anyone holds a block."""
        ...


def block_bytes(model: Decoder, settings: ExecutorSettings) -> int:
    """Return the size of a KV block of all layers, bytes."""
    itemsize = DTYPES[settings.dtype].itemsize
    return model.attention_shape.block_elements * itemsize * model.config.num_layers


def kv_demand(
    model: Decoder,
    settings: ExecutorSettings,
    workspace_bytes: int,
    *,
    replicas: int = 1,
    host_bytes: int = 0,
) -> KvDemand:
    """Return what an executor takes of memory that `replicas` share, swapped blocks included if
    they lie there too.
    """
    return KvDemand(
        block_bytes=block_bytes(model, settings),
        weights_bytes=model.weights.num_bytes,
        workspace_bytes=workspace_bytes,
        replicas=replicas,
        num_blocks=settings.num_kv_blocks,
        min_blocks=-(-model.num_positions // settings.block_size),
        memory_fraction=settings.kv_memory_fraction,
        limit_bytes=settings.kv_memory_limit_bytes,
        host_bytes=host_bytes,
    )


def one_line(error: Exception) -> str:
    """Return what a library says of a fault, cut to what fits into one of ours."""
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
