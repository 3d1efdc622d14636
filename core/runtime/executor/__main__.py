"""`python -P -m core.runtime.executor FD`: one executor, started by its supervisor.

Owns: the way from what was inherited to a loaded executor and its running loop. Never knows: plans.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from core.clock import NS_PER_MS, NS_PER_S, Clock
from core.config.file import config_from_json
from core.config.headrace import HeadraceConfig
from core.errors import HeadraceError, RanksError
from core.executor.factory import make_executor
from core.executor.protocol import Executor, ExecutorInfo, ExecutorSettings
from core.executor.threads import NICENESS
from core.model_card import ModelCard, card_from_json
from core.monotonic_clock import MonotonicClock
from core.runtime.arrays import attach_arenas, attach_rows
from core.runtime.executor.channels import attach_executor
from core.runtime.executor.loop import ExecutorLoop, show_info
from core.runtime.loop import Wakeups, run_loop
from core.supervision.actions import EXIT_LOST_RANK, EXIT_OK, EXIT_UNUSABLE
from core.user_directories import cache_directory
from ipc.child import Child
from ipc.heartbeat import HeartbeatState


def executor_settings(
    config: HeadraceConfig,
    card: ModelCard,
    cache: Path,
    replica: int,
    rank: int,
    meeting_place: Path,
) -> ExecutorSettings:
    """Return what an executor must be told; kernels are kept below the directory `cache`."""
    names = (
        "device", "dtype", "quantization", "replicas", "tensor_parallel", "threads",
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_kv_blocks",
        "kv_memory_fraction", "kv_memory_limit_bytes", "swap_memory_bytes", "simulated_step_us",
        "simulated_token_us",
    )  # fmt: skip
    return ExecutorSettings(
        model_directory=Path(card.path),
        cache_directory=cache / "kernels",
        device_index=replica * config.engine.tensor_parallel + rank,
        rank=rank,
        meeting_place=meeting_place,
        load_timeout_s=config.supervision.load_timeout_ms * NS_PER_MS / NS_PER_S,
        step_timeout_s=config.supervision.step_timeout_ms * NS_PER_MS / NS_PER_S,
        **{name: getattr(config.engine, name) for name in names},
    )


def load_executor(
    child: Child, config: HeadraceConfig, card: ModelCard, clock: Clock
) -> tuple[Executor, ExecutorInfo]:
    """Return the configured executor, loaded; raises HeadraceError."""
    replica, rank = map(int, child.child_id.split(".")[1:])
    meeting_place = child.run_directory.ranks(replica, child.epoch)
    executor = make_executor(
        config.engine.executor,
        executor_settings(config, card, cache_directory(os.environ), replica, rank, meeting_place),
        attach_rows(child, config)[replica],
        attach_arenas(child, config),
        clock,
        lambda wait_ns: time.sleep(wait_ns / NS_PER_S),
    )
    return executor, executor.load()


def main(argv: Sequence[str]) -> int:
    """Run one executor until SIGTERM; a model that cannot be loaded is one line and a code that
    tells the supervisor not to try again, a lost rank one that lets it.
    """
    child = Child.attach(argv)
    try:
        run(child, MonotonicClock())
    except HeadraceError as error:
        child.tell_fault(error)
        return EXIT_LOST_RANK if isinstance(error, RanksError) else EXIT_UNUSABLE
    return EXIT_OK


def run(child: Child, clock: Clock) -> None:
    """Load the executor and compute plans until SIGTERM; raises HeadraceError."""
    child.stamp(HeartbeatState.LOADING, clock.now_ns())
    os.nice(NICENESS)
    config = config_from_json(bytes(child.setup.config))
    card = card_from_json(child.setup.model)
    channels, doorbells = attach_executor(child)
    executor, info = load_executor(child, config, card, clock)
    show_info(info, card.name, channels.page, clock.now_ns())
    child.serving()
    supervision = config.supervision
    run_loop(
        ExecutorLoop(
            executor,
            child.epoch,
            supervision.step_timeout_ms * NS_PER_MS,
            config.engine.pipeline_depth,
        ),
        channels,
        clock=clock,
        stamp=child.stamp,
        wakeups=Wakeups([*doorbells, child.stop_doorbell]),
        heartbeat_ns=supervision.heartbeat_ms * NS_PER_MS,
        is_stopping=lambda: child.stop_requested,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
