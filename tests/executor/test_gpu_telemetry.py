"""What a GPU says of itself, by a module that stands for NVML's."""

import logging
from types import SimpleNamespace

import pytest
import torch

from core.clock import NS_PER_S
from core.executor.gpu import telemetry
from core.executor.gpu.telemetry import GpuTelemetry, open_telemetry
from core.executor.protocol import NO_READINGS, DeviceReadings


class NvmlError(Exception):
    """As the module's."""


class FakeNvml:
    """The functions that are used of `pynvml`, for a GPU whose load grows with each look."""

    NVMLError = NvmlError

    def __init__(self) -> None:
        self.looks = 0
        self.is_lost = False

    def nvmlInit(self) -> None:  # noqa: N802
        """Nothing to do."""

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        """The handle is the name; another GPU there is not."""
        if uuid != "GPU-7":
            raise NvmlError("Not Found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:  # noqa: N802
        """Percent."""
        if self.is_lost:
            raise NvmlError("GPU is lost")
        self.looks += 1
        return SimpleNamespace(gpu=40 + self.looks)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:  # noqa: N802
        """Bytes."""
        return SimpleNamespace(used=2**33)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        """Milliwatts."""
        return 350_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        """Degrees."""
        assert sensor == 0
        return 61


def test_readings_are_taken_once_a_second_in_plain_units() -> None:
    """Shares, bytes, watts and degrees; within a second the same ones again."""
    nvml = FakeNvml()
    gpu = GpuTelemetry(nvml, "GPU-7")
    first = gpu.readings(5)
    assert first == DeviceReadings(True, 0.41, 2**33, 350.5, 61)
    assert gpu.readings(5 + NS_PER_S - 1) is first
    assert gpu.readings(5 + NS_PER_S).utilization == 0.42


def test_a_gpu_that_does_not_answer_has_no_readings(caplog: pytest.LogCaptureFixture) -> None:
    """It is said in the log, and its last readings are not shown as if they were new."""
    nvml = FakeNvml()
    gpu = GpuTelemetry(nvml, "GPU-7")
    gpu.readings(0)
    nvml.is_lost = True
    with caplog.at_level(logging.WARNING):
        assert gpu.readings(NS_PER_S) is NO_READINGS
        assert gpu.readings(2 * NS_PER_S) is NO_READINGS
    assert caplog.text.count("GPU is lost") == 1


def test_without_nvml_it_is_said_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The module is optional."""
    monkeypatch.setattr(telemetry, "MODULE", "no_such_module")
    with caplog.at_level(logging.WARNING):
        assert open_telemetry(torch.device("cuda", 0)) is None
    assert "nvidia-ml-py is not installed" in caplog.text


def test_a_gpu_that_nvml_does_not_know_has_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says which and why."""
    monkeypatch.setattr(telemetry, "import_module", lambda name: FakeNvml())
    properties = SimpleNamespace(uuid="8")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    with caplog.at_level(logging.WARNING):
        assert open_telemetry(torch.device("cuda", 1)) is None
    assert "cuda:1 are not shown: Not Found" in caplog.text
