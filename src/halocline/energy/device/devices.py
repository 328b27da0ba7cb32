"""The devices by name: which meter and clock a run uses.

auto        nvml on a GPU, none on a CPU
nvml        the NVIDIA GPU of the rank
zeus        whatever the zeus package finds; zeus:gpu, zeus:soc or zeus:cpu for a certain kind
simulated   a GPU that is not there; training runs on the CPU, times and energies are made up
none        nothing is measured and no clock is set

The `zeus` package reaches what NVML does not: AMD GPUs, NVIDIA GPUs behind the zeusd daemon (which sets clocks for
those who may not), Jetson and Apple chips, and Intel and AMD CPUs by RAPL. Chips and CPUs can be measured; their clocks
are not set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halocline.energy.device.meter import ClockRefused, Meter, NoMeter
from halocline.energy.device.nvml import Nvml
from halocline.energy.simulated.device import SimulatedDevice
from halocline.schedule.instruction import Schedule

KINDS = ("gpu", "soc", "cpu")
"""In the order in which they are looked for."""

_CHIP_PARTS = ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj")
"""What makes up a chip that does not tell its total."""


def open_device(
    name: str, *, schedule: Schedule, rank: int, directory: str | Path, gpu: str | None, index: int, seed: int = 0
) -> Meter | None:
    """The device of a rank. `gpu` is the UUID of the GPU it computes on, None on a CPU; `index` its number on the
    machine; `directory` is where simulated devices meet. None where nothing measures."""
    if name == "none":
        return None
    if name == "simulated":
        if gpu is not None:
            raise ValueError("meter = 'simulated' is for runs on a CPU and this one has a GPU: add --device cpu")
        return SimulatedDevice(directory, schedule, rank, seed=seed)
    if name == "auto":
        try:
            return Nvml(gpu) if gpu is not None else None
        except NoMeter:
            return None
    if name == "nvml":
        return Nvml(gpu if gpu is not None else index)
    return open_zeus(name.partition(":")[2], index)


# -- by the zeus package ------------------------------------------------------------------------------------------


class ZeusMeter:
    """A meter over whatever zeus finds."""

    def __init__(self, name: str, millijoules: Callable[[], float]) -> None:
        self._name, self._millijoules = name, millijoules
        self.name = f"{name} by zeus"

    def time(self) -> float:
        return time.time()

    def energy(self) -> float:
        return self._millijoules() / 1e3


class ZeusGpu(ZeusMeter):
    """A GPU: a meter and a clock."""

    def __init__(self, gpus: Any, index: int = 0) -> None:
        """`gpus` is what `zeus.device.get_gpus()` returns."""
        if not 0 <= index < len(gpus):
            raise NoMeter(f"zeus has no GPU {index} among its {len(gpus)}: give a number below {len(gpus)}")
        super().__init__(gpus.get_name(index), lambda: gpus.get_total_energy_consumption(index))
        self._gpus, self._index = gpus, index
        if not gpus.supports_get_total_energy_consumption(index):
            raise NoMeter(f"{self._name} counts no energy: use --meter none, or another GPU")

    def frequencies(self) -> list[int]:
        gpus, index = self._gpus, self._index
        memory = max(self._tried(gpus.get_supported_memory_clocks, index))
        return sorted(set(self._tried(gpus.get_supported_graphics_clocks, index, memory)), reverse=True)

    def actual(self) -> int:
        """The highest, for zeus does not tell: under load that is where a device's own clock is."""
        return self.frequencies()[0]

    def set(self, frequency: int) -> None:
        self._tried(self._gpus.set_gpu_locked_clocks, self._index, frequency, frequency)

    def reset(self) -> None:
        self._tried(self._gpus.reset_gpu_locked_clocks, self._index)

    def rescue(self) -> list[str]:
        return ["zeus", str(self._index)]

    def _tried(self, call: Callable[..., Any], *words: Any) -> Any:
        try:
            return call(*words)
        except Exception as error:  # zeus wraps its vendors' errors in dozens of classes of its own
            if "permission" in f"{type(error).__name__} {error}".lower():
                raise ClockRefused(
                    f"the clock of {self._name} may not be set by this user: run as root, or run zeusd and "
                    f"set ZEUSD_SOCK_PATH"
                ) from error
            raise ClockRefused(f"the clock of {self._name} cannot be set: {' '.join(str(error).split())}") from error


def open_zeus(kind: str = "", index: int = 0) -> ZeusMeter:
    """The device of a kind (gpu, soc or cpu), or the first kind that is there."""
    if kind and kind not in KINDS:
        raise NoMeter(f"zeus:{kind} is not a kind of device: use {', '.join(f'zeus:{k}' for k in KINDS)}, or zeus")
    try:
        import zeus.device as library
    except ModuleNotFoundError as error:
        needed = (error.name or "zeus").partition(".")[0]
        raise NoMeter(f"the zeus meter needs {needed}: install halocline[energy]") from error
    reasons = []
    for wanted in [kind] if kind else KINDS:
        try:
            return _open(library, wanted, index)
        except Exception as error:
            reasons.append(f"{wanted}: {' '.join(str(error).split())}")
    raise NoMeter(f"zeus found no device to measure ({'; '.join(reasons)}): use --meter simulated or none")


def _open(library: Any, kind: str, index: int) -> ZeusMeter:
    if kind == "gpu":
        return ZeusGpu(library.get_gpus(), index)
    if kind == "soc":
        soc = library.get_soc()
        return ZeusMeter(type(soc).__name__, lambda: chip_millijoules(soc.get_total_energy_consumption()))
    cpus = library.get_cpus()
    if not 0 <= index < len(cpus):
        index = 0  # processes share sockets: rank 3 of a machine with one socket is measured with that one
    return ZeusMeter(f"CPU {index}", lambda: cpus.get_total_energy_consumption(index).cpu_mj)


def chip_millijoules(measured: Any) -> float:
    """All of a chip: its total where it tells one, else the sum of its parts."""
    total = getattr(measured, "total_energy_mj", None)
    if total is not None:
        return float(total)
    return float(sum(getattr(measured, part, None) or 0 for part in _CHIP_PARTS))
