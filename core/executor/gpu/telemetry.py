"""What a GPU says of itself: load, memory, power, temperature, by NVML where that is installed.

Owns: the reading, once a second at the most. Never knows: who shows it. `nvidia-ml-py` is optional:
without it the engine says so once and shows nothing.
"""

import logging
from importlib import import_module
from typing import Any

import torch

from core.clock import NS_PER_S
from core.executor.protocol import NO_READINGS, DeviceReadings

MODULE = "pynvml"  # of the distribution nvidia-ml-py
PERIOD_NS = NS_PER_S
SENSOR_OF_THE_CHIP = 0
MILLIWATTS = 1000.0

logger = logging.getLogger(__name__)


class GpuTelemetry:
    """Reads one GPU through `nvml`, which is the module `pynvml`, or stands for it."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Open the GPU `uuid`; raises the module's NVMLError."""
        nvml.nvmlInit()
        self._nvml = nvml
        self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._read_ns = -PERIOD_NS
        self._readings = NO_READINGS
        self._is_silent = False

    def readings(self, now_ns: int) -> DeviceReadings:
        """Return what it said within the last second; nothing if it does not answer, which is
        logged once until it does.
        """
        if now_ns - self._read_ns >= PERIOD_NS:
            self._read_ns = now_ns
            try:
                self._readings = self._read()
            except self._nvml.NVMLError as error:
                if not self._is_silent:
                    logger.warning("the GPU's telemetry does not answer: %s", error)
                self._readings, self._is_silent = NO_READINGS, True
            else:
                self._is_silent = False
        return self._readings

    def _read(self) -> DeviceReadings:
        nvml, handle = self._nvml, self._handle
        return DeviceReadings(
            is_known=True,
            utilization=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            memory_used_bytes=nvml.nvmlDeviceGetMemoryInfo(handle).used,
            power_watts=nvml.nvmlDeviceGetPowerUsage(handle) / MILLIWATTS,
            temperature_celsius=nvml.nvmlDeviceGetTemperature(handle, SENSOR_OF_THE_CHIP),
        )


def open_telemetry(device: torch.device) -> GpuTelemetry | None:
    """Return the telemetry of a GPU; None, and a line in the log, where there is none."""
    try:
        nvml = import_module(MODULE)
    except ImportError:
        logger.warning("nvidia-ml-py is not installed: load and power of %s are not shown", device)
        return None
    try:
        return GpuTelemetry(nvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except nvml.NVMLError as error:
        logger.warning("load and power of %s are not shown: %s", device, error)
        return None
