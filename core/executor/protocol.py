"""What an executor is: it loads once, then turns each plan into a result.

Owns: the `Executor` protocol and the plain settings and facts that go in and come out. Never knows:
rings, doorbells, epochs' meaning, or how an implementation computes. The executor loop
(`core.runtime.executor`) holds one and feeds it plans in order; `execute` blocks for a whole step.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from core.policy.cost_model import CostBasis
from core.scheduler.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    """What an executor must be told, as plain values (see `core.config.engine.EngineConfig`)."""

    model_directory: Path
    cache_directory: Path  # compiled kernels and the costs of steps are kept here
    device: str = "cpu"  # or "cuda", or "auto": a GPU if there is one
    device_index: int = 0  # this executor's GPU: its number among all executors
    dtype: str = "bfloat16"  # or "float32"
    quantization: str = "none"  # or "int8", "int4": the weights
    replicas: int = 1  # groups of executors that share this machine's cores and memory
    tensor_parallel: int = 1  # executors of a replica: the ranks that compute its model together
    rank: int = 0  # this executor's place among them
    meeting_place: Path | None = None  # the file where ranks meet; None where there is one alone
    load_timeout_s: float = 600.0  # how long the others may take to load
    step_timeout_s: float = 30.0  # how long they may keep this one waiting in a step
    threads: int = 0  # 0 = cores this process may use divided by all executors
    max_model_len: int = 8192
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 32
    num_kv_blocks: int = 0  # 0 = from the memory that is free
    kv_memory_fraction: float = 0.35
    kv_memory_limit_bytes: int = 2**31
    swap_memory_bytes: int = 0  # host memory for the KV blocks of swapped requests
    simulated_step_us: int = 2000
    simulated_token_us: float = 1.0


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """What `load` made of the settings; the scheduler sizes its block pool by it."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int  # tokens; lowered to the model's own limit
    vocab_size: int
    weights_bytes: int
    kv_bytes: int
    kernel_path: str  # "cpp", "torch", "triton" or "simulated"
    device_name: str
    threads: int
    memory_table: tuple[tuple[str, int], ...] = ()  # (what, bytes): how the KV pool was sized
    basis: CostBasis | None = None  # what its steps cost
    num_host_blocks: int = 0  # room for the KV blocks of swapped requests
    block_bytes: int = 0
    swap_gb_per_s: float = 0.0  # as copies of such blocks were timed, one way; 0 = they were not


@dataclass(frozen=True, slots=True)
class DeviceReadings:
    """What a device says of itself, all zero where `is_known` is False."""

    is_known: bool = False
    utilization: float = 0.0  # share of the time in which it computed anything, 0 to 1
    memory_used_bytes: int = 0  # by whomever
    power_watts: float = 0.0
    temperature_celsius: float = 0.0


NO_READINGS = DeviceReadings()


@dataclass(frozen=True, slots=True)
class ExecutorStatistics:
    """Counters since `load`, and how the device is."""

    steps: int
    tokens: int  # computed positions
    sampled_tokens: int
    row_errors: int
    busy_ns: int  # time inside `execute`
    device: DeviceReadings = NO_READINGS

    def after(self, num_tokens: int, result: StepResult) -> "ExecutorStatistics":
        """Return the counters one step of so many computed positions later."""
        return ExecutorStatistics(
            steps=self.steps + 1,
            tokens=self.tokens + num_tokens,
            sampled_tokens=self.sampled_tokens
            + int(np.count_nonzero(result.rows["token_id"] >= 0)),
            row_errors=self.row_errors + int(np.count_nonzero(result.rows["error"])),
            busy_ns=self.busy_ns + result.finished_ns - result.started_ns,
        )


NO_STATISTICS = ExecutorStatistics(0, 0, 0, 0, 0)


class RunningStep(Protocol):
    """A step that was launched. Steps are collected in the order in which they were launched."""

    def is_done(self) -> bool:
        """Tell whether `collect` would wait."""
        ...

    def collect(self) -> StepResult:
        """Wait for the end of the step; called once."""
        ...


@dataclass(frozen=True, slots=True)
class DoneStep:
    """A step that was computed when it was launched."""

    result: StepResult

    def is_done(self) -> bool:
        """It is."""
        return True

    def collect(self) -> StepResult:
        """Return the result."""
        return self.result


class Executor(Protocol):
    """One replica's compute. Not thread-safe; called by one loop."""

    def load(self) -> ExecutorInfo:
        """Load the model and allocate the KV pool; raises ModelError or StartError."""
        ...

    def launch(self, plan: StepPlan) -> RunningStep:
        """Begin with one step; plan, rows and spans are not read any more when this returns.

        An executor that computes by itself is done then; a device goes on, and takes the next step
        meanwhile.
        """
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute one step. Rows that cannot be computed carry an error; the others are unharmed.

        Plans come in the scheduler's order; a row with FEEDBACK starts with the token that the
        same row and generation sampled last. The copies of a plan come first, those out before
        those in: that is how blocks are swapped out and in.
        """
        ...

    def forget_rows(self) -> None:
        """Drop what was kept per row: another scheduler plans from now on, and its rows and
        generations begin anew. Weights and the KV pool stay.
        """
        ...

    def statistics(self) -> ExecutorStatistics:
        """Return counters."""
        ...
