"""NVIDIA GPUs through NVML (the nvidia-ml-py package): the energy counter and the locked clocks.

The counter (Volta and later) advances about every 100 ms and costs microseconds to read. Locking clocks needs root, or
the SYS_ADMIN capability in a container.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from halocline.energy.device.meter import ClockRefused, NoMeter


class Nvml:
    """One GPU: a meter and a clock."""

    def __init__(self, device: int | str = 0) -> None:
        """`device`: NVML's number, or a UUID (GPU-...), which means the same GPU whatever CUDA_VISIBLE_DEVICES says."""
        self._nvml = nvml = _library()
        self.device = device
        try:
            found = nvml.nvmlDeviceGetHandleByIndex if isinstance(device, int) else nvml.nvmlDeviceGetHandleByUUID
            self._handle = found(device)
            self._model = nvml.nvmlDeviceGetName(self._handle)
            self._uuid = nvml.nvmlDeviceGetUUID(self._handle)
        except nvml.NVMLError as error:
            count = nvml.nvmlDeviceGetCount()
            raise NoMeter(
                f"NVML has no GPU {device!r} among its {count} ({error}): give a number below {count}"
            ) from error
        if isinstance(self._model, bytes):
            self._model = self._model.decode()
        self.name = f"{self._model} by NVML"
        try:
            self.energy()
        except nvml.NVMLError as error:
            raise NoMeter(
                f"{self._model} counts no energy ({error}): NVML's counter needs Volta or later; use --meter zeus"
            ) from error

    def time(self) -> float:
        return time.time()

    def energy(self) -> float:
        return self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3

    def frequencies(self) -> list[int]:
        nvml, handle = self._nvml, self._handle
        memory = max(self._tried(nvml.nvmlDeviceGetSupportedMemoryClocks, handle))
        return sorted(set(self._tried(nvml.nvmlDeviceGetSupportedGraphicsClocks, handle, memory)), reverse=True)

    def actual(self) -> int:
        return int(self._tried(self._nvml.nvmlDeviceGetClockInfo, self._handle, self._nvml.NVML_CLOCK_SM))

    def set(self, frequency: int) -> None:
        self._tried(self._nvml.nvmlDeviceSetGpuLockedClocks, self._handle, frequency, frequency)

    def reset(self) -> None:
        self._tried(self._nvml.nvmlDeviceResetGpuLockedClocks, self._handle)

    def rescue(self) -> list[str]:
        return ["nvml", self._uuid if isinstance(self._uuid, str) else self._uuid.decode()]

    def _tried(self, call: Callable[..., Any], *words: Any) -> Any:
        try:
            return call(*words)
        except self._nvml.NVMLError as error:
            raise refused(self._model, error, self._nvml) from error


def refused(model: str, error: Exception, nvml: Any) -> ClockRefused:
    """Why NVML does not set the clock, in words."""
    if isinstance(error, nvml.NVMLError_NoPermission):
        return ClockRefused(
            f"the clock of {model} may only be set by root (in a container: with the SYS_ADMIN capability): run as "
            f"root, or run zeusd and use --meter zeus"
        )
    if isinstance(error, nvml.NVMLError_NotSupported):
        return ClockRefused(f"{model} has no clock that can be set ({error}): choose another GPU to save energy on")
    return ClockRefused(f"the clock of {model} cannot be set: {error}")


def _library() -> Any:
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise NoMeter("the nvml meter needs the nvidia-ml-py package: install halocline[energy]") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoMeter(f"there is no NVIDIA driver here ({error}): use --meter simulated, zeus or none") from error
    return pynvml
