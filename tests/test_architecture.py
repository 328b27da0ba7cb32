"""The rooms and who may import whom: the arrows of docs/architecture.md, held by reading every import statement.
And the tests: each is where its source file is, or in a list that says why it has none."""

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

PURE = ["plan", "schedule", "simulation", "tiling/boxes.py", "runtime/measured.py", "cli"]
"""What must not import torch or numpy."""

WHOLE_ROOM: dict[str, str] = {
    "benchmarks/test_nowdl.py": "now-dl's commands, which are many files of two folders deep",
    "cli/test_bad_input.py": "mistakes in any command",
    "cli/test_command.py": "what holds for any command",
    "data/test_bytes_read.py": "what is read of a file of any format",
    "energy/server/test_crowd.py": "many clients, and nonsense, at any address",
    "energy/server/test_online.py": "whole jobs, from the client to the frontier",
    "energy/server/test_zeus_client.py": "a client that is not ours",
    "models/test_lanes.py": "every transformer, by lanes",
    "models/test_plans.py": "every image model, under plans",
    "models/test_tiles.py": "every image model, on tiles",
    "plan/test_bad_input.py": "mistakes in any field",
    "runtime/processes/test_faults.py": "launcher, watch and logbook together, when a rank is lost",
    "runtime/test_bad_input.py": "mistakes that engine, guards and world find",
    "runtime/test_defects.py": "what now-dl gets wrong, anywhere",
    "runtime/test_exactness.py": "every kind of plan",
    "runtime/test_odd_models.py": "every kind of model",
    "runtime/test_options.py": "options of the engine that other files carry out",
    "runtime/test_randomness.py": "what a step must leave alone",
    "runtime/transports/test_gpu_transport.py": "the transports of a GPU, by their benchmark",
    "simulation/test_formulas.py": "schedules and simulator against published formulas",
    "tiling/test_checkpoint.py": "recomputation of any operator",
    "tiling/test_complex.py": "complex numbers in any operator",
    "tiling/test_functional_sweep.py": "every function of torch.nn.functional",
    "tiling/test_gradient_kinds.py": "gradients of every kind of parameter",
    "tiling/test_losses.py": "losses made of many operators",
    "tiling/test_memory.py": "what all operators together keep",
    "tiling/test_models.py": "models of transformers",
    "tiling/test_modules_own.py": "residual networks and U-Nets",
    "tiling/test_no_gradient.py": "gradients that no operator gives",
    "tiling/test_noted_order.py": "memory order after many operators",
    "tiling/test_numbers.py": "numbers as arguments of any operator",
    "tiling/test_other_dtypes.py": "other dtypes in any operator",
    "tiling/test_random_networks.py": "random sequences of operators",
    "tiling/test_torch_sweep.py": "every other function of torch",
    "tiling/test_torchvision.py": "models of torchvision",
    "tiling/test_traffic.py": "the bytes of operators and of whole steps",
    "train/test_resume.py": "checkpoints of one plan under another",
    "train/test_text.py": "language models, from text to weights",
}
"""Tests of no single file -> what they are about. Every other tests/ROOM/test_X.py tests src/halocline/ROOM/X.py."""


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
        "import halocline.tiling.boxes, halocline.runtime.measured, halocline.cli.timeline\n"
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


def sources(test: Path) -> list[Path]:
    """The files and folders that a test is named after; test_X_cuda.py tries X on a GPU."""
    room, name = test.parent, test.stem.removeprefix("test_").removesuffix("_cuda")
    if room.parts[0] in ("docs", "examples", "benchmarks"):
        return [ROOT / room / f"{name.replace('_', '-')}.md", ROOT / room / f"{name}.py", ROOT / room / name]
    return [SOURCE / room / f"{name}.py", SOURCE / room / name]


def test_the_test_of_a_file_is_found_by_its_name() -> None:
    tests = ROOT / "tests"
    found = {path.relative_to(tests) for path in tests.rglob("test_*.py") if path.parent != tests}
    assert not set(map(Path, WHOLE_ROOM)) - found, "WHOLE_ROOM lists tests that are gone"
    for test in sorted(found):
        named = any(path.exists() for path in sources(test))
        if test.as_posix() in WHOLE_ROOM:
            assert not named, f"tests/{test} is of one file: take it off WHOLE_ROOM"
        else:
            assert named, f"tests/{test}: there is no {sources(test)[0].relative_to(ROOT)}; rename it, or list it above"


def test_no_test_edits_the_import_path() -> None:
    """What tests share is in tests/harness, which pyproject.toml puts on the path."""
    for path in modules(ROOT / "tests"):
        assert "sys" + ".path" not in path.read_text(encoding="utf-8"), path.relative_to(ROOT)
