"""Frequency plans on disk: read back as written, never evaluated, and refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from halocline.energy.frontier.frequency_plan import FORMAT, FrequencyPlan

PLAN = FrequencyPlan(
    3.0,
    2.5,
    100.25,
    (
        (("forward", 1410), ("backward-input", 1200), ("backward-weight", 1200), ("reduce", 210)),
        (("recompute", 900), ("backward", 1005)),
        (),
    ),
    "simulated",
)


def test_a_plan_is_read_back(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    assert FrequencyPlan.load(tmp_path / "plan.json") == PLAN


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(PLAN.to_json()), **fields})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('true')", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "format is"),
        (changed(format="other"), f"format is 'other', not '{FORMAT}'"),
        (changed(time=float("nan")), "time = nan is not a finite number"),
        (changed(time="2"), "time = '2' is not a finite number"),
        (changed(energy=-1), "energy = -1 is not a finite number"),
        (changed(deadline=True), "deadline = True is not"),
        (changed(letters=["F"]), "letters is not an object"),
        (changed(ranks={}), "ranks is not a list"),
        (changed(ranks=[7]), "rank 0 has no order and frequencies"),
        (changed(ranks=[{"order": "FF", "frequencies": [1]}]), "rank 0 has 2 instructions and 1 frequencies"),
        (changed(ranks=[{"order": "?", "frequencies": [1]}]), r"rank 0 has an instruction '\?'"),
        (changed(ranks=[{"order": "F", "frequencies": [0]}]), "rank 0 has a frequency of 0"),
        (changed(ranks=[{"order": "F", "frequencies": [1.5]}]), "rank 0 has a frequency of 1.5"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        FrequencyPlan.load(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not text"):
        FrequencyPlan.load(path)
