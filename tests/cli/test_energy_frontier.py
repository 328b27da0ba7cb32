"""`halocline energy frontier` by its answers and its files."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import main
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.plan import Plan, Stage

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "examples" / "profiles" / "gpt3-175b-a100.csv"
ASK = f"energy frontier --profile {PROFILE} --blocking-power 83.64"


def test_everything_is_written(ask: Any, tmp_path: Path) -> None:
    out = tmp_path / "made" / "here"
    text = ask(f"{ASK} --microbatches 4 --out {out}")
    assert "published with Perseus" in text
    assert "rounding to real clocks loses 0." in text
    lines = (out / "frontier.csv").read_text().splitlines()
    assert lines[0] == "time,energy"
    points = [tuple(map(float, line.split(","))) for line in lines[1:]]
    assert points == sorted(points) and len(points) > 50
    facts = json.loads((out / "frontier.json").read_text())
    assert facts["points"] == [list(point) for point in points]
    assert ElementTree.parse(out / "frontier.svg").getroot().tag.endswith("svg")
    files = sorted((out / "plans").glob("*.json"))
    index = (out / "plans" / "index.csv").read_text().splitlines()[1:]
    assert len(files) == len(points) == len(index)
    for file, (time, _) in list(zip(files, points))[::10]:
        plan = FrequencyPlan.load(file)
        assert plan.deadline == time and plan.time <= time
        assert "Perseus" in plan.note
        assert [len(row) for row in plan.frequencies] == [2 * 4] * 8


def test_the_blocking_power_is_the_profiles_where_it_says_it(ask: Any, tmp_path: Path) -> None:
    rows = "stage,instruction,frequency,time,energy\n0,forward,1000,1,200\n0,backward,1000,1,200\n"
    (tmp_path / "profile.csv").write_text(f"# simulated GPU; blocking power 81.25 W\n{rows}")
    line = f"energy frontier --profile {tmp_path}/profile.csv --microbatches 2"
    assert "blocking power 81.25 W (the profile's)" in ask(line)
    assert json.loads(ask(f"{line} --json"))["blocking_power"] == 81.25
    assert "blocking power 60 W (given)" in ask(f"{line} --blocking-power 60")


def test_fewer_plans_replace_those_of_an_earlier_run(ask: Any, tmp_path: Path) -> None:
    ask(f"{ASK} --microbatches 2 --out {tmp_path} --plans 12")
    ask(f"{ASK} --microbatches 2 --out {tmp_path} --plans 3")
    plans = [FrequencyPlan.load(path) for path in sorted((tmp_path / "plans").glob("*.json"))]
    facts = json.loads((tmp_path / "frontier.json").read_text())
    assert [plans[0].deadline, plans[-1].deadline] == [facts["time_min"], facts["time_star"]]
    assert len(plans) == 3


def test_the_papers_model_is_written_as_it_was_published(ask: Any, tmp_path: Path) -> None:
    text = ask(f"{ASK} --microbatches 12 --cost exponential --unit-time 0.001 --out {tmp_path} --plans 3")
    assert "longer than the model says" in text

    def points(path: Path) -> dict[int, float]:
        lines = [line.split(",") for line in path.read_text().split()[1:]]
        return {round(float(time) * 1000): float(energy) for time, energy in lines}

    ours = points(tmp_path / "frontier.csv")
    published = points(ROOT / "tests" / "energy" / "frontier" / "data" / "gpt3-175b-a100-frontier-12.csv")
    assert len(published) == 639 and published.keys() <= ours.keys()
    for time, energy in published.items():
        assert ours[time] == pytest.approx(energy, rel=1e-8)


def test_as_json(ask: Any) -> None:
    answer = json.loads(ask(f"{ASK} --microbatches 3 --stragglers 1.3 --json"))
    assert [row["factor"] for row in answer["savings"]] == [1.0, 1.3]
    assert 0 < answer["savings"][0]["saved"] < answer["savings"][1]["saved"] < 1
    assert 0 <= answer["rounding_loss"]["mean"] <= answer["rounding_loss"]["worst"] < 0.01
    assert answer["time_min"] == answer["points"][0][0]


def test_schedules_plans_and_degrees(ask: Any, tmp_path: Path) -> None:
    def answer(line: str) -> Any:
        return json.loads(ask(f"{ASK} --microbatches 4 --json {line}"))

    plain = answer("")
    assert (plain["stages"], plain["processes"]) == (8, 8)
    doubled = answer("--tensor 2 --replicas 3")
    assert doubled["processes"] == 48
    assert doubled["time_min"] == plain["time_min"]
    assert doubled["points"][0][1] == pytest.approx(6 * plain["points"][0][1])
    chunked = answer("--schedule interleaved")
    assert (chunked["stages"], chunked["processes"]) == (8, 4)
    shared = answer("--schedule interleaved --stages 8 --microbatches 8")
    assert (shared["stages"], shared["processes"]) == (16, 8)
    assert answer("--schedule gems")["time_min"] > plain["time_min"]
    Plan(tuple(Stage((s, s + 1), tiles=(1, 2) if s < 2 else (1, 1)) for s in range(8)), "zb-h1", 4).save(
        tmp_path / "plan.toml"
    )
    assert answer(f"--plan {tmp_path / 'plan.toml'}")["processes"] == 10
    late = answer("--latency 0.01")
    assert late["time_min"] == pytest.approx(plain["time_min"] + 14 * 0.01, rel=0.02)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("energy frontier", "no profile: give --profile profile.csv"),
        (f"energy frontier --profile {PROFILE}", "does not say it, give --blocking-power W"),
        (f"{ASK} --cost cheap", "cost"),
        (f"{ASK} --cost exponential --unit-time 1", "unit time 1 s is longer than an instruction"),
        (f"{ASK} --stages 4", "the profile has 8 stages and the plan 4 stages"),
        (f"{ASK} --schedule interleaved --chunks 3", "has 8 stages, which --chunks 3 do not divide"),
        (f"{ASK} --plans 0", "--plans 0 is below 1"),
        (f"{ASK} --stragglers fast", "'fast' is not a number"),
        (f"{ASK} --stragglers 0.5", "straggler factor 0.5 is not from 1"),
        (f"{ASK} --stragglers inf", "straggler factor inf is not from 1"),
        (f"{ASK} --blocking-power nan", "blocking power = nan"),
        (f"{ASK} --cost exponential --unit-time 1e-9", "into more than 20000 units: use"),
        ("energy frontier --profile nowhere.csv --blocking-power 1", "nowhere.csv: no such file"),
        (f"energy frontier --profile {ROOT} --blocking-power 1", "is a directory"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("halocline: error: ") and err.count("\n") == 1
    assert message in err


def test_it_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from halocline.cli import main; main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    line = f"{ASK} --microbatches 2 --json"
    subprocess.run([sys.executable, "-c", code, *line.split()], check=True, capture_output=True, timeout=60)
