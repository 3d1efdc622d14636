"""One rank of a group in a process of its own; it answers with a line of JSON.

    python -m tests.parallel.rank_process DOING MEETING_PLACE RANK SIZE EXCHANGE_S [MODEL]

A group that is lost is {"lost": why}. DOING is a function of this file.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.clock import Clock
from core.errors import HeadraceError
from core.executor.cpu_device import CpuDevice
from core.executor.device import Device
from core.executor.devices import open_device
from core.executor.local import LocalExecutor
from core.executor.protocol import ExecutorSettings
from core.parallel.collective_ranks import CollectiveRanks
from core.parallel.ranks import ALONE, Ranks, agree, sum_of
from core.scheduler.plan import RecordArray
from tests.support.executor.plan_driver import PlanDriver
from tests.support.kernels.native_kernels import kernel_cache

CPU = torch.device("cpu")
JOIN_S = 60.0
Answer = dict[str, Any]


class GlooDevice(CpuDevice):
    """The CPU, whose ranks meet as those on GPUs do."""

    def __init__(self, settings: ExecutorSettings) -> None:
        super().__init__(settings)
        self._settings = settings

    def make_ranks(self) -> Ranks:
        """Return the group by torch.distributed."""
        settings = self._settings
        if settings.tensor_parallel == 1:
            return ALONE
        assert settings.meeting_place is not None
        return CollectiveRanks(
            settings.meeting_place, settings.rank, settings.tensor_parallel, CPU,
            join_s=settings.load_timeout_s, exchange_s=settings.step_timeout_s,
        )  # fmt: skip


def main() -> None:
    """Do one thing and say what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("doing")
    parser.add_argument("place", type=Path)
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("exchange_s", type=float)
    parser.add_argument("model", type=Path, nargs="?")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        answer = globals()[arguments.doing](arguments)
    except HeadraceError as error:
        answer = {"lost": str(error)}
    say(answer)


def say(answer: Answer) -> None:
    """Write one line at once."""
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def joined(arguments: argparse.Namespace) -> CollectiveRanks:
    """Return the group of this process, met."""
    ranks = CollectiveRanks(
        arguments.place, arguments.rank, arguments.size, CPU,
        join_s=arguments.exchange_s, exchange_s=arguments.exchange_s,
    )  # fmt: skip
    ranks.join()
    return ranks


def part_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return what a rank sends, the same wherever it is made."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(shape, generator=generator).mul(100).to(dtype)


def exchange(arguments: argparse.Namespace) -> Answer:
    """Exchange parts of many shapes, and sums; say whether all came as they were sent."""
    ranks = joined(arguments)
    everybody = range(ranks.size)
    whole = all(
        torch.equal(
            ranks.gather(part_of(ranks.rank, shape, dtype)),
            torch.stack([part_of(rank, shape, dtype) for rank in everybody]),
        )
        for dtype in (torch.float32, torch.bfloat16, torch.int64)
        for shape in ((), (1,), (300, 1111), (3, 0))
    )
    parts = [torch.tensor([[1e8, 1.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[-1e8, 3.0]])]
    total = sum_of(parts[ranks.rank], ranks).tolist()
    word = agree(7 + ranks.rank, ranks)
    ranks.close()
    return {"whole": whole, "sum": total, "word": word}


def keep_exchanging(arguments: argparse.Namespace) -> Answer:
    """Exchange until the group is lost; say once that it has begun."""
    ranks = joined(arguments)
    say({"joined": ranks.rank})
    while True:
        ranks.gather(torch.zeros(4))


def fall_silent(arguments: argparse.Namespace) -> Answer:
    """Join, and take no part from then on; ended by whoever started it."""
    say({"joined": joined(arguments).rank})
    time.sleep(JOIN_S)
    return {}


def serve_cpu(arguments: argparse.Namespace) -> Answer:
    """Serve by the CPU's kernels; a group of several meets by torch.distributed."""
    return serve(arguments, GlooDevice, kernel_cache())


def serve_sockets(arguments: argparse.Namespace) -> Answer:
    """Serve as an engine does on a CPU."""
    return serve(arguments, open_device, kernel_cache())


def serve_triton(arguments: argparse.Namespace) -> Answer:
    """Serve by Triton's interpreter in the place of a GPU."""
    from core.executor.gpu.gpu_device import GpuDevice  # triton is wanted here alone

    return serve(
        arguments, lambda settings: GpuDevice(settings, CPU, "interpreter"), arguments.model
    )


def serve(
    arguments: argparse.Namespace, open_it: Callable[[ExecutorSettings], Device], cache: Path
) -> Answer:
    """Load the model and serve some sequences; return their tokens and log-probabilities."""
    settings = ExecutorSettings(
        model_directory=arguments.model,
        cache_directory=cache,
        dtype="float32",
        tensor_parallel=arguments.size,
        rank=arguments.rank,
        meeting_place=arguments.place,
        load_timeout_s=JOIN_S,
        step_timeout_s=arguments.exchange_s,
        threads=1,
        max_model_len=64,
        max_num_seqs=4,
        block_size=8,
        num_kv_blocks=32,
    )

    def make(rows: RecordArray, spans: Any, clock: Clock) -> LocalExecutor:
        return LocalExecutor(settings, rows, spans, clock, open_it)

    driver = PlanDriver(make, block_size=8, num_rows=4, max_blocks=8)
    sequences = [
        driver.add(range(10, 30), 4, num_logprobs=2),
        driver.add(range(40, 47), 4, temperature=1.0, seed=3, top_k=20, num_logprobs=0),
        driver.add(range(50, 60), 3, repetition_penalty=1.3),
        driver.add(range(70, 80), 2, num_prompt_logprobs=1, num_logprobs=0),
    ]
    driver.finish(sequences, chunk_max=8)
    return {
        "outputs": [each.outputs for each in sequences],
        "logprobs": [float(x) for each in sequences for x in each.logprobs if np.isfinite(x)],
        "blocks": driver.info.num_kv_blocks,
    }


if __name__ == "__main__":
    main()
