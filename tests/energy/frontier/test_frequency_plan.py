"""Frequency plans on disk: read back as written, never evaluated, and refused by name. JSON, and Python lists."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
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


# -- Python lists --------------------------------------------------------------------------------------------------

# As lowtime writes them, and as Perseus did.
NAMED = """[
[('forward', 1410), ('forward', 1395), ('backward', 1410), ('backward', 1200)],
[('forward', 1200), ('backward', 1005), ('forward', 1200), ('backward', 1005)],
]
# Iteration 3 cost change: -1.25
# Iteration 3 total cost: 5630.5
"""
UNNAMED = """[
[1410, 1395, 1410, 1200],
[1200, 1005, 1200, 1005],
]
# Iteration 3: cost change -1.25
"""


def test_a_python_list_is_a_plan_without_times(tmp_path: Path) -> None:
    path = tmp_path / "freqs_pipeline_00003.py"
    path.write_text(NAMED)
    plan = FrequencyPlan.load(path)
    assert plan.frequencies == (
        (("forward", 1410), ("forward", 1395), ("backward", 1410), ("backward", 1200)),
        (("forward", 1200), ("backward", 1005), ("forward", 1200), ("backward", 1005)),
    )
    assert not plan.timed and PLAN.timed
    path.write_text(UNNAMED)
    bare = FrequencyPlan.load(path)
    assert [[frequency for _, frequency in row] for row in bare.frequencies] == [
        [1410, 1395, 1410, 1200],
        [1200, 1005, 1200, 1005],
    ]
    assert {kind for row in bare.frequencies for kind, _ in row} == {""}
    for one in (plan, bare):
        one.save(tmp_path / "plan.json")
        assert FrequencyPlan.load(tmp_path / "plan.json") == one


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('touch evaluated')", r"line 1 has .__import__"),
        ("[[open('/etc/passwd').read()]]", r"line 1 has .open"),
        ("import os\n[[1410]]", "line 1 has .import os"),
        ("plan = [[1410]]", "line 1 has .plan = "),
        ("[[('forward', 1410)],\n [('forward', x)]]", r"line 2 has .x\)\]\]'"),
        ("[[1410] * 10**9]", r"line 1 has .\* 10"),
        ("[[1410, 1" + "+1" * 200_000 + "]]", r"line 1 has .\+1"),
        ("[[f'{exit()}']]", "line 1 has .f"),
        ("[[('for\\x77ard', 1410)]]", "line 1 has"),
        ("[[{1: 2}]]", r"line 1 has .\{1"),
        ("[[True]]", "line 1 has .True"),
        ("[[('forward', -5)]]", "line 1 has .-5"),
        ("[[9" + "9" * 5000 + "]]", "line 1 has .99999"),
        ("[" * 100_000, "brackets 4 deep"),
        ("[[((1,),)]]", "brackets 4 deep"),
        ("[" + "[]," * 65_537 + "]", "65537 rows are more than 65536"),
        ("[[" + "('a',1)," * 65_537 + "]]", "names, numbers and brackets are more than 196608"),
        ("#" * (4 << 20) + "\n[[1]]", "more than the 4194304 bytes"),
        ("[[1410]", "not a Python list"),
        ("[[1410]]]", "not a Python list"),
        ("[[1410]] [[1410]]", r"line 1 has no comma before '\[\[1410\]\]'"),
        ("[[1410]\n(1410)]", r"line 2 has no comma before '\(1410\)\]'"),
        ("[['for' 'ward']]", "line 1 has no comma before"),
        ("[[1410,,]]", "line 1 has nothing before ',]]'"),
        (",[1410]", "line 1 has nothing before"),
        ("", "not a Python list"),
        ("[[0001]]", "not a Python list"),
        ("\x00", "line 1 has"),
        ("[]", "no list of rows"),
        ("'forward'", "no list of rows"),
        ("[1410]", "row 0 is 1410: write a row for each stage"),
        ("[[1410], 'forward']", "row 1 is 'forward'"),
        ("[[('forwards', 1410)]]", "row 0 has an instruction 'forwards': use one of forward, backward"),
        ("[[1410], [(1410, 'forward')]]", "row 1 has an instruction 1410"),
        ("[[('forward', 1410, 1)]]", r"row 0 has a frequency of \('forward', 1410, 1\): give whole MHz"),
        ("[[('forward', 0)]]", "row 0 has a frequency of 0: give whole MHz above 0"),
        ("[[('forward', 1410.5)]]", "row 0 has a frequency of 1410.5"),
        ("[[1410], ['1410']]", "row 1 has a frequency of '1410'"),
    ],
)
def test_what_is_no_list_of_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        FrequencyPlan.load(path)
    said = str(error.value)
    assert said.startswith(f"{path}: ") and "\n" not in said and len(said) < 400 + len(str(path))
    assert [file.name for file in tmp_path.iterdir()] == ["plan.py"]


@pytest.mark.parametrize("seed", range(20))
def test_nonsense_is_refused_in_one_line(seed: int) -> None:
    """Pieces of Python in any order: a plan, or one line."""
    chance = random.Random(seed)
    pieces = [
        "[",
        "[",
        "]",
        "(",
        ")",
        ",",
        "1410",
        "'forward'",
        " ",
        "\n",
        "#",
        "-",
        "+",
        "'",
        '"',
        "\\",
        "x",
        "*",
        "0",
        ".",
    ]
    for _ in range(300):
        text = "".join(chance.choices(pieces, k=chance.randrange(40)))
        try:
            plan = FrequencyPlan.from_literal(text)
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert all(frequency > 0 for row in plan.frequencies for _, frequency in row)


def test_a_hostile_list_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    """The largest that are read, and larger ones: what evaluating them would take is never spent."""
    files = {
        "deep.py": "[" * (4 << 20),
        "minus.py": "-" * (4 << 20) + "1",
        "sum.py": "[[1" + "+1" * (1 << 20) + "]]",
        "many.py": "[[" + "1," * (1 << 20) + "]]",
        "whole.py": "[[" + "('forward',1410)," * 65_000 + "]]",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from halocline.energy.frontier.frequency_plan import FrequencyPlan
for name in {list(files)!r}:
    try:
        print(len(FrequencyPlan.load(name).frequencies[0]))
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(files) and said[-1] == "65000"
    assert [line.partition(":")[0] for line in said[:-1]] == list(files)[:-1]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")  # to open it would wait for ever
    with pytest.raises(ValueError, match=r"pipe.py: not a file"):
        FrequencyPlan.load(tmp_path / "pipe.py")
    with pytest.raises(FileNotFoundError):
        FrequencyPlan.load(tmp_path / "none.py")
    (tmp_path / "bytes.py").write_bytes(b"[[1410]] # \xff")
    with pytest.raises(ValueError, match="is not text"):
        FrequencyPlan.load(tmp_path / "bytes.py")
