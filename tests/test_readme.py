"""The commands of the documents run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.processes import program, typed

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"^    (halocline (?:plan|schedule|simulate|verify small-|train|export).*)$", re.MULTILINE)
LONG = re.compile(r"halocline (?:train|export)")
"""Run from the README alone: each starts five processes."""


def commands() -> list[tuple[str, str]]:
    """Document and command; what verifies the same plan in several documents is run from the first."""
    found: list[tuple[str, str]] = []
    for path in DOCUMENTS:
        for line in COMMAND.findall(path.read_text(encoding="utf-8")):
            again = " verify " in line and any(line == other for _, other in found)
            if not again and (path.name == "README.md" or not LONG.match(line)):
                found.append((path.name, line))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("document", sorted({name for name, _ in commands()}))
def test_the_commands_of_a_document_run(document: str, tmp_path: Path) -> None:
    lines = [line for name, line in commands() if name == document]
    assert lines
    for line, ended in zip(lines, typed(lines, tmp_path), strict=True):
        assert ended.code == 0, f"{line}\n{ended.err}"


def test_every_link_leads_somewhere() -> None:
    for path in [*DOCUMENTS, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_tiling_example_of_the_readme_runs(tmp_path: Path) -> None:
    """Four real processes; all print the same loss and gradient."""
    source = next(
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        if "tiling.tile(" in block
    )
    script = tmp_path / "tiles.py"
    script.write_text(source, encoding="utf-8")
    ended = program(script, processes=4, directory=tmp_path)
    assert ended.code == 0, ended.err
    # Ranks may write into each other's lines, but not into each other's words.
    said = re.findall(r"rank \d: (.*?)(?=rank \d: |\n|$)", ended.out)
    assert len(said) == 4 and len(set(said)) == 1, ended.out
