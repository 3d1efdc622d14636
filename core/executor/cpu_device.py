"""This machine's CPU as a device: C++ kernels, memory from the kernel, threads bound elsewhere.

Owns: the arithmetic of a step's temporary memory, and the scratch blocks of timed steps. Never
knows: plans.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from core.errors import StartError
from core.executor.backend import Backend, CpuBackend
from core.executor.device import DTYPES, kv_demand, one_line
from core.executor.kv_budget import KvDemand, free_memory_bytes
from core.executor.kv_pool import SwapSpace, allocate_kv_pool
from core.executor.model_runner import LOGITS_BYTES_MAX
from core.executor.protocol import NO_READINGS, DeviceReadings, ExecutorSettings
from core.executor.threads import available_cores, resolve_threads
from core.kernels.choice import Choice
from core.kernels.matrix import QUANTIZATIONS
from core.kernels.selection import Kernels, select_kernels
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig
from core.parallel.ranks import ALONE, Ranks
from core.parallel.socket_ranks import SocketRanks
from core.scheduler.plan import RecordArray

OUT_OF_MEMORY = (
    "DefaultCPUAllocator"  # in the words of torch, whose exception has no class of its own
)
SCRATCH_TOKENS = 2048
SCRATCH_BYTES_MAX = 2**27


class CpuDevice:
    """See `core.executor.device.Device`."""

    def __init__(self, settings: ExecutorSettings) -> None:
        self._settings = settings
        self.name = cpu_name()
        self.threads = resolve_threads(
            settings.threads, settings.replicas * settings.tensor_parallel
        )
        torch.set_num_threads(self.threads)
        self._dtype = DTYPES[settings.dtype]
        self._kernels: Kernels | None = None

    @property
    def facts(self) -> tuple[object, ...]:
        """The CPU and how it is shared."""
        return self.name, available_cores(), self.threads, self._settings.replicas

    def readings(self, now_ns: int) -> DeviceReadings:
        """The machine's own tools tell more."""
        return NO_READINGS

    @property
    def shares_memory(self) -> bool:
        """All ranks are processes of this machine."""
        return True

    def make_ranks(self) -> Ranks:
        """Return processes that send each other their parts."""
        settings = self._settings
        if settings.tensor_parallel == 1:
            return ALONE
        assert settings.meeting_place is not None, "ranks need a place to meet"
        return SocketRanks(
            settings.meeting_place,
            settings.rank,
            settings.tensor_parallel,
            join_s=settings.load_timeout_s,
            exchange_s=settings.step_timeout_s,
        )

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Turn a refusal of memory into one line; what was promised and is not there ends the
        process without a word.
        """
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and OUT_OF_MEMORY not in str(error):
                raise
            raise StartError(
                f"this machine ({self.name}) has too little memory for the model: {one_line(error)}"
            ) from error

    def free_bytes(self) -> int:
        """Return what the machine and the cgroup leave."""
        return free_memory_bytes()

    def make_kernels(self, config: DecoderConfig) -> Kernels:
        """Return the C++ kernels, or the references where they do not fit."""
        settings = self._settings
        self._kernels = select_kernels(
            settings.cache_directory,
            self._dtype,
            quantization=QUANTIZATIONS[settings.quantization],
            head_dim=config.head_dim,
            widths=(config.hidden_size, config.q_size, config.intermediate_size),
        )
        return self._kernels

    def demand(self, model: Decoder) -> KvDemand:
        """Return what one executor needs of the memory, its host blocks those of all ranks."""
        settings = self._settings
        workspace = workspace_bytes(
            model.config,
            settings.max_num_batched_tokens,
            self._dtype.itemsize,
            settings.tensor_parallel,
        )
        return kv_demand(
            model,
            settings,
            workspace,
            replicas=settings.replicas,
            host_bytes=settings.swap_memory_bytes,
        )

    def allocate(self, model: Decoder, num_blocks: int) -> list[Tensor]:
        """Return the KV pool, whose pages appear when they are first written."""
        shape = model.attention_shape.cache_shape(num_blocks)
        return allocate_kv_pool(model.config.num_layers, shape, self._dtype)

    def make_swap_space(self, pool: Sequence[Tensor], num_blocks: int) -> SwapSpace:
        """Return memory like that of the pool."""
        return SwapSpace(pool, num_blocks)

    def make_backend(self, model: Decoder, pool: Sequence[Tensor], rows: RecordArray) -> CpuBackend:
        """Return the model over the pool."""
        return CpuBackend(model, pool, self._choice())

    def make_scratch_backend(self, backend: Backend) -> CpuBackend:
        """Return the model over blocks of its own, so that the pool's pages stay untouched."""
        model = backend.model
        shape, dtype = model.attention_shape, self._dtype
        of_a_block = prod(shape.cache_shape(1)) * dtype.itemsize * model.config.num_layers
        most = max(1, SCRATCH_BYTES_MAX // of_a_block)
        num_blocks = min(most, -(-SCRATCH_TOKENS // shape.block_size))
        scratch = allocate_kv_pool(model.config.num_layers, shape.cache_shape(num_blocks), dtype)
        for cache in scratch:
            cache.zero_()
        return CpuBackend(model, scratch, self._choice())

    def _choice(self) -> Choice:
        assert self._kernels is not None, "a backend before its kernels"
        return self._kernels.choice()


def workspace_bytes(
    config: DecoderConfig, max_num_batched_tokens: int, itemsize: int, num_ranks: int = 1
) -> int:
    """Return an upper bound of a step's temporary memory: activations of a layer, and logits.

    Ranks hold everybody's part of both, a layer's in float32.
    """
    width = 4 * config.hidden_size + 2 * config.q_size + 2 * config.kv_size
    width += 2 * config.intermediate_size
    token_bytes, num_logits = width * itemsize, 3
    if num_ranks > 1:
        token_bytes += 4 * (1 + num_ranks) * config.hidden_size
        num_logits += 3
    return max_num_batched_tokens * token_bytes + num_logits * LOGITS_BYTES_MAX


def cpu_name(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's model name, "cpu" if the machine does not say."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "cpu"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")
