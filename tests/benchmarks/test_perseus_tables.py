"""The paper's tables as the command makes them: of the shipped profile, beside what was published of it, and of any
other profile and schedule.
"""

from __future__ import annotations

import csv
import json
import runpy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halocline.energy.frontier.frontier import solve
from halocline.energy.profile.table import ProfileTable
from halocline.plan import Plan
from harness.processes import program

ROOT = Path(__file__).parents[2]
COMMAND = ROOT / "benchmarks" / "perseus_tables.py"
PROFILE = ROOT / "examples" / "profiles" / "gpt3-175b-a100.csv"
PUBLISHED = ROOT / "tests" / "energy" / "frontier" / "data"
BASELINES = ("EnvPipe-like", "ZeusGlobal", "ZeusPerStage")


def small_profile(folder: Path, stages: int = 2, note: str = "# blocking power 80.00 W\n") -> Path:
    """The first stages of the shipped one, and every third of its frequencies."""
    rows = [row for row in ProfileTable.read(PROFILE).rows if row.stage < stages and row.frequency % 45 == 15]
    path = folder / "small.csv"
    path.write_text(note + ProfileTable(tuple(rows)).to_text(), encoding="utf-8")
    return path


def require_sound(tables: dict[str, Any], points: list[dict[str, str]]) -> None:
    """What holds of any profile: nobody is below the frontier, at any time and under any straggler."""
    for row in tables["intrinsic"]:
        assert 0 <= row["plan"] <= row["frontier"] + 1e-12
        assert 1 <= row["least at"] <= row["T*"]
        assert row["slower"] <= 1e-12
    for row in tables["baselines"]:
        assert row["points"] >= 1
        assert -1e-9 <= row["more energy"] <= row["most energy"] + 1e-12
        assert -1e-9 <= row["more time"] <= row["most time"] + 1e-12
    ends = {row["microbatches"]: row["T*"] for row in tables["intrinsic"]}
    for count, end in ends.items():
        rows = [row for row in tables["stragglers"] if row["microbatches"] == count]
        for row in rows:
            assert all(row[name] is None or row[name] <= row["frontier"] + 1e-12 for name in ("plan", *BASELINES))
        joules = [row["frontier"] * row["all-max, J"] for row in rows]
        slack = 1e-9 * rows[0]["all-max, J"]
        assert all(after >= before - slack for before, after in pairwise(joules))
        done = [saved for row, saved in zip(rows, joules) if row["T'"] >= end]
        assert done == pytest.approx([done[0]] * len(done) if done else []), "beyond T* nothing more is saved"

        mine = [row for row in points if int(row["microbatches"]) == count]
        times, energies = zip(*((float(r["time"]), float(r["energy"])) for r in mine if r["of"] == "frontier"))
        others = [row for row in mine if row["of"] != "frontier"]
        assert {row["of"] for row in others} == {"all-max", *BASELINES}
        for row in others:
            time, energy = float(row["time"]), float(row["energy"])
            assert time >= times[0] * (1 - 1e-12)
            # Beyond T* the frontier rises; its last point is below all of that.
            assert energy >= np.interp(time, times, energies) * (1 - 1e-9)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_shipped_profile_beside_what_was_published_of_it(tmp_path: Path) -> None:
    factors = "1.01,1.02,1.05,1.1,1.2,1.3,1.4,1.5,1.6"
    ended = program(
        COMMAND, "--microbatches", "12", "--stragglers", factors, "--json", "--out", "tables", directory=tmp_path
    )
    assert ended.code == 0, ended.err
    tables = json.loads(ended.out)
    require_sound(tables, read(tmp_path / "tables" / "points.csv"))

    (intrinsic,) = tables["intrinsic"]
    assert intrinsic["T_min, s"] == pytest.approx(intrinsic["all-max, s"], rel=1e-9)
    assert intrinsic["paper"] == 0.15201604
    assert intrinsic["plan"] > intrinsic["paper"]
    shares = [row["frontier"] for row in tables["stragglers"] if row["T'"] < intrinsic["least at"]]
    assert shares == sorted(shares), "the share, too, grows up to the least energy"

    (published,) = tables["published"]
    assert published["model apart"] < 1e-8
    assert published["intrinsic"] == pytest.approx(intrinsic["paper"], abs=1e-8)
    assert published["too short by"] > 0.005, "its fastest iterations cannot be had"
    assert published["least less"] > 0
    late = [row["published"] for row in tables["stragglers"][:2]]
    assert late == pytest.approx([0.17111253, 0.18612990], abs=1e-8), "as the artifact prints it"
    (envpipe,) = tables["envpipe"]
    assert abs(envpipe["energy apart"]) < 1e-8
    assert abs(envpipe["time apart"]) < 1e-5, "it is published in hundredths of a second, times ten"

    for name in ("intrinsic", "stragglers", "baselines", "envpipe", "published", "elsewhere"):
        rows = read(tmp_path / "tables" / f"{name}.csv")
        assert [
            {key: "" if value is None else str(value) for key, value in row.items()} for row in tables[name]
        ] == rows


