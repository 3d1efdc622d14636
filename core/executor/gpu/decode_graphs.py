"""Steps of decodes as graphs: recorded once for each bucket, replayed with other numbers.

Owns: the buckets, and the memory that a graph reads its numbers from. Never knows: how a device
records (`Capture`). A launch costs the host as much time as a small kernel takes the device, and a
decode has some hundred of them; a graph is one launch. What it reads and writes lies at the same
addresses each time, and its grids are as large as its bucket: what a step does not fill is padding.

Buckets have room for some number of sequences, and each for a number of attention units: one a
sequence as long as no context is in parts, or a few for each on average.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.executor.gpu.device_batch import Bucket, DeviceStep, HostStep
from core.executor.gpu.transfers import Transfers, packed_bytes
from core.kernels.triton.work_units import SPLIT_KEYS

SMALL = (1, 2, 4, 8)  # sequences; further buckets are `SPACING` apart
SPACING = 16
PARTS_GROWTH = 4


class Graph(Protocol):
    """Recorded work."""

    @property
    def output(self) -> Tensor:
        """What it computes, at the same place each time."""
        ...

    def replay(self) -> None:
        """Queue the work again, on what its inputs hold now."""
        ...


Capture = Callable[[Callable[[], Tensor]], Graph]


@dataclass(frozen=True, slots=True)
class DecodeGraph:
    """A graph and the memory of its inputs."""

    bucket: Bucket
    graph: Graph
    inputs: Tensor
    transfers: Transfers

    def run(self, step: HostStep) -> Tensor:
        """Queue a step that fits the bucket; return the bucket's states."""
        self.transfers.send(step.padded(self.bucket).arrays, into=self.inputs)
        self.graph.replay()
        return self.graph.output


class DecodeGraphs:
    """The graphs of a model, one for each of `buckets`."""

    def __init__(self, graphs: list[DecodeGraph]) -> None:
        self.by_bucket = {graph.bucket: graph for graph in graphs}
        self._sizes = sorted({bucket.num_sequences for bucket in self.by_bucket})

    def find(self, step: HostStep) -> DecodeGraph | None:
        """Return the smallest graph with room for a step; None: it has chunks, or is too large."""
        count = len(step.step.row)
        place = bisect_left(self._sizes, count)
        if len(step.step.token_ids) != count or place == len(self._sizes):
            return None
        fitting = [
            bucket
            for bucket in self.by_bucket
            if bucket.num_sequences == self._sizes[place]
            and bucket.num_units >= step.num_units
            and bucket.merges >= step.has_merges
        ]
        return self.by_bucket[min(fitting)] if fitting else None


def buckets(max_sequences: int, num_positions: int) -> Iterator[Bucket]:
    """Yield buckets for up to `max_sequences` of up to `num_positions` tokens, largest first."""
    most_parts = -(-num_positions // SPLIT_KEYS)
    larger = range(SMALL[-1] + SPACING, max_sequences + SPACING, SPACING)
    sizes = {min(size, max_sequences) for size in (*SMALL, SPACING, *larger)}
    for size in sorted(sizes, reverse=True):
        parts = most_parts
        while parts > 1:
            yield Bucket(size, size * parts, merges=True)
            parts //= PARTS_GROWTH
        yield Bucket(size, size, merges=False)


def record(
    bucket: Bucket,
    nothing: HostStep,
    compute: Callable[[DeviceStep], Tensor],
    capture: Capture,
    transfers: Transfers,
) -> DecodeGraph:
    """Return the graph of a bucket; `nothing` is a step of no sequence, so nothing is written."""
    nothing = nothing.padded(bucket)
    size = packed_bytes(nothing.arrays)
    inputs = torch.empty(size, dtype=torch.uint8, device=transfers.device)
    step = nothing.named(transfers.send(nothing.arrays, into=inputs))
    return DecodeGraph(bucket, capture(lambda: compute(step)), inputs, transfers)


@dataclass(frozen=True, slots=True)
class CudaGraph:
    """See `Graph`."""

    graph: torch.cuda.CUDAGraph
    output: Tensor

    def replay(self) -> None:
        """Queue the work."""
        self.graph.replay()


class CudaCapture:
    """Records on the current device; all graphs share one memory, since they run one at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> CudaGraph:
        """Return the recorded work.

        It runs once before: kernels are compiled and libraries take their workspace then.
        """
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            compute()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # Other threads, NCCL's watchdog above all, may look at events meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = compute()
        return CudaGraph(graph, output)
