"""The whole executor on a GPU's device, with Triton's interpreter in the GPU's place."""

from pathlib import Path

import pytest
import torch

from core.errors import StartError
from core.executor.gpu import gpu_device
from core.executor.gpu.gpu_device import GpuDevice
from core.executor.local import LocalExecutor
from core.executor.protocol import ExecutorSettings
from core.scheduler.plan import CopyDirection, RecordArray
from tests.executor.test_executors import settings_for
from tests.support.executor.plan_driver import PlanDriver
from tests.support.kernels.triton_device import DEVICE
from tests.support.models.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    folder = tmp_path_factory.mktemp("model")
    return write_tiny_model(folder, layers=2, heads=2, kv_heads=1, max_position=64)


def open_interpreter(settings: ExecutorSettings) -> GpuDevice:
    """The device of these tests."""
    return GpuDevice(settings, torch.device(DEVICE), "interpreter")


@pytest.fixture(scope="module")
def driver(directory: Path) -> PlanDriver:
    """An executor with memory for swapped blocks, loaded once: its steps are timed then."""
    torch.set_num_threads(1)
    settings = settings_for(
        directory, swap_memory_bytes=2**16, cache_directory=directory, max_model_len=64
    )

    def executor(rows: RecordArray, spans: object, clock: object) -> LocalExecutor:
        arenas = list(spans)  # type: ignore[call-overload]
        return LocalExecutor(settings, rows, arenas, clock, open_interpreter)  # type: ignore[arg-type]

    return PlanDriver(executor, block_size=8, num_rows=4, max_blocks=8)


def test_info_states_what_it_runs_on(driver: PlanDriver) -> None:
    """Kernels, device and the memory's table, with what a step costs."""
    info = driver.info
    assert (info.kernel_path, info.device_name, info.num_kv_blocks) == ("triton", "interpreter", 64)
    assert dict(info.memory_table)["KV pool"] == info.kv_bytes
    assert info.basis is not None
    assert info.num_host_blocks == 2**16 // info.block_bytes


def test_a_swapped_sequence_goes_on_as_if_nothing_had_happened(driver: PlanDriver) -> None:
    """Blocks copied out in all layers, written by others, and copied back elsewhere are the same;
    copies of no block there are, are refused.
    """
    expected = driver.add(range(10, 30), 4)
    driver.finish([expected])
    driver.release(expected)
    sequence = driver.add(range(10, 30), 4)
    driver.step({sequence: 20})
    driver.step({sequence: 1})
    old, new = sequence.blocks[:3], [driver.free_blocks.pop() for _ in range(3)]
    driver.copy(*((CopyDirection.OUT, block, i) for i, block in enumerate(old)))
    driver.free_blocks += old
    other = driver.add(range(50, 70), 1)
    driver.finish([other])
    driver.copy(*((CopyDirection.IN, block, i) for i, block in enumerate(new)))
    sequence.blocks[:3] = new
    driver.rows["block_table"][sequence.row][:3] = new
    driver.finish([sequence])
    driver.release(sequence)
    driver.release(other)
    assert sequence.outputs == expected.outputs
    for block, host_block in ((64, 0), (-1, 0), (0, driver.info.num_host_blocks), (0, -1)):
        with pytest.raises(IndexError, match="outside"):
            driver.copy((CopyDirection.OUT, block, host_block))


def test_launched_steps_are_collected_in_order(driver: PlanDriver) -> None:
    """Two steps may be given to the device at once, and each knows its own tokens."""
    first, second = driver.add([5, 6, 7], 1), driver.add([8, 9], 1)
    before = driver.executor.statistics().tokens
    steps = [
        driver.executor.launch(driver.plan({each: each.prompt_len})) for each in (first, second)
    ]
    results = [step.collect() for step in steps]
    assert [result.rows["row"].tolist() for result in results] == [[first.row], [second.row]]
    assert results[1].started_ns >= results[0].finished_ns
    assert driver.executor.statistics().tokens == before + 5


def test_a_lack_of_memory_names_the_gpu(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a model is loaded, the device's complaint becomes one line."""
    monkeypatch.setattr(gpu_device, "open_telemetry", lambda device: None)
    device = GpuDevice(settings_for(directory), torch.device("cuda", 1), "GPU B")
    said = r"cuda:1 \(GPU B\) has too little memory.* tried to allocate"
    with pytest.raises(StartError, match=said), device.loading():
        raise torch.OutOfMemoryError("tried to\nallocate 9 GiB")
