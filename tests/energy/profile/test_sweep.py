"""Profiles: a sweep on simulated devices finds the law again and stops where it should; a run's files give the same."""

from __future__ import annotations

import csv
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import main
from halocline.energy.controller import Controller
from halocline.energy.device.clock import GuardedClock
from halocline.energy.device.meter import CounterWatch
from halocline.energy.profile.offline import Missing, derive
from halocline.energy.profile.sweep import Report, Sweep, SweepPlayer
from halocline.energy.profile.table import ERRORS, ProfileTable, write_profile
from halocline.energy.profile.timing_csv import TimingCsv
from halocline.energy.simulated.device import SimulatedDevice
from halocline.energy.simulated.law import Law
from halocline.plan import Plan
from halocline.schedule import generate
from halocline.schedule.events import TimeMarks
from harness.playing import play

WORK = [1.2, 0.9, 1.0, 0.8]
STEPS = 4


def exchange(size: int) -> Any:
    """Gives every thread the reports of all, as ranks do."""
    barrier, reports = threading.Barrier(size), {}

    def share(rank: int, report: Report) -> list[Report]:
        barrier.wait(60)
        reports[rank] = report
        barrier.wait(60)
        return [reports[rank] for rank in range(size)]

    return share


def swept(plan: Plan, directory: Path, **options: Any) -> list[Sweep]:
    """Every rank's sweep, with its timing files in `directory`."""
    locked = options.pop("locked", False)
    schedule = generate(plan)
    stages, ranks = len(plan.stages), len(schedule.ranks)
    share, sweeps, observers = exchange(ranks), [], []
    for rank in range(ranks):
        device = SimulatedDevice(directory / "rack", schedule, rank, work=WORK[:stages], locked=locked)
        clock = GuardedClock(device)
        sweep = Sweep([clock.frequencies()] * stages, **options)
        player = SweepPlayer(
            sweep,
            schedule.ranks[rank],
            STEPS,
            lambda report, rank=rank: share(rank, report),
            warmup=1,
            stuck=lambda clock=clock: clock.stuck,
        )
        files = TimingCsv(directory, rank, meter=device.name)
        controller = Controller(
            schedule.ranks[rank],
            TimeMarks(device.time),
            sampler=CounterWatch(device),
            clock=clock,
            player=player,
            listeners=[files],
        )
        sweeps.append(sweep)
        observers.append([device, controller])
    play(schedule, observers, lambda rank: not sweeps[rank].done)
    for _, controller in observers:
        controller.close()
    return sweeps


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Sweep], Path]:
    directory = tmp_path_factory.mktemp("swept")
    return swept(Plan.from_flags(split_size=4, parts=6, layers=4), directory, stride=5), directory


def near_the_law(found: Mapping[tuple[int, str, int], Any], tolerance: float) -> None:
    law = Law()
    for (stage, kind, frequency), (time, energy) in found.items():
        seconds = law.seconds(kind, frequency, WORK[stage])
        joules = seconds * law.watts(kind, frequency)
        assert abs(time.value - seconds) < 5 * time.error + 1e-6
        assert energy.value == pytest.approx(joules, rel=tolerance)
        assert abs(energy.value - joules) < 6 * energy.error


def test_the_sweep_finds_the_law_within_its_error_bars(run: tuple[list[Sweep], Path]) -> None:
    sweep = run[0][0]
    assert {(stage, kind) for stage, kind, _ in sweep.found} == {
        (s, k) for s in range(4) for k in ("forward", "backward")
    }
    near_the_law(sweep.found, 0.05)
    assert sweep.blocking is not None
    assert abs(sweep.blocking.value - Law().blocking) < 6 * sweep.blocking.error


def test_all_ranks_hold_the_same(run: tuple[list[Sweep], Path]) -> None:
    first = run[0][0]
    for other in run[0][1:]:
        assert other.found == first.found
        assert other.blocking == first.blocking


def test_it_goes_down_from_the_highest_and_stops_when_energy_no_longer_falls(run: tuple[list[Sweep], Path]) -> None:
    law, found = Law(), run[0][0].found
    for stage in range(4):
        tried = sorted({f for s, _, f in found if s == stage}, reverse=True)
        assert tried == list(law.frequencies[::5])[: len(tried)], "from the highest, none left out"
        costs = []
        for frequency in tried:
            pair = [found[stage, kind, frequency] for kind in ("forward", "backward")]
            costs.append(sum(energy.value - law.blocking * time.value for time, energy in pair))
        assert costs.index(min(costs)) == len(tried) - 3, "two more were tried, and saved nothing"
        assert tried[-1] > law.frequencies[-1]


def test_the_lowest_frequency_is_a_limit(tmp_path: Path) -> None:
    sweep = swept(Plan.from_flags(split_size=1, parts=3, layers=1), tmp_path, stride=8, lowest=1200)[0]
    assert min(frequency for _, _, frequency in sweep.found) >= 1200


def test_mirrored_pipes_profile_both_their_stages(tmp_path: Path) -> None:
    sweep = swept(Plan.from_flags(split_size=2, layers=2, times=2, parts=2), tmp_path, stride=20, lowest=900)[0]
    assert {stage for stage, _, _ in sweep.found} == {0, 1}
    near_the_law(sweep.found, 0.08)


def test_tiles_of_a_stage_are_one_row(tmp_path: Path) -> None:
    plan = Plan.from_flags(split_size=2, parts=3, layers=2, num_spatial_parts=2, slice_method="vertical")
    sweep = swept(plan, tmp_path, stride=20, lowest=900)[0]
    assert {stage for stage, _, _ in sweep.found} == {0, 1}
    near_the_law(sweep.found, 0.08)


