"""The executor that runs a model on this machine's CPU.

Owns: loading in order (threads, kernels, weights, KV pool, one warm-up step, the costs of steps)
and the timing of steps. Never knows: rings, doorbells or configuration files; it is given plain
settings, the shared rows and the token arenas as arrays, and a clock.

With `tensor_parallel` it is one rank of several. They meet when each has read its weights, agree on
the number of blocks, and from then on compute the same plans: all have all logits, so each draws
the same tokens by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.clock import Clock
from core.executor.backend import CpuBackend
from core.executor.input_batch import RowTable
from core.executor.kv_budget import KvBudget, KvDemand, budget_kv, free_memory_bytes
from core.executor.kv_pool import SwapSpace, allocate_kv_pool
from core.executor.model_runner import LOGITS_BYTES_MAX, ModelRunner
from core.executor.protocol import NO_STATISTICS, ExecutorInfo, ExecutorSettings, ExecutorStatistics
from core.executor.step_timing import StepTimer, copy_speed, known_or_measured
from core.executor.threads import available_cores, resolve_threads
from core.kernels.matrix import QUANTIZATIONS
from core.kernels.paged_attention import AttentionBatch
from core.kernels.selection import Kernels, select_kernels
from core.models.decoder import Decoder
from core.models.decoder_config import DecoderConfig
from core.models.decoder_weights import load_weights
from core.models.model_config import read_model_config
from core.models.sharding import divide_decoder
from core.parallel.ranks import ALONE, Ranks
from core.parallel.socket_ranks import SocketRanks
from core.policy.cost_model import CostBasis
from core.scheduler.plan import RecordArray, StepPlan, StepResult

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class LocalExecutor:
    """See `core.executor.protocol.Executor`."""

    def __init__(
        self,
        settings: ExecutorSettings,
        rows: RecordArray,
        spans: Sequence[npt.NDArray[np.int32]],
        clock: Clock,
    ) -> None:
        """`rows` is row_dtype[max_num_seqs], `spans` the int32 arena of each tokenizer."""
        self._settings = settings
        self._rows = rows
        self._spans = spans
        self._clock = clock
        self._runner: ModelRunner | None = None
        self._swap_space: SwapSpace | None = None
        self._statistics = NO_STATISTICS

    def load(self) -> ExecutorInfo:
        """Load the model, allocate the KV pool, run one warm-up step."""
        settings = self._settings
        free_bytes = free_memory_bytes()
        ranks = ranks_of(settings)
        threads = resolve_threads(settings.threads, settings.replicas * ranks.size)
        torch.set_num_threads(threads)
        with torch.inference_mode():
            whole = read_model_config(settings.model_directory)
            config = divide_decoder(whole, ranks.size)[ranks.rank].config
            kernels = select_kernels(
                settings.cache_directory,
                DTYPES[settings.dtype],
                quantization=QUANTIZATIONS[settings.quantization],
                head_dim=config.head_dim,
                widths=(config.hidden_size, config.q_size, config.intermediate_size),
            )
            model = Decoder(
                config,
                load_weights(settings.model_directory, whole, kernels, ranks),
                kernels,
                block_size=settings.block_size,
                num_positions=min(settings.max_model_len, config.max_position),
            )
            ranks.join()
            own = kv_demand(model, settings)
            demand, free_bytes = demand_of_all(own, free_bytes, ranks)
            budget = budget_kv(free_bytes, demand)
            caches = allocate_caches(model, kernels, budget)
            num_host_blocks = settings.swap_memory_bytes // demand.block_bytes
            self._swap_space = SwapSpace(caches, num_host_blocks)
            self._runner = self._make_runner(model, kernels, caches)
            basis = self._basis(model, kernels, threads, ranks)
            swap_gb_per_s = copy_speed(
                self._swap_space, min(budget.num_blocks, num_host_blocks), own.block_bytes,
                self._clock,
            )  # fmt: skip
        return ExecutorInfo(
            num_kv_blocks=budget.num_blocks,
            block_size=settings.block_size,
            max_model_len=model.num_positions,
            vocab_size=config.vocab_size,
            weights_bytes=model.weights.num_bytes,
            kv_bytes=budget.num_blocks * own.block_bytes,
            kernel_path=kernels.path,
            device_name=cpu_name(),
            threads=threads,
            memory_table=budget.table,
            basis=basis,
            num_host_blocks=num_host_blocks,
            block_bytes=own.block_bytes,
            swap_gb_per_s=swap_gb_per_s,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step."""
        assert self._runner is not None, "execute before load"
        assert self._swap_space is not None, "execute before load"
        started_ns = self._clock.now_ns()
        with torch.inference_mode():
            self._swap_space.copy(plan.copies)
            rows, logprobs = self._runner.run(plan.rows)
        result = StepResult(
            replica=plan.replica,
            epoch=plan.epoch,
            step=plan.step,
            started_ns=started_ns,
            finished_ns=self._clock.now_ns(),
            rows=rows,
            logprobs=logprobs,
            scheduler_epoch=plan.scheduler_epoch,
        )
        self._statistics = self._statistics.after(plan, result)
        return result

    def forget_rows(self) -> None:
        """Drop what was kept per row; weights and the KV pool stay."""
        if self._runner is not None:
            self._runner.forget_rows()

    def statistics(self) -> ExecutorStatistics:
        """Return counters."""
        return self._statistics

    def _make_runner(self, model: Decoder, kernels: Kernels, caches: list[Tensor]) -> ModelRunner:
        config, shape = model.config, model.attention_shape
        table = RowTable(
            self._rows, self._spans, vocab_size=config.vocab_size, block_size=shape.block_size
        )
        choice = kernels.choice()
        hidden = model.forward(torch.zeros(1, dtype=torch.int32), first_block_batch(), caches)
        choice.argmax(model.logits(hidden))
        return ModelRunner(CpuBackend(model, caches, choice), table)

    def _basis(
        self, model: Decoder, kernels: Kernels, threads: int, ranks: Ranks
    ) -> CostBasis | None:
        """Return what steps cost, by an earlier start on this machine if there was one."""
        settings = self._settings
        facts = (
            cpu_name(), available_cores(), threads, settings.replicas, settings.dtype,
            settings.quantization, settings.block_size, kernels.name, model.config,
            model.num_positions, *((ranks.size, ranks.rank) if ranks.size > 1 else ()),
        )  # fmt: skip
        return known_or_measured(
            settings.cache_directory,
            facts,
            lambda: StepTimer(model, kernels.choice(), kernels.dtype, self._clock, ranks).measure(),
            ranks,
        )


