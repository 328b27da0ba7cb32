"""The timing files: the original's columns and names first, rows that survive a kill, a reader that names the line."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halocline.energy.controller import Controller, DeviceStep, Span
from halocline.energy.device.meter import CounterWatch, Reading
from halocline.energy.profile.timing_csv import (
    TimingCsv,
    energy_file,
    instructions_file,
    meter_name,
    ranks_in,
    read_energy,
    read_instructions,
)
from halocline.energy.simulated.device import SimulatedDevice
from halocline.plan import Plan
from halocline.schedule import generate
from halocline.schedule.events import TimeMarks
from halocline.schedule.instruction import COMPUTE, Instruction
from harness.playing import play


def written(directory: Path, plan: Plan, steps: int = 2, meter: bool = True) -> list[SimulatedDevice]:
    """The files of a run on simulated devices at their own clocks."""
    schedule = generate(plan)
    devices = [SimulatedDevice(directory / "rack", schedule, rank) for rank in range(plan.world_size)]
    controllers = [
        Controller(
            schedule.ranks[rank],
            TimeMarks(device.time),
            sampler=CounterWatch(device) if meter else None,
            listeners=[TimingCsv(directory, rank, meter=device.name if meter else None)],
        )
        for rank, device in enumerate(devices)
    ]
    play(schedule, [[device, controller] for device, controller in zip(devices, controllers)], steps)
    for controller in controllers:
        controller.close()
    return devices


def test_columns_and_names_are_the_originals_and_more(tmp_path: Path) -> None:
    plan = Plan.from_flags(split_size=2, parts=3, layers=2)
    devices = written(tmp_path, plan)
    assert ranks_in(tmp_path) == [0, 1]
    assert meter_name(tmp_path) == "simulated GPU"
    for rank, device in enumerate(devices):
        with open(instructions_file(tmp_path, rank), newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["instruction", "start", "end", "stage", "microbatch", "frequency"]
        names = {row["instruction"] for row in rows}
        assert names == {"forward_microstep", "backward_microstep", "optimizer_step"} | (
            {"batch_input"} if not rank else set()
        )
        assert sum(row["instruction"] == "forward_microstep" for row in rows) == 2 * 3
        assert {row["stage"] for row in rows if row["instruction"] != "optimizer_step"} == {str(rank)}
        assert {row["frequency"] for row in rows} == {""}, "no clock was set"
        with open(energy_file(tmp_path, rank), newline="") as file:
            counted = list(csv.DictReader(file))
        assert list(counted[0]) == ["time", "energy"]
        assert float(counted[-1]["energy"]) == pytest.approx(device.energy(), abs=1e-3)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    plan = Plan.from_flags(split_size=2, parts=3, layers=2, schedule="zb-h1")
    written(tmp_path, plan, steps=1)
    for rank, row in enumerate(generate(plan).ranks):
        wanted = [(i.kind, i.stage, i.microbatch) for i in row if i.kind in COMPUTE]
        spans = [span for span in read_instructions(tmp_path, rank) if span.instruction.kind in COMPUTE]
        assert [(i.kind, i.stage, i.microbatch) for i in (span.instruction for span in spans)] == wanted
        assert all(span.end > span.start for span in spans)
        energy = read_energy(tmp_path, rank)
        assert [reading.time for reading in energy] == pytest.approx([0.1 * (n + 1) for n in range(len(energy))])


def test_without_a_meter_the_header_stands_alone_and_it_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    file = TimingCsv(tmp_path, 0, meter=None, say=said.append)
    file.span(Span(Instruction("forward", 0, 0, 0), 1.0, 2.0))
    file.step(DeviceStep(0, 1.0, 2.0, (), ()))
    file.close()
    assert energy_file(tmp_path, 0).read_text() == "time,energy\n"
    assert len(said) == 1 and "there is no energy meter here" in said[0]
    assert meter_name(tmp_path) == "none"


KILLED = """
import sys, os, signal
from halocline.energy.profile.timing_csv import TimingCsv
from halocline.energy.controller import DeviceStep
from halocline.energy.device.meter import Reading
from halocline.energy.controller import Span
from halocline.schedule.instruction import Instruction
file = TimingCsv(sys.argv[1], 0, meter="simulated")
for number in range(50):
    file.span(Span(Instruction("forward", 0, 0, number), number, number + 0.5, 1200))
file.step(DeviceStep(0, 0.0, 50.0, (), (Reading(1.0, 2.0), Reading(3.0, 4.0))))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_every_row(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert len(read_instructions(tmp_path, 0)) == 50
    assert read_energy(tmp_path, 0) == [Reading(1.0, 2.0), Reading(3.0, 4.0)]


def test_the_originals_three_columns_are_enough(tmp_path: Path) -> None:
    instructions_file(tmp_path, 3).write_text(
        "instruction,start,end\nbatch_input,1.0,1.1\nforward_microstep,1.1,1.5\nbackward_microstep,1.5,2.25\n"
    )
    spans = read_instructions(tmp_path, 3, stage=2)
    assert [(i.kind, i.stage) for i in (span.instruction for span in spans)] == [
        ("batch-input", 2),
        ("forward", 2),
        ("backward", 2),
    ]
    assert spans[2][1:] == (1.5, 2.25, None)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    instructions_file(tmp_path, 0).write_text("instruction,start,end\nforward_microstep,1.0,1.5\nbackward_micro")
    energy_file(tmp_path, 0).write_text("time,energy\n1.0,20.0\n1.1,5")
    assert len(read_instructions(tmp_path, 0)) == 1
    assert read_energy(tmp_path, 0) == [Reading(1.0, 20.0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start,end\n1,2\n", r"instructions-0.csv:1: the header 'start,end' lacks instruction"),
        ("instruction,start,end\nsideways,1,2\n", r":2: instruction 'sideways' is not known: use one of batch_input"),
        ("instruction,start,end\nforward_microstep,2,1\n", r":2: end 1.000000 comes before start 2.000000"),
        ("instruction,start,end\nforward_microstep,now,1\n", r":2: start = 'now' is not a finite number"),
        ("instruction,start,end\nforward_microstep,1,nan\n", r":2: end = 'nan' is not a finite number"),
        ("instruction,start,end\nforward_microstep,1\n", r":2: 2 fields where the header has 3"),
        ("instruction,start,end,stage\nforward_microstep,1,2,-1\n", r":2: stage = '-1' is not a whole number"),
    ],
)
def test_bad_rows_are_refused_by_line(text: str, said: str, tmp_path: Path) -> None:
    instructions_file(tmp_path, 0).write_text(text)
    with pytest.raises(ValueError, match=said):
        read_instructions(tmp_path, 0)


def test_a_counter_that_falls_is_refused(tmp_path: Path) -> None:
    energy_file(tmp_path, 0).write_text("time,energy\n1.0,20.0\n1.1,5.0\n")
    with pytest.raises(ValueError, match=r"time-energy-0.csv:3: 1.100000 s, 5 J does not come after .*only rises"):
        read_energy(tmp_path, 0)