def test_the_printed_tables(tmp_path: Path) -> None:
    ended = program(COMMAND, "--microbatches", "4", "--stragglers", "1.2", directory=tmp_path)
    assert ended.code == 0, ended.err
    assert ended.err == "gpt3-175b-a100, 4 microbatches\n"
    for words in ("Intrinsic bloat", "Stragglers", "Baselines", "another profile", "blocking power 83.64 W", " cores"):
        assert words in ended.out
    assert "Published" not in ended.out, "there is no frontier of 4 microbatches"


@pytest.mark.parametrize("schedule", ["gems", "interleaved", "zb-h1"])
def test_any_profile_and_schedule(schedule: str, tmp_path: Path) -> None:
    small_profile(tmp_path, 4)
    words = ["small.csv", "--microbatches", "4,8", "--schedule", schedule, "--stragglers", "1.1,1.3,1.7", "--json"]
    ended = program(COMMAND, *words, "--out", "out", directory=tmp_path)
    assert ended.code == 0, ended.err
    tables = json.loads(ended.out)
    require_sound(tables, read(tmp_path / "out" / "points.csv"))
    assert {row["paper"] for row in tables["intrinsic"]} == {None}
    assert "envpipe" not in tables
    assert "published" not in tables
    assert "blocking power 80 W" in tables["facts"]


def plans() -> Iterator[tuple[Any, dict[str, Any]]]:
    module = runpy.run_path(str(ROOT / "benchmarks" / "perseus_baselines.py"))
    for schedule in ("1f1b", "zb-h1"):
        frontier = solve(Plan.uniform(8, schedule=schedule, microbatches=8), ProfileTable.read(PROFILE), 83.64)
        yield frontier, module["baselines"](frontier)


def test_the_baselines_are_what_they_are_said_to_be() -> None:
    profile = ProfileTable.read(PROFILE)
    for frontier, found in plans():
        envpipe, *rest = found["EnvPipe-like"]
        assert not rest
        assert {clock for _, clock in envpipe.frequencies[-1]} == {1410}, "the last stage"
        assert {row[0][1] for row in envpipe.frequencies} == {1410}, "first forwards"
        assert {row[-1][1] for row in envpipe.frequencies} == {1410}, "last backwards"
        assert envpipe.time == pytest.approx(frontier.all_max.time), "it is not slower"
        assert envpipe.energy < frontier.all_max.energy

        clocks = [{clock for row in plan.frequencies for _, clock in row} for plan in found["ZeusGlobal"]]
        assert clocks == [{row.frequency} for row in profile.of(0, "forward")]
        assert found["ZeusGlobal"][0].energy == frontier.all_max.energy

        heaviest = max(range(8), key=lambda stage: profile.of(stage, "forward")[0].time)
        for plan in found["ZeusPerStage"]:
            (goal,) = {clock for _, clock in plan.frequencies[heaviest]}
            (seconds,) = [row.time for row in profile.of(heaviest, "forward") if row.frequency == goal]
            for stage, row in enumerate(plan.frequencies):
                (clock,) = {clock for _, clock in row}
                apart = {row.frequency: abs(row.time - seconds) for row in profile.of(stage, "forward")}
                assert apart[clock] == min(apart.values())


def test_mistakes_are_answered_in_one_line(tmp_path: Path) -> None:
    small_profile(tmp_path, note="")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "small-frontier-4.csv").write_text("seconds,joules\n1,2\n")
    short = ["--blocking-power", "80", "--microbatches", "4", "--published", "theirs"]
    for words, message in (
        (["--microbatches", "x"], "--microbatches x is not a list of numbers: write e.g. --microbatches 12,24"),
        (["small.csv"], "small.csv does not say the blocking power: give --blocking-power W"),
        (["small.csv", "--stages", "3", "--blocking-power", "80"], "the profile has 2 stages and the plan 3 stages"),
        (["none.csv"], "none.csv"),
        (["small.csv", *short], "small-frontier-4.csv is not a published frontier: give rows of time,energy"),
    ):
        ended = program(COMMAND, *words, directory=tmp_path)
        assert ended.code == 2
        assert ended.out == ""
        (line,) = [line for line in ended.err.splitlines() if "microbatches" not in line or "error" in line]
        assert line.startswith("perseus_tables: error: ")
        assert message in line


def test_a_published_frontier_of_any_profile(tmp_path: Path) -> None:
    """Named like the profile: here as the paper's cost model makes it, so nothing is apart."""
    path = small_profile(tmp_path)
    profile = ProfileTable.read(path)
    modelled = solve(Plan.uniform(2, microbatches=6), profile, 80.0, "exponential", unit_time=0.001)
    lines = [f"{time!r},{energy!r}" for time, energy in modelled.sampled(0.001)]
    (tmp_path / "small_frontier_mb6.csv").write_text("\n".join(["time,energy", *lines]) + "\n")
    ended = program(COMMAND, "small.csv", "--microbatches", "6,16", "--published", ".", "--json", directory=tmp_path)
    assert ended.code == 0, ended.err
    tables = json.loads(ended.out)
    (row,) = tables["published"]
    assert row["microbatches"] == 6
    assert row["model apart"] < 1e-9
    assert [row["published"] is None for row in tables["stragglers"]] == [False] * 6 + [True] * 6
