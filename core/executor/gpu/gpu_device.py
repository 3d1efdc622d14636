"""One GPU as a device: what fits into its memory, and the graphs of its decodes.

Owns: the memory profile, and the words when memory runs out. Never knows: plans. Also opened on the
CPU under Triton's interpreter, where there is nothing to measure or to record.

The temporary memory of a step is measured, not reckoned: the largest step that may come is run once
on a few blocks of its own. Graphs keep as much again, since they have memory of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from core.errors import StartError
from core.executor.backend import Backend
from core.executor.device import DTYPES, kv_demand, one_line
from core.executor.gpu.backend import TritonBackend
from core.executor.gpu.decode_graphs import CudaCapture, buckets
from core.executor.gpu.swap_space import DeviceSwapSpace
from core.executor.gpu.telemetry import open_telemetry
from core.executor.gpu.warm_up import warm_up
from core.executor.kv_budget import KvDemand, free_memory_bytes
from core.executor.model_runner import LOGITS_BYTES_MAX
from core.executor.protocol import NO_READINGS, DeviceReadings, ExecutorSettings
from core.executor.step_timing import StepShape, run_step
from core.kernels.triton.kernel_set import TritonKernels
from core.kernels.triton.work_units import NARROW_ROWS
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig
from core.parallel.collective_ranks import CollectiveRanks
from core.parallel.ranks import ALONE, Ranks
from core.scheduler.plan import RecordArray

HEADROOM_BYTES = 2**29  # the driver's part of graphs, and fragments
COLLECTIVES_BYTES = 2**29  # what NCCL takes for its links, which torch does not count


class GpuDevice:
    """See `core.executor.device.Device`."""

    threads = 1

    def __init__(self, settings: ExecutorSettings, device: torch.device, name: str) -> None:
        self._settings = settings
        self._device = device
        self.name = name
        self._telemetry = open_telemetry(device) if self.is_cuda else None

    @classmethod
    def on_cuda(cls, settings: ExecutorSettings) -> "GpuDevice":
        """Return the GPU of the executor's number, current from now on; raises StartError."""
        device = torch.device("cuda", settings.device_index)
        try:
            torch.cuda.set_device(device)
            name = torch.cuda.get_device_name(device)
        except RuntimeError as error:
            raise StartError(f"{device} cannot be used: {one_line(error)}") from error
        return cls(settings, device, name)

    @property
    def facts(self) -> tuple[object, ...]:
        """The GPU."""
        return (self.name,)

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU, and not the interpreter."""
        return self._device.type == "cuda"

    def free_bytes(self) -> int:
        """Return what the GPU leaves."""
        if self.is_cuda:
            return torch.cuda.mem_get_info(self._device)[0]
        return free_memory_bytes()

    def make_kernels(self, config: DecoderConfig) -> TritonKernels:
        """Return the Triton kernels."""
        return TritonKernels(self._device, DTYPES[self._settings.dtype])

    def readings(self, now_ns: int) -> DeviceReadings:
        """Return what NVML tells."""
        return NO_READINGS if self._telemetry is None else self._telemetry.readings(now_ns)

    @property
    def shares_memory(self) -> bool:
        """Each rank has a GPU of its own."""
        return False

    def make_ranks(self) -> Ranks:
        """Return processes whose GPUs send each other their parts."""
        settings = self._settings
        if settings.tensor_parallel == 1:
            return ALONE
        assert settings.meeting_place is not None, "ranks need a place to meet"
        return CollectiveRanks(
            settings.meeting_place,
            settings.rank,
            settings.tensor_parallel,
            self._device,
            join_s=settings.load_timeout_s,
            exchange_s=settings.step_timeout_s,
        )

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Turn a lack of memory into one line that names the GPU."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise StartError(
                f"{self._device} ({self.name}) has too little memory for the model:"
                f" {one_line(error)}"
            ) from error

    def demand(self, model: Decoder) -> KvDemand:
        """Return what this executor, alone on its GPU, takes of the memory."""
        return kv_demand(model, self._settings, self._workspace_bytes(model))

    def allocate(self, model: Decoder, num_blocks: int) -> list[Tensor]:
        """Return the KV pool."""
        shape = model.attention_shape.cache_shape(num_blocks)
        dtype = DTYPES[self._settings.dtype]
        return [
            torch.zeros(shape, dtype=dtype, device=self._device)
            for _ in range(model.config.num_layers)
        ]

    def make_swap_space(self, pool: Sequence[Tensor], num_blocks: int) -> DeviceSwapSpace:
        """Return pinned host memory."""
        return DeviceSwapSpace(pool, num_blocks)

    def make_backend(
        self, model: Decoder, pool: Sequence[Tensor], rows: RecordArray
    ) -> TritonBackend:
        """Return the model over the pool, its kernels compiled and its decodes recorded."""
        backend = self._backend(model, pool, len(rows), rows.dtype["block_table"].shape[0])
        warm_up(backend)
        if self.is_cuda:
            wanted = buckets(self._settings.max_num_seqs, model.num_positions)
            backend.record_decodes(wanted, CudaCapture())
        return backend

    def make_scratch_backend(self, backend: Backend) -> Backend:
        """Return the backend itself: its pool is in memory already, and nobody's yet."""
        return backend

    def _backend(
        self, model: Decoder, pool: Sequence[Tensor], num_rows: int, max_blocks: int
    ) -> TritonBackend:
        return TritonBackend(model, pool, num_rows=max(num_rows, 1), max_blocks=max_blocks)

    def _workspace_bytes(self, model: Decoder) -> int:
        """Return the temporary memory of any step, and of the graphs, bytes."""
        settings, shape = self._settings, model.attention_shape
        graphs = next(buckets(settings.max_num_seqs, model.num_positions))
        row_bytes = 4 * (shape.head_dim + 1)
        each = 2 * graphs.num_units * shape.num_kv_heads * NARROW_ROWS * row_bytes
        partials = each * len(model.attentions)  # one for each kind of window
        if not self.is_cuda:
            return partials
        links = COLLECTIVES_BYTES if settings.tensor_parallel > 1 else 0
        fixed = 3 * LOGITS_BYTES_MAX + HEADROOM_BYTES + links
        return 2 * self._measured_bytes(model) + partials + fixed

    def _measured_bytes(self, model: Decoder) -> int:
        """Return what the largest step takes at its peak besides what is there, bytes."""
        count = min(self._settings.max_num_batched_tokens, model.num_positions)
        max_blocks = -(-count // self._settings.block_size)
        backend = self._backend(model, self.allocate(model, max_blocks), 1, max_blocks)
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run_step(backend, StepShape(1, count, 0), np.zeros(count, np.int32))
        peak = torch.cuda.max_memory_allocated(self._device)
        del backend
        torch.cuda.empty_cache()
        # A prompt may be shorter than what a step computes of several.
        return (peak - before) * self._settings.max_num_batched_tokens // count