def test_a_clock_that_may_not_be_set_gives_the_row_it_has(tmp_path: Path) -> None:
    sweep = swept(Plan.from_flags(split_size=2, parts=3, layers=2), tmp_path, locked=True)[0]
    assert {frequency for _, _, frequency in sweep.found} == {1410}
    near_the_law(sweep.found, 0.08)


def test_nothing_to_sweep_is_refused() -> None:
    with pytest.raises(ValueError, match="0 frequencies to sweep: use --meter simulated"):
        Sweep([[], []])


def test_a_profile_is_written_with_its_errors(run: tuple[list[Sweep], Path], tmp_path: Path) -> None:
    sweep = run[0][0]
    path = write_profile(tmp_path, sweep.found, "simulated GPU", sweep.blocking)
    table = ProfileTable.read(path)
    assert table.note.startswith("simulated GPU; blocking power")
    assert table.blocking_power == pytest.approx(Law().blocking, rel=0.02)
    assert [row.frequency for row in table.of(0, "forward")] == sorted({f for s, _, f in sweep.found if s == 0})[::-1]
    errors = [line for line in (tmp_path / ERRORS).read_text().splitlines() if not line.startswith("#")]
    assert errors[0] == "stage,instruction,frequency,time_error,energy_error"
    assert len(errors) == 1 + len(table.rows)
    assert all(float(row[4]) > 0 for row in csv.reader(errors[1:]))


# ------------------------------------------------------------------------------------------------------- from its files


def test_the_files_of_the_run_give_the_same_profile(run: tuple[list[Sweep], Path]) -> None:
    sweeps, directory = run
    derived = derive(directory)
    assert derived.found.keys() == sweeps[0].found.keys()
    near_the_law(derived.found, 0.05)
    assert derived.blocking is not None and derived.blocking.value == pytest.approx(Law().blocking, rel=0.03)


def test_rows_before_the_first_clock_was_set_are_left_out(run: tuple[list[Sweep], Path], tmp_path: Path) -> None:
    directory = run[1]
    for rank in range(4):
        (tmp_path / f"time-energy-{rank}.csv").write_text((directory / f"time-energy-{rank}.csv").read_text())
        head, *lines = (directory / f"instructions-{rank}.csv").read_text().splitlines()
        early = [f"{line.rpartition(',')[0]}," for line in lines[:10]]
        (tmp_path / f"instructions-{rank}.csv").write_text("\n".join([head, *early, *lines[10:]]) + "\n")
    found = derive(tmp_path).found
    assert found.keys() == derive(directory).found.keys()
    near_the_law(found, 0.05)


def test_files_with_the_originals_columns_need_to_be_told(run: tuple[list[Sweep], Path], tmp_path: Path) -> None:
    directory = run[1]
    played = []
    for rank in range(4):
        (tmp_path / f"time-energy-{rank}.csv").write_text((directory / f"time-energy-{rank}.csv").read_text())
        with open(directory / f"instructions-{rank}.csv", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["instruction"] != "optimizer_step"]
        played = list(dict.fromkeys(int(row["frequency"]) for row in rows)) if rank == 0 else played
        lines = [",".join((row["instruction"], row["start"], row["end"])) for row in rows]
        (tmp_path / f"instructions-{rank}.csv").write_text("\n".join(["instruction,start,end", *lines]) + "\n")
    with pytest.raises(ValueError, match="do not say at which frequency the run was: give --frequency MHZ, or"):
        derive(tmp_path)
    with pytest.raises(ValueError, match="give --microbatches"):
        derive(tmp_path, Missing(frequencies=(1410,)))
    assert {f for _, _, f in derive(tmp_path, Missing(frequency=1410)).found} == {1410}
    missing = Missing(frequencies=tuple(played[:6]), warmup=1, steps=STEPS, microbatches=6)
    found = derive(tmp_path, missing).found
    assert {f for _, _, f in found} == set(played[:6])
    near_the_law(found, 0.15)


def test_the_command_derives_and_tells(
    run: tuple[list[Sweep], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.csv"
    assert main(["energy", "profile", "--from", str(run[1]), "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["note"].startswith("simulated GPU") and facts["rows"] == len(ProfileTable.read(out).rows)
    assert facts["blocking_power"] == pytest.approx(80.0, rel=0.03)
    assert main(["energy", "profile", "--from", str(run[1]), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "simulated GPU" in printed and "stage 3 backward" in printed and "blocking power" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "EMPTY"], "holds no instructions-R.csv"),
        (["--from", "RUN", "--stages", "3"], "4 ranks in .* do not share 3 stages"),
        (["--from", "RUN", "--frequencies", "high"], "--frequencies 'high' is no list: write 1410,1395"),
        ([], "no model to profile: write halocline energy profile MODEL"),
        (["gpt3-small", "--meter", "wattmeter"], "wattmeter"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, run: tuple[list[Sweep], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"EMPTY": str(tmp_path), "RUN": str(run[1])}
    assert main(["energy", "profile", *(places.get(word, word) for word in words)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(said, error), error


def test_readings_of_another_clock_are_refused(tmp_path: Path) -> None:
    """They would give every instruction 0 joules."""
    rows = [f"{name}_microstep,{s},{s + 0.1},0,0,1410" for s in range(8) for name in ("forward", "backward")]
    (tmp_path / "instructions-0.csv").write_text("\n".join(["instruction,start,end,stage,microbatch,frequency", *rows]))
    (tmp_path / "time-energy-0.csv").write_text("time,energy\n" + "\n".join(f"{1e6 + s},{9 * s}" for s in range(8)))
    with pytest.raises(ValueError, match=r"no two readings of time-energy-0.csv \(1000000.000 to 1000006.000 s\) fall"):
        derive(tmp_path)
