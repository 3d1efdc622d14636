"""Decodes by graphs: the bucket of a step, its static inputs, and the same tokens as without."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from core.executor.gpu.backend import TritonBackend
from core.executor.gpu.decode_graphs import DecodeGraphs, buckets
from core.executor.gpu.device_batch import Bucket, HostStep, host_step
from core.executor.gpu.device_rows import DeviceRows
from core.executor.input_batch import InputBatch
from core.kernels.paged_attention import AttentionShape
from core.kernels.triton.paged_attention import TritonPagedAttention
from core.kernels.triton.work_units import SPLIT_KEYS
from tests.kernels.triton.interpreted.streams import rope
from tests.support.executor.plan_driver import PlanDriver
from tests.support.executor.runner_executor import RunnerExecutor
from tests.support.kernels.triton_device import DEVICE
from tests.support.models.dense_llama import DenseLlama
from tests.support.models.tiny_model import write_tiny_model

# Rows of padding hold whatever the memory held, and go through the layers like all others.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


class RepeatedWork:
    """Stands in for a graph: does the work again, into the place where it was at first."""

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._compute = compute
        self.output = compute()
        self.replays = 0

    def replay(self) -> None:
        """Do it again."""
        self.output.copy_(self._compute())
        self.replays += 1


def batch(contexts: list[int], chunk: int = 1) -> InputBatch:
    """A step of sequences that have so many tokens and get `chunk` more."""
    count = len(contexts)
    index = np.arange(count, dtype=np.int32)
    return InputBatch(
        row=index[::-1].copy(),
        generation=np.ones(count, dtype=np.uint32),
        flags=np.zeros(count, dtype=np.int32),
        first_position=np.array(contexts, dtype=np.int32),
        num_tokens=np.full(count, chunk, dtype=np.int32),
        first_token=index * np.int32(chunk),
        prompt_len=np.array(contexts, dtype=np.int32),
        token_ids=np.full(count * chunk, 5, dtype=np.int32),
        block_tables=np.tile(np.arange(128, dtype=np.int32), (count, 1)),
    )


def step_of(contexts: list[int], chunk: int = 1) -> HostStep:
    """The same as the device's arrays."""
    shape = AttentionShape(4, 2, 16, 8)
    return host_step(batch(contexts, chunk), [TritonPagedAttention(shape, rope(16).to(DEVICE))])


