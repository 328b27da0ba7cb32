"""docs/runtime.md: its files are written down as they stand there, and its programs run in order, in one directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.processes import Ended, program

TEXT = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
PROGRAMS = re.findall(r"^    (?:torchrun --nproc-per-node (\d+)|python) (\w+\.py)$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Program -> what it said."""
    directory = tmp_path_factory.mktemp("runtime")
    for name, source in FILES.items():
        (directory / name).write_text(source, encoding="utf-8")
    found: dict[str, str] = {}
    for processes, name in PROGRAMS:
        ended: Ended = program(directory / name, processes=int(processes or 0), directory=directory)
        assert ended.code == 0, f"{name}\n{ended.err}"
        found[name] = ended.out
    return found


def test_every_file_of_the_document_is_tried() -> None:
    assert len(FILES) == TEXT.count("```python")
    assert {name for _, name in PROGRAMS} == FILES.keys() - {"small.py"}


def ranks(text: str) -> list[set[str]]:
    """What each rank said; ranks may write into each other's lines, but not into each other's words."""
    told: dict[str, set[str]] = {}
    for rank, rest in re.findall(r"rank (\d+): (.*?)(?=rank \d+: |\n|$)", text):
        told.setdefault(rank, set()).add(rest)
    return list(told.values())


@pytest.mark.parametrize("name, processes", [(name, int(n)) for n, name in PROGRAMS if n and name != "mesh.py"])
def test_ranks_agree(name: str, processes: int, said: dict[str, str]) -> None:
    told = ranks(said[name])
    assert len(told) == processes and all(each == told[0] for each in told)


def test_a_run_goes_on_where_it_was(said: dict[str, str]) -> None:
    assert all("of step 4" in line for each in ranks(said["go_on.py"]) for line in each)
    assert said["one_device.py"] == "learning rate 0.050000 after 3 steps\n"


def test_the_answers(said: dict[str, str]) -> None:
    assert sorted(line for each in ranks(said["mesh.py"]) for line in each) == [
        f"2 stages, sum {number} over its replicas" for number in (2, 2, 4, 4)
    ]
    assert said["prove.py"] == "exact: True; gradients of 0.weight, 0.bias, 4.weight, 4.bias\n"
    assert said["watch.py"] == "busy in forward, backward, step: True\n"
    assert said["local.py"] == "3 losses, on both ranks alike: True\n"
    assert said["price.py"] == "makespan 33 bubble 0.273 activations (4, 3, 2, 1)\n"
    (first,) = {line for each in ranks(said["half.py"]) for line in each}
    assert "skipped False scale 65536" in first
