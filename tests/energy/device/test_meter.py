"""Meters: what is said where there is none, the zeus package's devices, and the sampler on a real thread."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halocline.energy.device.clock import GuardedClock
from halocline.energy.device.devices import ZeusGpu, chip_millijoules, open_device, open_zeus
from halocline.energy.device.meter import Clock, ClockRefused, CounterWatch, Meter, NoMeter
from halocline.energy.device.nvml import Nvml, refused
from halocline.energy.simulated.device import SimulatedDevice
from halocline.plan import Plan
from halocline.schedule import generate

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


def has_driver() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


@pytest.mark.skipif(has_driver(), reason="there is an NVIDIA driver here")
def test_no_driver_is_said_with_the_way_out() -> None:
    with pytest.raises(NoMeter, match=r"no NVIDIA driver here .*: use --meter simulated, zeus or none"):
        Nvml()


@pytest.mark.skipif(not has_driver(), reason="there is no NVIDIA driver here")
def test_the_counter_of_a_real_gpu_rises() -> None:
    meter = Nvml(0)
    first = meter.energy()
    time.sleep(0.5)
    assert meter.energy() > first
    with pytest.raises(NoMeter, match="NVML has no GPU 99"):
        Nvml(99)


def test_why_nvml_sets_no_clock() -> None:
    denied = refused("A100", pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION), pynvml)
    assert "may only be set by root" in str(denied) and "SYS_ADMIN" in str(denied) and "zeusd" in str(denied)
    missing = refused("GTX", pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), pynvml)
    assert "GTX has no clock that can be set" in str(missing)
    other = refused("A100", pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), pynvml)
    assert "cannot be set" in str(other)


def test_without_zeus_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus", None)  # as if it were not installed
    with pytest.raises(NoMeter, match=r"the zeus meter needs zeus: install halocline\[energy\]"):
        open_zeus()


def test_a_kind_of_device_that_zeus_has_not() -> None:
    with pytest.raises(NoMeter, match="zeus:tpu is not a kind of device: use zeus:gpu, zeus:soc, zeus:cpu"):
        open_zeus("tpu")


class Gpus:
    """What `zeus.device.get_gpus()` returns, as far as it is used."""

    def __init__(self, allowed: bool = True) -> None:
        self.locked: list[tuple[int, ...]] = []
        self._allowed = allowed

    def __len__(self) -> int:
        return 2

    def get_name(self, index: int) -> str:
        return f"MI300 {index}"

    def supports_get_total_energy_consumption(self, index: int) -> bool:
        return index == 1

    def get_total_energy_consumption(self, index: int) -> int:
        return 12500

    def get_supported_memory_clocks(self, index: int) -> list[int]:
        return [900, 1300]

    def get_supported_graphics_clocks(self, index: int, memory: int) -> list[int]:
        assert memory == 1300
        return [500, 2100, 1000]

    def set_gpu_locked_clocks(self, *words: int) -> None:
        if not self._allowed:
            raise type("ZeusGPUNoPermissionError", (Exception,), {})("Insufficient Permissions")
        self.locked.append(words)

    def reset_gpu_locked_clocks(self, index: int) -> None:
        self.locked.append((index,))


def test_a_gpu_through_zeus() -> None:
    gpus = Gpus()
    gpu = ZeusGpu(gpus, 1)
    assert gpu.name == "MI300 1 by zeus"
    assert gpu.energy() == 12.5
    assert gpu.frequencies() == [2100, 1000, 500]
    assert isinstance(gpu, Clock)
    gpu.set(1000)
    gpu.reset()
    assert gpus.locked == [(1, 1000, 1000), (1,)]
    with pytest.raises(NoMeter, match="counts no energy"):
        ZeusGpu(gpus, 0)
    with pytest.raises(NoMeter, match="zeus has no GPU 2 among its 2"):
        ZeusGpu(gpus, 2)


def test_a_gpu_through_zeus_without_the_privilege() -> None:
    gpu = ZeusGpu(Gpus(allowed=False), 1)
    with pytest.raises(ClockRefused, match=r"may not be set by this user: run as root, or run zeusd"):
        gpu.set(1000)


def test_a_chip_is_its_total_or_the_sum_of_its_parts() -> None:
    assert chip_millijoules(SimpleNamespace(total_energy_mj=5.0, cpu_energy_mj=3.0)) == 5.0
    assert chip_millijoules(SimpleNamespace(cpu_total_mj=2, gpu_mj=3, dram_mj=None)) == 5.0


def opened(name: str, directory: Path, gpu: str | None = None) -> Any:
    schedule = generate(Plan.from_flags(split_size=2, parts=2, layers=2))
    return open_device(name, schedule=schedule, rank=1, directory=directory, gpu=gpu, index=0)


def test_devices_by_name(tmp_path: Path) -> None:
    assert opened("none", tmp_path) is None
    assert opened("auto", tmp_path) is None
    made = opened("simulated", tmp_path)
    assert isinstance(made, SimulatedDevice)
    assert made.name.startswith("simulated")
    with closing(GuardedClock(made)) as clock:
        assert clock.frequencies()[0] == 1410
    with pytest.raises(ValueError, match=r"simulated.*this one has a GPU: add --device cpu"):
        opened("simulated", tmp_path, "GPU-1")


class Ticking:
    """A counter that advances by 5 J every 50 ms of real time."""

    name = "ticking"

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def time(self) -> float:
        return time.monotonic() - self._begin

    def energy(self) -> float:
        return 5.0 * int(self.time() / 0.05)


def test_the_sampler_sees_every_advance() -> None:
    meter: Meter = Ticking()
    sampler = CounterWatch(meter, interval=0.002)
    found: list[Any] = []
    end = time.monotonic() + 300
    while len(found) < 3 and time.monotonic() < end:
        time.sleep(0.05)
        found += sampler.take()
    sampler.close()
    assert len(found) >= 3
    energies = [reading.energy for reading in found]
    assert energies == sorted(set(energies)), "an advance is noted once"
    for reading in found:
        assert reading.time >= reading.energy / 5.0 * 0.05, "not before it happened"
