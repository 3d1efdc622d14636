"""Which device an executor opens, and what it says when it cannot have the one it asks for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from core.errors import ConfigError, StartError
from core.executor.cpu_device import CpuDevice
from core.executor.devices import open_device, what_keeps_from_cuda
from core.executor.protocol import ExecutorSettings

CUDA = ExecutorSettings(
    model_directory=Path("none"), cache_directory=Path("none"), device="cuda", threads=1
)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {'AB'[index]}")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_cuda_is_refused_in_one_line() -> None:
    """The message names the device that was asked for and what was found."""
    with pytest.raises(StartError, match=r"cuda:3 is asked for .* finds no GPU") as caught:
        open_device(replace(CUDA, device_index=3))
    assert torch.__version__ in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_where_there_is_no_gpu() -> None:
    """Nobody asked for more."""
    device = open_device(replace(CUDA, device="auto"))
    assert isinstance(device, CpuDevice)
    assert device.threads == 1


@pytest.mark.usefixtures("two_gpus")
def test_more_gpus_than_there_are_name_the_missing_one() -> None:
    """Those that exist are served; the one beyond them says which there are."""
    assert what_keeps_from_cuda(replace(CUDA, device_index=1)) is None
    with pytest.raises(StartError, match=r"cuda:2 .* 3 replica.* there are 2: GPU A, GPU B"):
        open_device(replace(CUDA, device_index=2, replicas=3))


@pytest.mark.usefixtures("two_gpus")
def test_what_a_gpu_cannot_do_is_refused_or_left_to_the_cpu() -> None:
    """`cuda` says which key is wrong, `auto` takes the CPU."""
    settings = replace(CUDA, quantization="int8")
    with pytest.raises(ConfigError, match=r"engine\.quantization"):
        open_device(settings)
    assert isinstance(open_device(replace(settings, device="auto")), CpuDevice)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_a_gpu_or_none_of_a_replica_has(rank: int) -> None:
    """The replica whose last GPU is missing is refused, or left to the CPU, on every rank."""
    settings = replace(CUDA, tensor_parallel=2, replicas=2, rank=rank, device_index=rank)
    assert what_keeps_from_cuda(settings) is None
    beyond = replace(settings, device_index=2 + rank)
    with pytest.raises(StartError, match=r"cuda:3 .* 2 replica\(s\) of 2 rank\(s\).* there are 2"):
        open_device(beyond)
    three = replace(settings, tensor_parallel=3, device="auto")
    assert isinstance(open_device(three), CpuDevice)


def test_an_unknown_device_is_refused() -> None:
    """The error names the devices there are."""
    with pytest.raises(ConfigError, match="auto, cpu or cuda"):
        open_device(replace(CUDA, device="abacus"))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")],
    ids=["python", "torch"],
)
def test_a_lack_of_memory_names_the_machine(error: Exception) -> None:
    """While a model is loaded onto a CPU; other complaints of torch are ours to mend."""
    device = CpuDevice(replace(CUDA, device="cpu"))
    with pytest.raises(StartError, match=r"too little memory for the model: .+"), device.loading():
        raise error
    with pytest.raises(RuntimeError, match="sizes"), device.loading():
        raise RuntimeError("sizes do not match")
