"""The commands of the documents run as they stand there."""

from __future__ import annotations

import re
import tomllib
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


def test_the_oldest_versions_are_the_same_everywhere() -> None:
    """The README's table, what the package asks for, and what `make test-oldest` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = dict(requirement.split(">=") for requirement in project["dependencies"])
    pins = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = dict(line.split("==") for line in pins if not line.startswith("#"))
    assert asked.keys() == oldest.keys()
    for name, version in asked.items():
        assert f"{oldest[name]}.".startswith(f"{version}."), f"{name} is asked for from {version}, tried {oldest[name]}"
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## GPUs and versions")[1].split("\n## ")[0]
    said: dict[str, str] = {}
    for names, versions in re.findall(r"^\| ([\w, ]+) \| ([\d., ]+) or newer \|", section, re.MULTILINE):
        said |= zip(names.split(", "), versions.split(", "), strict=True)
    assert said == {"Python": project["requires-python"].removeprefix(">="), **asked}
    started = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    assert f"(Python {said['Python']} or newer, torch {said['torch']} or newer" in started
    for document in ("README.md", "CONTRIBUTING.md"):
        assert f"Python {said['Python']} or newer and nothing else" in (ROOT / document).read_text(encoding="utf-8")


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
