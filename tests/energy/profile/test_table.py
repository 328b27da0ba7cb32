"""The profile: what is read back is what was written, and every bad line is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.energy.profile.table import INSTRUCTIONS, ProfileTable, Row

HEADER = "stage,instruction,frequency,time,energy"
GOOD = f"{HEADER}\n0,forward,1410,0.05,23.8\n0,backward,1410,0.09,44.6\n"


def test_the_shipped_profile() -> None:
    profile = ProfileTable.read(Path(__file__).parents[3] / "examples" / "profiles" / "gpt3-175b-a100.csv")
    assert profile.stages == 8
    assert len(profile.rows) == 8 * 2 * 38
    assert "Perseus" in profile.note
    frequencies = [row.frequency for row in profile.of(3, "backward")]
    assert frequencies == sorted(frequencies, reverse=True) and frequencies[0] == 1410
    assert profile.of(3, "reduce") == ()


numbers = st.floats(min_value=1e-9, max_value=1e9)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 4), st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=20))
def test_what_is_written_is_read_back(data: st.DataObject, stages: int, note: str) -> None:
    rows = []
    for stage in range(stages):
        for instruction in INSTRUCTIONS:
            frequencies = data.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=4, unique=True))
            rows += [Row(stage, instruction, f, data.draw(numbers), data.draw(numbers)) for f in frequencies]
    profile = ProfileTable(tuple(rows), note.lstrip("#"))
    assert ProfileTable.from_text(profile.to_text()) == profile


def test_other_columns_orders_and_comments_are_taken() -> None:
    head = "# simulated\nfrequency,note,stage,instruction,energy,time\n\n"
    rows = "1410,x,0,forward,2,1\n1410,y,0,backward-input,2,1\n1410,z,0,backward-weight,2.5,1\n"
    profile = ProfileTable.from_text(head + rows)
    assert profile.note == "simulated"
    assert profile.of(0, "backward-weight") == (Row(0, "backward-weight", 1410, 1.0, 2.5),)


def test_a_spreadsheets_habits_are_taken() -> None:
    head = '"Stage",Instruction,FREQUENCY,Time,Energy,Remark\r\n'
    rows = '0,Forward,1410,1,2,"warm, quiet"\r\n0,"backward",1410,1,2,\r\n'
    assert ProfileTable.from_text(head + rows).of(0, "forward") == (Row(0, "forward", 1410, 1.0, 2.0),)
    before = "Remark,Stage,Instruction,Frequency,Time,Energy\n" + '"a,b",0,forward,1410,1,2\n",",0,backward,1410,1,2\n'
    assert ProfileTable.from_text(before).of(0, "backward") == (Row(0, "backward", 1410, 1.0, 2.0),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "P.csv is empty"),
        ("# only a note\n", "P.csv is empty"),
        (f"{HEADER}\n", "P.csv: the profile has 0 rows"),
        ("stage,instruction,time,energy\n", "P.csv:1: the header 'stage,instruction,time,energy' lacks frequency"),
        (f"{GOOD}0,forward,1395,nan,1\n", "P.csv:4: time = nan of stage 0 forward at 1395 MHz"),
        (f"{GOOD}0,forward,1395,-0.1,1\n", "P.csv:4: time = -0.1 of"),
        (f"{GOOD}0,forward,1395,0,1\n", "P.csv:4: time = 0 of"),
        (f"{GOOD}0,forward,1395,inf,1\n", "P.csv:4: time = inf of"),
        (f"{GOOD}0,forward,1395,0.1,1e300\n", "P.csv:4: energy = 1e+300 of"),
        (f"{GOOD}0,forward,1395,0.1,-3\n", "P.csv:4: energy = -3 of"),
        (f"{GOOD}0,forward,1395,0.1,nan\n", "P.csv:4: energy = nan of"),
        (f"{GOOD}0,forward,0,0.1,1\n", "P.csv:4: frequency = 0 is not above 0"),
        (f"{GOOD}0,forward,1.5,0.1,1\n", "P.csv:4: frequency = '1.5' is not a whole number"),
        (f"{GOOD}x,forward,1395,0.1,1\n", "P.csv:4: stage = 'x' is not a number"),
        (f"{GOOD}-1,forward,1395,0.1,1\n", "P.csv:4: stage = -1 is below 0"),
        (f"{GOOD}0,sideways,1395,0.1,1\n", "P.csv:4: instruction = 'sideways' is not known"),
        (f"{GOOD}0,forward,1395,0.1\n", "P.csv:4: 4 fields where the header has at least 5"),
        (f"{GOOD}0,forward,1410,0.06,1\n", "P.csv:4: stage 0 forward at 1410 MHz stands on line 2 already"),
        (f"{GOOD}2,forward,1410,1,1\n2,backward,1410,1,1\n", "P.csv: stage 1 has no rows and stage 2 has"),
        (f"{GOOD}1,forward,1410,1,1\n", "P.csv: stage 1 has rows of forward and none of backward"),
        (f"{HEADER}\n0,backward,1410,1,1\n", "P.csv: stage 0 has rows of backward and none of forward"),
        (f"{HEADER}\n0,forward,1,1,1\n0,backward_input,1,1,1\n", "P.csv: stage 0 has backward_input rows alone"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("P.csv").write_text(text)
    with pytest.raises(ValueError) as error:
        ProfileTable.read("P.csv")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_bytes(b"stage\xff\xfe")
    with pytest.raises(ValueError, match="is not text"):
        ProfileTable.read(path)


def test_rows_made_in_code_are_checked_too() -> None:
    with pytest.raises(ValueError, match="stands twice, with 1 s, 2 J and with 3 s, 4 J"):
        ProfileTable((Row(0, "forward", 9, 1.0, 2.0), Row(0, "forward", 9, 3.0, 4.0), Row(0, "backward", 9, 1, 1)))
