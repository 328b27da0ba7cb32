"""The devices by name: which meter and clock a run uses.

auto        nvml on a GPU, none on a CPU
nvml        the NVIDIA GPU of the rank
zeus        whatever the zeus package finds; zeus:gpu, zeus:soc or zeus:cpu for a certain kind
simulated   a GPU that is not there; training runs on the CPU, times and energies are made up
none        nothing is measured and no clock is set
"""

from __future__ import annotations

from pathlib import Path

from halocline.energy.device.meter import Meter, NoMeter
from halocline.energy.device.nvml import Nvml
from halocline.energy.device.zeus_device import open_zeus
from halocline.energy.simulated.device import SimulatedDevice
from halocline.schedule.instruction import Schedule


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
