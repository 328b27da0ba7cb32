"""The demonstration as a user runs it: a server, four processes that train, a sweep, a solution, a straggler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halocline.cli import main
from halocline.energy.profile.table import ProfileTable
from halocline.energy.profile.timing_csv import meter_name
from halocline.energy.server_player import read_windows
from harness.processes import typed

TINY = "gpt3-small --layers 2 --hidden 16 --heads 2 --vocab 32 --seq 8 --pp 2 --microbatches 4 --batch-size 8"


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path) -> None:
    (ended,) = typed([f"halocline energy demo --json --patience 900 --out {tmp_path}"], tmp_path)
    assert ended.code == 0, ended.err + (tmp_path / "train.log").read_text()
    facts = json.loads(ended.out)
    assert facts["device"] == "simulated"
    assert facts["reset"], "clocks were given back"
    assert 0.05 < facts["saved"] < 0.5
    assert abs(facts["slowdown"]) < 0.02
    assert facts["saved_with_straggler"] > facts["saved"]
    assert facts["straggler"]["time"] == pytest.approx(1.2 * facts["before"]["time"], rel=0.03)
    # What is printed is what the ranks noted while they trained.
    ranks = [read_windows(tmp_path / "run", rank) for rank in range(4)]
    assert facts["before"]["energy"] == pytest.approx(sum(rank[0]["energy"] for rank in ranks))
    assert {window["device"] for rank in ranks for window in rank} == {"simulated GPU"}
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0], "training went on meanwhile"


@pytest.mark.slow
def test_profile_by_training_two_processes(tmp_path: Path) -> None:
    sizes = "--meter simulated --device cpu --frequency-stride 12 --num-prof-steps 3 --num-warmup-steps 1"
    places = "--export_timing_csv true --out profile.csv --run-dir run --json"
    (ended,) = typed([f"halocline energy profile {TINY} {sizes} {places}"], tmp_path)
    assert ended.code == 0, ended.err
    facts = json.loads(ended.out.splitlines()[-1])
    table = ProfileTable.read(tmp_path / "profile.csv")
    assert facts["rows"] == len(table.rows) and table.stages == 2
    assert table.note.startswith("simulated GPU")
    assert facts["blocking_power"] == pytest.approx(80.0, rel=0.05)
    assert meter_name(tmp_path / "run") == "simulated GPU"
    assert main(["energy", "profile", "--from", str(tmp_path / "run"), "--out", str(tmp_path / "again.csv")]) == 0
    again = {row[:3]: row for row in ProfileTable.read(tmp_path / "again.csv").rows}
    for row in table.rows:
        assert again[row[:3]].time == pytest.approx(row.time, rel=0.01)
        assert again[row[:3]].energy == pytest.approx(row.energy, rel=0.1)


def test_a_straggler_is_slower(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["energy", "demo", "--straggler", "0.9"]) == 2
    assert "--straggler 0.9 is not above 1" in capsys.readouterr().err


def test_a_directory_that_holds_a_run_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert main(["energy", "demo", "--out", str(tmp_path)]) == 2
    assert "already holds a run" in capsys.readouterr().err
