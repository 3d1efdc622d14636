"""Which device an executor opens: what was asked for, against what this machine has.

Owns: the choice and its one-line refusals. Never knows: how a device computes. `auto` is the GPU
of the executor's number where there is one that can do what is configured, else the CPU; `cuda` is
a GPU or an error that says what was found.
"""

import logging
from importlib import import_module

import torch

from core.errors import ConfigError, StartError
from core.executor.cpu_device import CpuDevice
from core.executor.device import Device
from core.executor.protocol import ExecutorSettings

logger = logging.getLogger(__name__)

GPU = "core.executor.gpu.gpu_device"


def open_device(settings: ExecutorSettings) -> Device:
    """Return the device for an executor; raises ConfigError or StartError."""
    if settings.device == "cpu":
        return CpuDevice(settings)
    if settings.device not in ("auto", "cuda"):
        raise ConfigError(f"engine.device = {settings.device!r} is unknown: use auto, cpu or cuda")
    obstacle = what_keeps_from_cuda(settings)
    if obstacle is None:
        device: Device = import_module(GPU).GpuDevice.on_cuda(settings)
        return device
    if settings.device == "auto":
        logger.warning("engine.device = auto takes the CPU: %s", obstacle)
        return CpuDevice(settings)
    raise obstacle


def what_keeps_from_cuda(settings: ExecutorSettings) -> ConfigError | StartError | None:
    """Return why the executor cannot have its GPU; None: it can."""
    asked = f"cuda:{settings.device_index}"
    if settings.quantization != "none":
        return ConfigError(
            f"engine.quantization = {settings.quantization!r} is for engine.device = cpu; {asked}"
            " takes none"
        )
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        built = torch.version.cuda or "none"
        return StartError(
            f"{asked} is asked for (engine.device = {settings.device}), but torch"
            f" {torch.__version__} (CUDA {built}) finds no GPU on this machine"
        )
    # The last GPU of the replica: all its ranks must come to the same verdict.
    last = settings.device_index - settings.rank + settings.tensor_parallel - 1
    if last >= found:
        names = ", ".join(torch.cuda.get_device_name(each) for each in range(found))
        return StartError(
            f"cuda:{last} is asked for, one GPU for each of {settings.replicas} replica(s) of"
            f" {settings.tensor_parallel} rank(s), but there are {found}: {names}"
        )
    return None
