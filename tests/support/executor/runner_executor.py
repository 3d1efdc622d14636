"""The least executor: a ModelRunner on any backend, whose parts a test may look at.

Triton is imported where it is asked for: see `tests.support.kernels.triton_device`.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from core.executor.backend import Backend, CpuBackend
from core.executor.input_batch import RowTable
from core.executor.kv_pool import allocate_kv_pool
from core.executor.model_runner import ModelRunner
from core.executor.protocol import DoneStep, ExecutorInfo, ExecutorStatistics
from core.kernels.kernel_set import KernelSet
from core.kernels.selection import Kernels
from core.models.decoder import Decoder
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.scheduler.plan import RecordArray, StepPlan, StepResult
from tests.support.kernels.native_kernels import native_library

NUM_BLOCKS = 96
Spans = Sequence[npt.NDArray[np.int32]]


class RunnerExecutor:
    """Computes plans with the kernels `path`: `cpp`, `torch` or `triton`; caches begin as NaN."""

    def __init__(
        self,
        directory: Path,
        rows: RecordArray,
        spans: Spans,
        *,
        dtype: torch.dtype = torch.float32,
        path: str = "cpp",
        block_size: int = 8,
        logits_bytes_max: int = 2**24,
        device: str = "cpu",
    ) -> None:
        kernels = self._kernels(path, dtype, device)
        config = read_model_config(directory)
        weights = load_weights(directory, config, kernels)
        self.model = Decoder(
            config, weights, kernels, block_size=block_size, num_positions=config.max_position
        )
        shape = self.model.attention_shape.cache_shape(NUM_BLOCKS)
        pool = allocate_kv_pool(config.num_layers, shape, dtype)
        self.caches = [cache.to(device).fill_(math.nan) for cache in pool]
        table = RowTable(rows, spans, vocab_size=config.vocab_size, block_size=block_size)
        self.backend = self._backend(kernels, rows)
        self.runner = ModelRunner(self.backend, table, logits_bytes_max=logits_bytes_max)

    @staticmethod
    def _kernels(path: str, dtype: torch.dtype, device: str) -> KernelSet:
        if path == "triton":
            from core.kernels.triton.kernel_set import TritonKernels

            return TritonKernels(torch.device(device), dtype)
        return Kernels(native_library() if path == "cpp" else None, dtype)

    def _backend(self, kernels: KernelSet, rows: RecordArray) -> Backend:
        if isinstance(kernels, Kernels):
            return CpuBackend(self.model, self.caches, kernels.choice())
        from core.executor.gpu.backend import TritonBackend

        max_blocks = rows.dtype["block_table"].shape[0]
        return TritonBackend(self.model, self.caches, num_rows=len(rows), max_blocks=max_blocks)

    def load(self) -> ExecutorInfo:
        """Facts for the driver."""
        return ExecutorInfo(NUM_BLOCKS, 0, 512, self.model.config.vocab_size, 0, 0, "", "", 1)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one plan."""
        with torch.inference_mode():
            rows, logprobs = self.runner.run(plan.rows)
        return StepResult(plan.replica, plan.epoch, plan.step, 0, 0, rows, logprobs)

    def launch(self, plan: StepPlan) -> DoneStep:
        """Run one plan at once."""
        return DoneStep(self.execute(plan))

    def forget_rows(self) -> None:
        """Forget."""
        self.runner.forget_rows()

    def statistics(self) -> ExecutorStatistics:
        """None are kept."""
        return ExecutorStatistics(0, 0, 0, 0, 0)
