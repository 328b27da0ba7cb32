"""What users may import from `halocline`, frozen: a change here is a change for every user."""

import re
import subprocess
import sys
from pathlib import Path

import halocline

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "bring-your-own-model",
        "checkpoints",
        "data",
        "energy",
        "models",
        "runtime",
        "training",
        "transformers",
    )
]

SURFACE = [
    *("Costs", "Engine", "Layout", "Model", "Observer", "Plan", "Schedule", "Settings", "Simulation", "Spec", "Stage"),
    "Trainer",
    *("check", "data", "energy", "generate", "join", "run_local", "simulate", "tiling", "verify"),
]
WITH_TORCH = {"data", "Engine", "Model", "Spec", "Trainer", "join", "run_local", "tiling", "verify"}


def test_the_public_surface_is_this() -> None:
    assert halocline.__all__ == SURFACE
    for name in SURFACE:
        assert getattr(halocline, name) is not None


def test_plans_and_settings_load_without_torch() -> None:
    names = ", ".join(f"halocline.{name}" for name in SURFACE if name not in WITH_TORCH)
    code = (
        f"import sys, halocline\n{names}\n"
        "halocline.simulate(halocline.Plan.uniform(2), halocline.Costs(1, 2))\n"
        "halocline.Settings.of(model='small-cnn', stages=2)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_documents_name_nothing_deeper() -> None:
    """Commands of a shell (`python -m ...`) aside."""
    for path in DOCUMENTS:
        for line in path.read_text(encoding="utf-8").splitlines():
            deeper = re.search(
                r"(?:from|import) halocline\.(?!(tiling|data|energy)\b)|halocline\.(?!tiling\b)\w+\.\w+\.",
                line.replace("-m halocline.", ""),
            )
            assert deeper is None, f"{path.name}: {line.strip()}"


def test_a_room_does_not_hide_a_name() -> None:
    """A public function with the name of a room would become that room as soon as the room is imported."""
    rooms = {path.name for path in Path(halocline.__file__).parent.iterdir() if path.is_dir()}
    assert rooms & set(SURFACE) == {"data", "energy", "tiling"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(halocline, "plans")
