"""What the energy hooks cost: one process, one stage, with and without the controller in the engine's hooks. Prints the
processor time of the hooks alone as a part of the step's (0.01 or less is the aim), and the ratio of step times, the
least of all steps, with and without.

    OMP_NUM_THREADS=1 python benchmarks/energy_hooks.py [--steps 40]

The clock is a file's, set by the controller's thread, and changes at every single instruction, which no plan does. The
ways take turns step by step, so that they meet the same machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from halocline.energy.controller import Controller, Frequencies, Listener, Player
from halocline.energy.device.clock import GuardedClock
from halocline.energy.profile.timing_csv import TimingCsv
from halocline.energy.simulated.rack import ClockFile
from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.schedule import generate
from halocline.schedule.events import Events, TimeMarks
from halocline.schedule.instruction import COMPUTE, STEP

SAMPLES, MICROBATCHES, WIDTH, LAYERS = 256, 8, 512, 8


class FileClock:
    """A clock that is a file, as quick to set as a driver."""

    name = "simulated clock"

    def __init__(self, path: Path) -> None:
        self._file = ClockFile(path)

    def frequencies(self) -> list[int]:
        return [1410, 900]

    def actual(self) -> int:
        return self._file.read() or 1410

    def set(self, frequency: int) -> None:
        self._file.write(frequency)

    def reset(self) -> None:
        self._file.write(None)

    def rescue(self) -> list[str]:
        return ["simulated", str(self._file.path)]


class Alternating(Player):
    """Another frequency for every instruction."""

    def __init__(self, count: int) -> None:
        self._frequencies = [(1410, 900)[n % 2] for n in range(count)]

    def play(self, step: int) -> Frequencies:
        return self._frequencies


def layers() -> list[Callable[[], nn.Module]]:
    return [lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())] * LAYERS


def way(name: str, plan: Plan, directory: Path) -> tuple[Engine, Controller | None]:
    """The engine of a way of running, and the controller in its hooks."""
    row = generate(plan).ranks[0]
    count = sum(instruction.kind in COMPUTE for instruction in row)
    controller = None
    if name != "no hooks":
        listeners: list[Listener] = [TimingCsv(directory, 0, meter=None)] if "files" in name else []
        clock = GuardedClock(FileClock(directory / "clock.txt")) if "clock" in name else None
        player = Alternating(count) if clock is not None else None
        controller = Controller(row, TimeMarks(), clock=clock, player=player, listeners=listeners)
    observers = (controller,) if controller is not None else ()
    made = Engine(plan, layers(), loss=F.mse_loss, optimizer=lambda p: torch.optim.SGD(p, lr=1e-4), observers=observers)
    return made, controller


def alone(plan: Plan, controller: Controller, repeats: int = 200) -> float:
    """Seconds of processor time that the hooks of a step take, its clock's thread included."""
    row = generate(plan).ranks[0]
    events = Events([controller])
    begin = time.process_time()
    for number in range(repeats):
        events.step_begins(number)
        for instruction in row:
            events.begin(instruction)
            if instruction.kind in COMPUTE or instruction.kind == STEP:
                events.wait(instruction)
                events.ready(instruction)
            events.end(instruction)
        events.step_ends(number)
    return (time.process_time() - begin) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = Plan.from_flags(split_size=1, parts=MICROBATCHES, layers=LAYERS)
    x, y = torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, WIDTH)
    names = ("no hooks", "hooks that time", "hooks that time and set the clock", "all that and timing files")
    with tempfile.TemporaryDirectory() as temporary:
        made = {}
        for name in names:
            directory = Path(temporary) / name.replace(" ", "-")
            directory.mkdir()
            made[name] = way(name if name != names[3] else "clock and files", plan, directory)
        wall: dict[str, list[float]] = {name: [] for name in names}
        work: dict[str, list[float]] = {name: [] for name in names}
        for number in range(options.steps + 3):
            for name, (engine, _) in made.items():
                begin, busy = time.perf_counter(), time.process_time()
                engine.step(x, y)
                if number >= 3:
                    wall[name].append(time.perf_counter() - begin)
                    work[name].append(time.process_time() - busy)
        hooks = {name: alone(plan, controller) for name, (_, controller) in made.items() if controller is not None}
        for _, controller in made.values():
            if controller is not None:
                controller.close()
    count = len(generate(plan).ranks[0])
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {MICROBATCHES} microbatches, {count} instructions a step"
    )
    step = min(work["no hooks"])
    print(
        f"{'no hooks':34s} {step * 1e3:7.2f} ms of processor time a step, {min(wall['no hooks']) * 1e3:.2f} ms in all"
    )
    for name, seconds in hooks.items():
        print(
            f"{name:34s} hooks alone {seconds * 1e3:6.3f} ms a step, {seconds / count * 1e6:5.1f} us an instruction, "
            f"{seconds / step:.4f} of the step; steps {min(work[name]) / step:.4f} of processor time, "
            f"{min(wall[name]) / min(wall['no hooks']):.4f} in all"
        )


if __name__ == "__main__":
    main()
