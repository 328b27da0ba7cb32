"""The simulated device: its time is the simulator's for every schedule, its energy adds up, and a run repeats."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from halocline.energy.device.meter import ClockRefused
from halocline.energy.simulated.device import PERIOD, SimulatedDevice
from halocline.energy.simulated.law import Kind, Law
from halocline.plan import Plan
from halocline.schedule import generate
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    COMPUTE,
    FORWARD,
    RECOMPUTE,
    REDUCE,
    STEP,
    Schedule,
)
from halocline.simulation import Costs, simulate
from harness.playing import play

PLANS = {
    "1f1b": Plan.from_flags(split_size=4, parts=6, layers=4),
    "gpipe": Plan.from_flags(split_size=3, parts=4, layers=3, schedule="gpipe"),
    "recompute": Plan.from_flags(split_size=3, parts=4, layers=3, recompute="all"),
    "early recompute": Plan.from_flags(split_size=3, parts=4, layers=3, schedule="early-recompute-1f1b"),
    "interleaved": Plan.from_flags(split_size=2, parts=4, layers=4, schedule="interleaved", chunks=2),
    "zb-h1": Plan.from_flags(split_size=4, parts=5, layers=4, schedule="zb-h1"),
    "gems": Plan.from_flags(split_size=4, layers=4, times=4),
    "chimera": Plan.from_flags(split_size=4, layers=4, parts=4, schedule="chimera"),
    "tiles": Plan.from_flags(split_size=3, parts=3, layers=3, num_spatial_parts=4),
    "tiles of unequal grids": Plan.from_flags(split_size=3, parts=3, layers=3, num_spatial_parts="4,2", spatial_size=2),
    "lanes": Plan.from_flags(split_size=2, parts=4, layers=2, local_DP=2),
}


def no_reduction() -> Law:
    """Reductions that take no time: the simulator runs those of one rank after each other."""
    law = Law()
    kinds = {**law.kinds, REDUCE: dataclasses.replace(law.kinds[REDUCE], seconds=0.0)}
    return dataclasses.replace(law, kinds=kinds)


def devices(directory: Path, schedule: Schedule, **options: Any) -> list[SimulatedDevice]:
    return [SimulatedDevice(directory, schedule, rank, **options) for rank in range(schedule.plan.world_size)]


def costs(schedule: Schedule, law: Law, work: list[float]) -> Costs:
    top = law.frequencies[0]
    seconds = {kind: [law.seconds(kind, top, w) for w in work] for kind in law.kinds}
    return Costs(
        forward=seconds[FORWARD],
        backward=seconds[BACKWARD],
        weight=seconds[BACKWARD_WEIGHT],
        recompute=seconds[RECOMPUTE],
        reduce=seconds[REDUCE],
        step=law.seconds(STEP, top),
    )


@pytest.mark.parametrize("name", PLANS)
def test_an_iteration_takes_as_long_as_the_simulator_says(name: str, tmp_path: Path) -> None:
    schedule, law = generate(PLANS[name]), no_reduction()
    work = [1.0 + 0.3 * (stage % 3) for stage in range(len(schedule.plan.stages))]
    made = devices(tmp_path, schedule, law=law, work=work, spread=0.0)
    play(schedule, [[device] for device in made], 1)
    expected = simulate(schedule, costs(schedule, law, work))
    assert max(device.time() for device in made) == pytest.approx(expected.makespan, rel=1e-12)


def test_replicas_wait_for_the_sum_of_their_gradients(tmp_path: Path) -> None:
    plan = Plan.from_flags(split_size=2, parts=3, layers=2, replicas=2)
    schedule, law, work = generate(plan), Law(), [1.0, 1.5]
    made = devices(tmp_path, schedule, law=law, work=work, spread=0.0)
    play(schedule, [[device] for device in made], 1)
    expected = simulate(schedule, costs(schedule, law, work))
    assert max(device.time() for device in made) == pytest.approx(expected.makespan, rel=1e-12)
    assert made[0].time() == pytest.approx(made[2].time(), rel=1e-12)


def test_energy_is_power_times_time_waiting_included(tmp_path: Path) -> None:
    schedule = generate(PLANS["1f1b"])
    made = devices(tmp_path, schedule, work=[1, 2, 1, 1], spread=0.0)
    play(schedule, [[device] for device in made], 2)
    law = Law()
    top = law.frequencies[0]
    for rank, device in enumerate(made):
        spent = busy = 0.0
        for instruction in schedule.ranks[rank]:
            if instruction.kind in COMPUTE or instruction.kind == STEP:
                work = 1 if instruction.kind == STEP else [1, 2, 1, 1][instruction.stage]
                seconds = law.seconds(instruction.kind, top, work)
                busy += 2 * seconds
                spent += 2 * seconds * law.watts(instruction.kind, top)
        whole = spent + law.blocking * (device.time() - busy)
        last = device.changes()[-1]
        assert device.energy() == last.energy
        late = device.time() - last.time
        assert 0 <= late < PERIOD
        assert whole - 400 * late <= last.energy <= whole - law.blocking * late + 1e-9


def test_the_counter_advances_every_tenth_of_a_second(tmp_path: Path) -> None:
    schedule = generate(PLANS["1f1b"])
    made = devices(tmp_path, schedule)
    play(schedule, [[device] for device in made], 2)
    changes = made[0].changes()
    assert [reading.time for reading in changes] == pytest.approx([PERIOD * (n + 1) for n in range(len(changes))])
    assert len(changes) == int(made[0].time() / PERIOD)
    assert made[0].changes() == []


def test_a_lower_clock_stretches_what_depends_on_it(tmp_path: Path) -> None:
    schedule = generate(Plan.from_flags(split_size=1, parts=2, layers=1))
    fast, slow = (SimulatedDevice(tmp_path / str(n), schedule, 0, spread=0.0) for n in range(2))
    slow.set(705)
    for device in (fast, slow):
        play(schedule, [[device]], 1)
    ratio = slow.time() / fast.time()
    assert 1.6 < ratio < 2.0, "half the clock takes almost twice as long: a fifth to a quarter is bound by memory"
    slow.reset()
    before = slow.time()
    play(schedule, [[slow]], 1)
    assert slow.time() - before == pytest.approx(fast.time())


def test_a_run_repeats_to_the_last_bit_and_another_seed_differs(tmp_path: Path) -> None:
    schedule = generate(PLANS["gems"])
    found = []
    for number, seed in enumerate((7, 7, 8)):
        made = devices(tmp_path / str(number), schedule, seed=seed)
        play(schedule, [[device] for device in made], 3)
        found.append([(device.time(), device.energy()) for device in made])
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_the_law_has_a_cheapest_frequency_inside() -> None:
    law = Law()
    for kind in (FORWARD, BACKWARD, BACKWARD_INPUT):
        beyond = {f: (law.watts(kind, f) - law.blocking) * law.seconds(kind, f) for f in law.frequencies}
        best = min(beyond, key=beyond.__getitem__)
        assert law.frequencies[-1] < best < law.frequencies[0]
        times = [law.seconds(kind, f) for f in law.frequencies]
        assert times == sorted(times)


def test_a_law_of_ones_own(tmp_path: Path) -> None:
    kinds = {kind: Kind(1.0, 100.0, 0.0) for kind in Law().kinds}
    law = Law(frequencies=(1000, 500), kinds=kinds, blocking=10.0, extra=0.0)
    schedule = generate(Plan.from_flags(split_size=1, parts=1, layers=1))
    device = SimulatedDevice(tmp_path, schedule, 0, law=law, spread=0.0)
    device.set(500)
    play(schedule, [[device]], 1)
    assert device.time() == pytest.approx(2.0 * 3)  # forward, backward and step


def test_a_clock_that_may_not_be_set(tmp_path: Path) -> None:
    schedule = generate(PLANS["1f1b"])
    with pytest.raises(ClockRefused, match="may not be set"):
        SimulatedDevice(tmp_path, schedule, 0, locked=True).set(1410)


def test_work_of_another_number_of_stages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="work has 2 numbers and the plan 4 stages"):
        SimulatedDevice(tmp_path, generate(PLANS["1f1b"]), 0, work=[1, 2])
