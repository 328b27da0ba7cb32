"""The files of a run's timing, as Perseus's trainer names them, written row by row as training goes.

    instructions-R.csv    instruction,start,end,stage,microbatch,frequency     one row per instruction of rank R
    time-energy-R.csv     time,energy                                          one row per advance of its counter
    meter.txt             what measured, "simulated GPU" for example

Seconds are the machine's, since the epoch; a simulated device's own, since it was made. The first three columns are the
original's and so are the names of forwards, backwards and batch inputs; the rest is ours. `frequency` is empty where no
clock was set.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from halocline.energy.controller import BATCH_INPUT, DeviceStep, Listener, Span
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    RECOMPUTE,
    STEP,
)

INSTRUCTION_COLUMNS = ("instruction", "start", "end", "stage", "microbatch", "frequency")
ENERGY_COLUMNS = ("time", "energy")
_METER = "meter.txt"

NAMES = {
    BATCH_INPUT: "batch_input",
    FORWARD: "forward_microstep",
    BACKWARD: "backward_microstep",
    BACKWARD_INPUT: "backward_input_microstep",
    BACKWARD_WEIGHT: "backward_weight_microstep",
    RECOMPUTE: "recompute_microstep",
    STEP: "optimizer_step",
}


def instructions_file(directory: str | Path, rank: int) -> Path:
    return Path(directory) / f"instructions-{rank}.csv"


def energy_file(directory: str | Path, rank: int) -> Path:
    return Path(directory) / f"time-energy-{rank}.csv"


def meter_name(directory: str | Path) -> str | None:
    """What measured the run whose files lie there, e.g. "simulated GPU"; None where nobody says."""
    path = Path(directory) / _METER
    return path.read_text(encoding="utf-8").strip() if path.exists() else None


class TimingCsv(Listener):
    """A listener of the controller: one rank's two files. What was written survives a crash."""

    def __init__(
        self, directory: str | Path, rank: int, *, meter: str | None, say: Callable[[str], None] = lambda _: None
    ) -> None:
        """`meter` is its name; without one the second file stays at its header, which is said once."""
        Path(directory).mkdir(parents=True, exist_ok=True)
        # Without a buffer: a row is in the file when it is written.
        self._instructions = open(instructions_file(directory, rank), "wb", buffering=0)
        self._energy = open(energy_file(directory, rank), "wb", buffering=0)
        self._instructions.write(f"{','.join(INSTRUCTION_COLUMNS)}\n".encode())
        self._energy.write(f"{','.join(ENERGY_COLUMNS)}\n".encode())
        if rank == 0:
            (Path(directory) / _METER).write_text(f"{meter or 'none'}\n", encoding="utf-8")
        if meter is None:
            say(f"there is no energy meter here: {energy_file(directory, rank)} holds its header only")

    def span(self, span: Span) -> None:
        instruction, start, end, frequency = span
        microbatch = instruction.microbatch if instruction.microbatch >= 0 else ""
        stage = "" if instruction.kind == STEP else instruction.stage
        clock = "" if frequency is None else frequency
        name = NAMES[instruction.kind]
        self._instructions.write(f"{name},{start:.6f},{end:.6f},{stage},{microbatch},{clock}\n".encode())

    def step(self, step: DeviceStep) -> None:
        for time, energy in step.readings:
            self._energy.write(f"{time:.6f},{energy:.3f}\n".encode())

    def close(self) -> None:
        self._instructions.close()
        self._energy.close()
