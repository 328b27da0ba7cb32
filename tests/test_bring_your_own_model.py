"""docs/bring-your-own-model.md: its files are written down as they stand there, and its commands run in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "docs" / "bring-your-own-model.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TEXT, re.DOTALL))
COMMANDS = re.findall(r"^    (halocline|torchrun) (.*)$", TEXT, re.MULTILINE)

# All commands of halocline in one process, which loads torch once; the ranks they start have processes of their own.
RUN_ALL = """
import sys
from halocline.cli import main

for line in sys.argv[1:]:
    code = main(line.split("#")[0].split())
    print("exit code", code, "of", line, flush=True)
    if code != (2 if line.endswith("# refused") else 0):
        sys.exit(1)
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("own")
    for name, source in FILES.items():
        (found / name).write_text(source, encoding="utf-8")
    return found


def run(words: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=600, env=environment)


def test_every_file_of_the_document_is_tried() -> None:
    assert len(FILES) == TEXT.count("```python") == 6
    assert len(COMMANDS) == 7


def test_its_commands_run(directory: Path) -> None:
    lines = [line for command, line in COMMANDS if command == "halocline"]
    done = run([sys.executable, "-c", RUN_ALL, *lines], directory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("exit code") == len(lines)
    assert done.stdout.count("exact: ") == 3
    # The refusal reads as the document has it, from whichever rank meets the operation first.
    (said,) = re.findall(r"^    (halocline: error: .*?\n    .*)$", TEXT, re.MULTILINE)
    told = re.sub(r"error: rank \d+:", "error: rank 0:", " ".join(done.stderr.split()))
    for part in " ".join(said.split()).split("(...)"):
        assert part in told, f"{part}\n{done.stderr}"


@pytest.mark.parametrize("line", [line for command, line in COMMANDS if command == "torchrun"])
def test_its_programs_run(line: str, directory: Path) -> None:
    done = run([sys.executable, "-m", "torch.distributed.run", "--standalone", *line.split()], directory)
    assert done.returncode == 0, done.stderr
    said: dict[str, list[str]] = {}
    # Ranks may write into each other's lines, but not into each other's words.
    for rank, rest in re.findall(r"rank (\d+): (.*?)(?=rank \d+: |\n|$)", done.stdout):
        said.setdefault(rank, []).append(rest)
    assert len(said) == int(line.split()[1])
    assert len({tuple(lines) for lines in said.values()}) == 1, "the ranks disagree"
