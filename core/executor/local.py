"""The executor that runs a model on a device of this machine.

Owns: loading in order (device, kernels, weights, KV pool, warm-up, the costs of steps), and the
timing of steps. Never knows: rings, doorbells or configuration files; it is given plain settings,
the shared rows and the token arenas as arrays, and a clock; nor how its device computes
(`core.executor.device`).

With `tensor_parallel` it is one rank of several. They meet when each has read its weights, agree on
the number of blocks, and from then on compute the same plans: all have all logits, so each draws
the same tokens by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from core.clock import Clock
from core.executor.backend import Backend
from core.executor.device import Device, SwapCopies
from core.executor.devices import open_device
from core.executor.group import expect_alike, shared_budget, smallest_budget, sum_of_all
from core.executor.input_batch import RowTable
from core.executor.model_runner import LaunchedStep, ModelRunner
from core.executor.protocol import (
    NO_STATISTICS,
    DoneStep,
    ExecutorInfo,
    ExecutorSettings,
    ExecutorStatistics,
    RunningStep,
)
from core.executor.step_timing import (
    StepShape,
    StepTimer,
    copy_speed,
    known_or_measured,
    run_step,
)
from core.kernels.kernel_set import KernelSet
from core.models.decoder import Decoder
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.models.sharding import divide_decoder
from core.parallel.ranks import Ranks
from core.policy.calibration import MeasuredStep
from core.policy.cost_model import CostBasis
from core.scheduler.plan import NO_COPIES, PLAN_ROW, RecordArray, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class _Running:
    """See `core.executor.protocol.RunningStep`."""

    step: LaunchedStep
    collect: Callable[[], StepResult]

    def is_done(self) -> bool:
        return self.step.is_done()


class LocalExecutor:
    """See `core.executor.protocol.Executor`."""

    def __init__(
        self,
        settings: ExecutorSettings,
        rows: RecordArray,
        spans: Sequence[npt.NDArray[np.int32]],
        clock: Clock,
        open_device: Callable[[ExecutorSettings], Device] = open_device,
    ) -> None:
        """`rows` is row_dtype[max_num_seqs], `spans` the int32 arena of each tokenizer."""
        self._settings = settings
        self._rows = rows
        self._spans = spans
        self._clock = clock
        self._open_device = open_device
        self._device: Device | None = None
        self._runner: ModelRunner | None = None
        self._swap_space: SwapCopies | None = None
        self._finished_ns = 0
        self._statistics = NO_STATISTICS

    def load(self) -> ExecutorInfo:
        """Load the model, allocate the KV pool, run one warm-up step."""
        settings = self._settings
        device = self._device = self._open_device(settings)
        ranks = device.make_ranks()
        free_bytes = device.free_bytes()
        with torch.inference_mode(), device.loading():
            model, kernels = self._load_model(device, ranks)
            ranks.join()
            expect_alike(device, ranks)
            own = device.demand(model)
            budget_of_all = shared_budget if device.shares_memory else smallest_budget
            budget = budget_of_all(own, free_bytes, ranks)
            caches = device.allocate(model, budget.num_blocks)
            num_host_blocks = settings.swap_memory_bytes // sum_of_all(own.block_bytes, ranks)
            self._swap_space = device.make_swap_space(caches, num_host_blocks)
            backend = device.make_backend(model, caches, self._rows)
            self._runner = self._make_runner(backend)
            basis = self._basis(device, backend, kernels, ranks)
            swap_gb_per_s = copy_speed(
                self._swap_space, min(budget.num_blocks, num_host_blocks), own.block_bytes,
                self._clock,
            )  # fmt: skip
        return ExecutorInfo(
            num_kv_blocks=budget.num_blocks,
            block_size=settings.block_size,
            max_model_len=model.num_positions,
            vocab_size=model.config.vocab_size,
            weights_bytes=model.weights.num_bytes,
            kv_bytes=budget.num_blocks * own.block_bytes,
            kernel_path=kernels.path,
            device_name=device.name,
            threads=device.threads,
            memory_table=budget.table,
            basis=basis,
            num_host_blocks=num_host_blocks,
            block_bytes=own.block_bytes,
            swap_gb_per_s=swap_gb_per_s,
        )

    def launch(self, plan: StepPlan) -> RunningStep:
        """Begin with one step."""
        assert self._runner is not None, "launch before load"
        assert self._swap_space is not None, "launch before load"
        started_ns = self._clock.now_ns()
        with torch.inference_mode():
            self._swap_space.copy(plan.copies)
            step = self._runner.launch(plan.rows)
        num_tokens = int(plan.rows["num_new_tokens"].sum())
        heading = plan._replace(rows=np.empty(0, PLAN_ROW), copies=NO_COPIES)
        running = _Running(step, lambda: self._finish(heading, num_tokens, started_ns, step))
        return running if self._runner.runs_ahead else DoneStep(running.collect())

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step."""
        return self.launch(plan).collect()

    def forget_rows(self) -> None:
        """Drop what was kept per row; weights and the KV pool stay."""
        if self._runner is not None:
            self._runner.forget_rows()

    def statistics(self) -> ExecutorStatistics:
        """Return counters, and how the device is."""
        if self._device is None:
            return self._statistics
        return replace(self._statistics, device=self._device.readings(self._clock.now_ns()))

    def _load_model(self, device: Device, ranks: Ranks) -> tuple[Decoder, KernelSet]:
        settings = self._settings
        whole = read_model_config(settings.model_directory)
        config = divide_decoder(whole, ranks.size)[ranks.rank].config
        kernels = device.make_kernels(config)
        model = Decoder(
            config,
            load_weights(settings.model_directory, whole, kernels, ranks),
            kernels,
            block_size=settings.block_size,
            num_positions=min(settings.max_model_len, config.max_position),
        )
        return model, kernels

    def _make_runner(self, backend: Backend) -> ModelRunner:
        """Return the runner, after a step of one token in block 0, which nobody holds yet."""
        config, block_size = backend.model.config, backend.model.attention_shape.block_size
        table = RowTable(
            self._rows, self._spans, vocab_size=config.vocab_size, block_size=block_size
        )
        if len(self._rows):
            run_step(backend, StepShape(1, 1, 0), np.zeros(1, np.int32))
        return ModelRunner(backend, table)

    def _basis(
        self, device: Device, backend: Backend, kernels: KernelSet, ranks: Ranks
    ) -> CostBasis | None:
        """Return what steps cost, by an earlier start on this machine if there was one."""
        settings, model = self._settings, backend.model
        facts = (
            device.facts, settings.dtype, settings.quantization, settings.block_size,
            kernels.name, model.config, model.num_positions,
            *((ranks.size, ranks.rank) if ranks.size > 1 else ()),
        )  # fmt: skip

        def measure(shapes: Sequence[StepShape]) -> list[MeasuredStep]:
            scratch = device.make_scratch_backend(backend)
            return StepTimer(scratch, len(self._rows), self._clock, ranks).measure(shapes)

        return known_or_measured(settings.cache_directory, facts, measure, ranks)

    def _finish(
        self, plan: StepPlan, num_tokens: int, launched_ns: int, step: LaunchedStep
    ) -> StepResult:
        """Return the result; a step that was launched while another one ran began at its end.

        Of `plan` only the heading is there: its rows are the scheduler's again.
        """
        assert self._runner is not None, "finish before load"
        with torch.inference_mode():
            rows, logprobs = self._runner.collect(step)
        started_ns = max(launched_ns, self._finished_ns)
        self._finished_ns = self._clock.now_ns()
        result = StepResult(
            replica=plan.replica,
            epoch=plan.epoch,
            step=plan.step,
            started_ns=started_ns,
            finished_ns=self._finished_ns,
            rows=rows,
            logprobs=logprobs,
            scheduler_epoch=plan.scheduler_epoch,
        )
        self._statistics = self._statistics.after(num_tokens, result)
        return result