def ranks_of(settings: ExecutorSettings) -> Ranks:
    """Return the group that the executor belongs to, not joined yet."""
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


def demand_of_all(own: KvDemand, free_bytes: int, ranks: Ranks) -> tuple[KvDemand, int]:
    """Return what the whole replica needs, and the most that any of its ranks found free.

    Whoever looked last may have looked when the others had their weights already.
    """
    numbers = torch.tensor([own.block_bytes, own.weights_bytes, own.workspace_bytes, free_bytes])
    everybody = ranks.gather(numbers)
    block_bytes, weights_bytes, workspace_bytes, _ = everybody.sum(0).tolist()
    demand = replace(
        own,
        block_bytes=block_bytes,
        weights_bytes=weights_bytes,
        workspace_bytes=workspace_bytes,
        ranks=ranks.size,
    )
    return demand, int(everybody[:, 3].max())


def allocate_caches(model: Decoder, kernels: Kernels, budget: KvBudget) -> list[Tensor]:
    """Return the KV pool: a tensor a layer."""
    layer_shape = model.attention_shape.cache_shape(budget.num_blocks)
    return allocate_kv_pool(model.config.num_layers, layer_shape, kernels.dtype)


def first_block_batch() -> AttentionBatch:
    """Return a batch of one token in block 0: a step that is safe before anyone holds blocks."""
    zero = np.zeros(1, dtype=np.int32)
    return AttentionBatch(zero, np.ones(1, dtype=np.int32), zero, zero.reshape(1, 1))


def kv_demand(model: Decoder, settings: ExecutorSettings) -> KvDemand:
    """Return what one executor needs of the memory, its host blocks those of all ranks."""
    config, itemsize = model.config, DTYPES[settings.dtype].itemsize
    return KvDemand(
        block_bytes=model.attention_shape.block_elements * itemsize * config.num_layers,
        weights_bytes=model.weights.num_bytes,
        workspace_bytes=workspace_bytes(
            config, settings.max_num_batched_tokens, itemsize, settings.tensor_parallel
        ),
        replicas=settings.replicas,
        num_blocks=settings.num_kv_blocks,
        min_blocks=-(-model.num_positions // settings.block_size),
        memory_fraction=settings.kv_memory_fraction,
        limit_bytes=settings.kv_memory_limit_bytes,
        host_bytes=settings.swap_memory_bytes,
    )


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
