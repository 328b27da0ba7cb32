"""The controller in the hooks of a real engine on real processes, and players against a real server."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halocline.energy.client import Client, RankClient
from halocline.energy.controller import Controller
from halocline.energy.device.clock import GuardedClock
from halocline.energy.device.meter import CounterWatch
from halocline.energy.server_player import Played, ServerPlayer
from halocline.energy.simulated.device import SimulatedDevice
from halocline.energy.simulated.law import Law
from halocline.plan import Plan
from halocline.schedule import generate
from halocline.schedule.events import TimeMarks
from halocline.schedule.instruction import COMPUTE, FORWARD, STEP
from harness.checks import controller as check_controller
from harness.playing import play
from harness.ranks import on_processes
from harness.serving import Own

PLANS = {
    "1f1b": Plan.from_flags(split_size=2, parts=4, layers=4),
    "gems": Plan.from_flags(split_size=2, layers=4, times=4),
    "replicas": Plan.from_flags(split_size=1, parts=4, layers=4, replicas=2),
}
STEPS = 4


@pytest.fixture(scope="module", params=PLANS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Plan, Path, list[dict[str, Any]]]:
    plan, directory = PLANS[request.param], tmp_path_factory.mktemp("controlled")
    return plan, directory, on_processes(2, check_controller.controlled, plan.to_toml(), str(directory), STEPS)


def test_training_is_not_changed(run: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    plan, _, ranks = run
    assert [rank["losses"] for rank in ranks] == on_processes(2, check_controller.plain, plan.to_toml(), STEPS)


def test_every_computation_has_its_span_and_its_frequency(run: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    plan, _, ranks = run
    for rank, found in enumerate(ranks):
        row = generate(plan).ranks[rank % plan.ranks_per_replica]
        wanted = [i for i in row if i.kind in COMPUTE or i.kind == STEP]
        assert [step.number for step in found["steps"]] == list(range(STEPS))
        for step in found["steps"]:
            assert [span.instruction for span in step.spans] == wanted
            assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(step.spans)), "one thing at a time"
            played = [span.frequency for span in step.spans if span.instruction.kind in COMPUTE]
            if step.number == 2:
                assert set(played) == {None}
            else:
                assert played == [(1410, 900)[n // 2 % 2] for n in range(len(played))]


def test_a_span_is_as_long_as_its_frequency_makes_it(run: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    """The clock is set before the work begins, and waiting is no part of it."""
    law = Law()
    for found in run[2]:
        for step in found["steps"]:
            for span in step.spans:
                if span.instruction.kind in COMPUTE:
                    wanted = law.seconds(span.instruction.kind, span.frequency or 1410)
                    assert span.seconds == pytest.approx(wanted, rel=1e-9)


def test_the_clock_is_told_only_of_changes_and_given_back(run: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    for found in run[2]:
        played = [span.frequency for step in found["steps"] for span in step.spans if span.instruction.kind in COMPUTE]
        changes = sum(a != b and b is not None for a, b in itertools.pairwise([None, *played]))
        assert found["sets"] == changes
        assert found["state"] == "default"


def test_the_counter_goes_with_the_steps(run: tuple[Plan, Path, list[dict[str, Any]]]) -> None:
    for found in run[2]:
        readings = [reading for step in found["steps"] for reading in step.readings]
        assert len(readings) >= 5
        assert all(a.time < b.time and a.energy < b.energy for a, b in itertools.pairwise(readings))
        for step in found["steps"]:
            assert all(reading.time <= step.end for reading in step.readings)


def test_waiting_for_a_slow_stage_is_not_work() -> None:
    slow = 0.2
    first, second = on_processes(2, check_controller.timed, PLANS["1f1b"].to_toml(), slow)
    assert all(span.seconds >= slow for span in first if span.instruction.kind == FORWARD)
    assert min(span.seconds for span in second if span.instruction.kind == FORWARD) < slow / 2


def test_steps_after_it_is_closed_are_at_the_devices_own_clock(tmp_path: Path) -> None:
    schedule = generate(Plan.from_flags(split_size=1, parts=3, layers=1))
    device = SimulatedDevice(tmp_path, schedule, 0)
    player = check_controller.Pattern(6)
    controller = Controller(schedule.ranks[0], TimeMarks(device.time), clock=GuardedClock(device), player=player)
    controller.close()
    play(schedule, [[device, controller]], 2)
    assert controller_clock(tmp_path, 0) == "default"


# ---------------------------------------------------------------------------------------------------------- the server


class Job:
    """The ranks of a job on simulated devices, and the windows they played."""

    def __init__(self, plan: Plan, directory: Path, url: str, steps: int = 3) -> None:
        self.schedule = generate(plan)
        self.client = Client(url)
        self.said: list[str] = []
        ranks = range(plan.world_size)
        self.windows: list[list[Played]] = [[] for _ in ranks]
        work = [1.0, 0.8, 0.9, 0.7][: len(plan.stages)]
        self.devices = [SimulatedDevice(directory, self.schedule, rank, work=work) for rank in ranks]
        self.job = self.client.register_job(plan, device=self.devices[0].name)
        self.controllers = [self._controller(plan, rank, steps) for rank in ranks]

    def _controller(self, plan: Plan, rank: int, steps: int) -> Controller:
        device, row = self.devices[rank], self.schedule.ranks[rank % plan.ranks_per_replica]
        clock = GuardedClock(device, self.said.append)
        self.client.register_rank(self.job, rank, plan, clock.frequencies())
        here = RankClient(self.client, self.job, rank, self.said.append)
        player = ServerPlayer(
            lambda: here,
            row,
            steps,
            available=clock.frequencies(),
            warmup=1,
            say=self.said.append,
            over=self.windows[rank].append,
        )
        marks, sampler = TimeMarks(device.time), CounterWatch(device)
        return Controller(row, marks, sampler=sampler, clock=clock, player=player)

    def play(self, windows: int, warmup: int = 1, steps: int = 3) -> None:
        observers = [[device, controller] for device, controller in zip(self.devices, self.controllers)]
        play(self.schedule, observers, warmup + windows * steps)

    def measured(self, number: int) -> tuple[float, float]:
        """Seconds and joules of an iteration in a window."""
        row = [rank[number] for rank in self.windows]
        times = [sum(played.times) / len(played.times) for played in row]
        joules = [sum(played.energies or []) / len(played.times) for played in row]
        return sum(times) / len(times), sum(joules)

    def close(self) -> None:
        for controller in self.controllers:
            controller.close()


@pytest.mark.parametrize(
    "plan",
    [
        Plan.from_flags(split_size=4, parts=6, layers=4),
        Plan.from_flags(split_size=2, parts=2, layers=2, times=4),
        Plan.from_flags(split_size=2, parts=6, layers=2, replicas=2),
        Plan.from_flags(split_size=2, parts=4, layers=2, num_spatial_parts=2, slice_method="vertical"),
    ],
    ids=["1f1b", "mirrored", "replicas", "tiles"],
)
def test_from_the_first_window_to_a_plan_that_saves(plan: Plan, own: Callable[..., Own], tmp_path: Path) -> None:
    server = own("--stride", "6")
    job = Job(plan, tmp_path / "rack", server.url)
    job.play(windows=16)
    phases = [played.schedule.phase for played in job.windows[0] if played.schedule is not None]
    assert phases[0] == "profiling" and phases[-1] == "deployed", phases
    time_before, energy_before = job.measured(0)
    time_after, energy_after = job.measured(-1)
    assert time_after < 1.02 * time_before
    assert energy_after < 0.97 * energy_before
    promised = job.windows[0][-1].schedule
    assert promised is not None and promised.energy is not None
    assert energy_after == pytest.approx(promised.energy, rel=0.05), "what was promised is what was measured"
    power = job.windows[0][-1].blocking
    assert power is not None and power.value == pytest.approx(Law().blocking, rel=0.1)
    job.close()
    assert not job.said
    assert all(controller_clock(tmp_path / "rack", rank) == "default" for rank in range(plan.world_size))


def controller_clock(directory: Path, rank: int) -> str:
    return (directory / f"clock-{rank}.txt").read_text().strip()


def test_without_a_server_training_goes_on_and_says_so_once(own: Callable[..., Own], tmp_path: Path) -> None:
    server = own()
    job = Job(Plan.from_flags(split_size=1, parts=3, layers=1), tmp_path / "rack", server.url, steps=2)
    job.play(windows=1, steps=2)
    server.kill()
    job.play(windows=3, warmup=0, steps=2)
    assert len(job.windows[0]) == 4
    assert [played.schedule is None for played in job.windows[0]] == [False, True, True, True]
    assert len(job.said) == 1 and "training goes on at default clocks" in job.said[0], job.said
    assert controller_clock(tmp_path / "rack", 0) == "default"
    job.close()


def test_a_schedule_for_another_list_is_not_played(own: Callable[..., Own], tmp_path: Path) -> None:
    server = own("--scheduler", "all-max")
    job = Job(Plan.from_flags(split_size=1, parts=3, layers=1), tmp_path / "rack", server.url)
    other = ServerPlayer(
        lambda: RankClient(job.client, job.job, 0, job.said.append),
        generate(Plan.from_flags(split_size=1, parts=5, layers=1)).ranks[0],
        2,
        available=job.devices[0].frequencies(),
        say=job.said.append,
    )
    assert other.play(0) is None
    assert len(job.said) == 1 and "6 computations, and this rank's list is another with 10" in job.said[0]
    job.close()
