"""The rooms and who may import whom: the arrows of docs/architecture.md, held by reading every import statement."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "halocline"

MAY_IMPORT: dict[str, set[str]] = {
    "plan": set(),
    "schedule": {"plan"},
    "simulation": {"plan", "schedule"},
    "tiling": set(),
    "runtime": {"plan", "schedule", "simulation", "tiling"},
    "models": set(),
    "data": {"tiling"},
    "energy": {"plan", "schedule", "simulation"},
    "train": {"plan", "schedule", "simulation", "tiling", "runtime", "models", "data", "energy"},
    "cli": {"plan", "schedule", "simulation", "tiling", "runtime", "models", "data", "energy", "train"},
}
"""Room -> the other rooms it may import. Dependencies point one way; nothing imports cli."""

PURE = ["plan", "schedule", "simulation", "tiling/boxes.py", "cli"]
"""What must not import torch or numpy."""


def modules(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The full names a file imports, those inside functions included, those for type checkers only excluded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_every_room_is_on_the_map() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms == set(MAY_IMPORT)
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for room in rooms:
        assert f"`{room}/`" in text, f"docs/architecture.md does not describe {room}/"


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_dependencies_point_one_way(room: str) -> None:
    for path in modules(SOURCE / room):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "halocline" or len(parts) < 2 or parts[1] not in MAY_IMPORT:
                continue
            assert parts[1] == room or parts[1] in MAY_IMPORT[room], f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("place", PURE)
def test_the_core_is_pure(place: str) -> None:
    for path in modules(SOURCE / place):
        heavy = {name for name in imports(path) if name.split(".")[0] in ("torch", "numpy")}
        assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"


def test_plans_schedules_and_boxes_load_without_torch() -> None:
    code = (
        "import sys, halocline\n"
        "halocline.Plan, halocline.generate, halocline.Simulation\n"
        "import halocline.tiling.boxes\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_files_stay_readable() -> None:
    """A file holds one noun: 400 lines are the limit, tests included."""
    for folder in ("src", "tests", "benchmarks", "examples"):
        for path in modules(ROOT / folder):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 400, f"{path.relative_to(ROOT)} has {lines} lines: give its second noun a file"


def test_every_file_says_what_it_is_for() -> None:
    for path in modules(SOURCE):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path.relative_to(ROOT)}"
