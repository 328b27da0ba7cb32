"""docs/bring-your-own-model.md: its files are written down as they stand there, and its commands run in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.processes import program, typed

TEXT = (Path(__file__).parents[2] / "docs" / "bring-your-own-model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
COMMANDS = re.findall(r"^    (halocline|torchrun) (.*)$", TEXT, re.MULTILINE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("own")
    for name, source in FILES.items():
        (found / name).write_text(source, encoding="utf-8")
    return found


def test_every_file_of_the_document_is_tried() -> None:
    assert len(FILES) == TEXT.count("```python") == 7
    assert len(COMMANDS) == 8


@pytest.mark.slow
def test_its_commands_run(directory: Path) -> None:
    lines = [f"halocline {line}" for command, line in COMMANDS if command == "halocline"]
    ended = dict(zip(lines, typed(lines, directory), strict=True))
    for line, each in ended.items():
        assert each.code == (2 if line.endswith("# refused") else 0), f"{line}\n{each}"
    assert sum("exact: " in each.out for each in ended.values()) == 3
    # The refusal reads as the document has it, from whichever rank meets the operation first.
    (said,) = re.findall(r"^    (halocline: error: .*?\n    .*)$", TEXT, re.MULTILINE)
    (refused,) = (each for each in ended.values() if each.code)
    told = re.sub(r"error: rank \d+:", "error: rank 0:", " ".join(refused.err.split()))
    for part in " ".join(said.split()).split("(...)"):
        assert part in told, f"{part}\n{refused.err}"


@pytest.mark.parametrize("line", [line for command, line in COMMANDS if command == "torchrun"])
def test_its_programs_run(line: str, directory: Path) -> None:
    option, processes, name = line.split()
    assert option == "--nproc-per-node"
    ended = program(name, processes=int(processes), directory=directory)
    assert ended.code == 0, ended.err
    said: dict[str, list[str]] = {}
    # Ranks may write into each other's lines, but not into each other's words.
    for rank, rest in re.findall(r"rank (\d+): (.*?)(?=rank \d+: |\n|$)", ended.out):
        said.setdefault(rank, []).append(rest)
    assert len(said) == int(processes)
    assert len({tuple(lines) for lines in said.values()}) == 1, "the ranks disagree"