def test_buckets_grow_with_sequences_and_with_parts() -> None:
    """Largest first, each with room for no parts and for several a sequence on average."""
    made = list(buckets(40, 5 * SPLIT_KEYS))
    assert made[0] == Bucket(40, 200, merges=True)
    assert [each.num_sequences for each in made if not each.merges] == [40, 24, 16, 8, 4, 2, 1]
    assert {each.num_units // each.num_sequences for each in made if each.merges} == {5}
    assert len(set(made)) == len(made)
    assert [each.num_sequences for each in buckets(3, 100)] == [3, 2, 1]


def test_a_padded_step_names_nobody_beyond_its_sequences() -> None:
    """Tokens and units of padding belong to no sequence, and shapes are the bucket's."""
    step = step_of([3, SPLIT_KEYS + 2])
    assert step.num_units == 3
    assert step.has_merges
    padded = step.padded(Bucket(4, 8, merges=True))
    assert padded.step.token_sequence.tolist() == [0, 1, -1, -1]
    assert padded.step.row.tolist() == [1, 0, 0, 0]
    ((units,),) = padded.units
    assert units.sequence.tolist() == [0, 1, 1, -1, -1, -1, -1, -1]
    assert units.merge_sequence.tolist() == [1, -1, -1, -1]
    shapes = [array.shape for array in padded.arrays]
    other = step_of([9, 9, 9]).padded(Bucket(4, 8, merges=True))
    assert [array.shape for array in other.arrays] == shapes


def test_rows_send_only_what_has_changed() -> None:
    """A block is sent once, and again when the row has another one in its place."""
    rows = DeviceRows(4, 8, torch.device(DEVICE))
    tables = np.array([[5, 6, 7], [1, 2, 0]], dtype=np.int32)
    row = np.array([3, 1], dtype=np.int32)
    places, blocks = rows.changes(row, tables)
    assert places.tolist() == [24, 25, 26, 8, 9]
    assert blocks.tolist() == [5, 6, 7, 1, 2]
    rows.apply(torch.from_numpy(places).to(DEVICE), torch.from_numpy(blocks).to(DEVICE))
    assert rows.block_tables[[3, 1], :3].tolist() == tables.tolist()
    assert not len(rows.changes(row, tables)[0])
    tables[1, 2] = 4
    assert rows.changes(row, tables)[0].tolist() == [10]
    other_order = rows.changes(row[::-1].copy(), tables[::-1].copy())
    assert not len(other_order[0])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(
        tmp_path_factory.mktemp("model"),
        max_position=2 * SPLIT_KEYS,
        layers=1,
        heads=2,
        kv_heads=1,
    )


def with_graphs(directory: Path, wanted: list[Bucket]) -> PlanDriver:
    """A driver whose executor computes decodes by what stands in for graphs."""

    def executor(rows: object, spans: object, clock: object) -> RunnerExecutor:
        made = RunnerExecutor(
            directory,
            rows,  # type: ignore[arg-type]
            list(spans),  # type: ignore[call-overload]
            path="triton",
            device=DEVICE,
        )
        assert isinstance(made.backend, TritonBackend)
        with torch.inference_mode():
            made.backend.record_decodes(wanted, RepeatedWork)
        return made

    return PlanDriver(executor, block_size=8, num_rows=8, max_blocks=128)


def graphs_of(driver: PlanDriver) -> DecodeGraphs:
    """The graphs of a driver's executor."""
    assert isinstance(driver.executor, RunnerExecutor)
    assert isinstance(driver.executor.backend, TritonBackend)
    assert driver.executor.backend.graphs is not None
    return driver.executor.backend.graphs


@pytest.mark.parametrize(
    ("contexts", "chunk", "expected"),
    [
        ([3], 1, Bucket(1, 1, merges=False)),
        ([3, 4, 5], 1, Bucket(4, 4, merges=False)),
        ([SPLIT_KEYS, 4], 1, Bucket(2, 4, merges=True)),
        ([SPLIT_KEYS] * 3, 1, Bucket(4, 8, merges=True)),
        ([3, 4, 5, 6, 7], 1, None),
        ([3, 4], 2, None),
    ],
    ids=["small", "padded", "parts", "more-parts", "too-many", "chunks"],
)
def test_a_step_takes_the_smallest_graph_with_room(
    directory: Path, contexts: list[int], chunk: int, expected: Bucket | None
) -> None:
    """By sequences first, then by units; chunks and larger steps have none."""
    found = graphs_of(with_graphs(directory, list(buckets(4, 2 * SPLIT_KEYS)))).find(
        step_of(contexts, chunk)
    )
    assert (None if found is None else found.bucket) == expected


def test_graphs_change_no_token(directory: Path) -> None:
    """Streams of short and long contexts, in company that changes, are the dense model's."""
    driver = with_graphs(directory, list(buckets(2, 2 * SPLIT_KEYS)))
    random = np.random.default_rng(4)
    prompts = [random.integers(2, 300, count).tolist() for count in (5, SPLIT_KEYS - 2, 9)]
    first, long, last = (
        driver.add(prompt, count) for prompt, count in zip(prompts, (3, 5, 2), strict=True)
    )
    driver.finish([first, long], chunk_max=SPLIT_KEYS)
    driver.finish([last], chunk_max=9)
    dense = DenseLlama(directory)
    for prompt, sequence in zip(prompts, (first, long, last), strict=True):
        assert sequence.outputs == dense.greedy(prompt, len(sequence.outputs))
    replayed = {
        bucket: graph.graph.replays
        for bucket, graph in graphs_of(driver).by_bucket.items()
        if isinstance(graph.graph, RepeatedWork) and graph.graph.replays
    }
    assert sum(replayed.values()) >= 5
    assert {bucket.merges for bucket in replayed} == {False, True}
