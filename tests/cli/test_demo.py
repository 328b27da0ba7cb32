"""`make demo`: the tour runs from an empty folder and leaves what it says."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_runs_and_draws(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, DEMO], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "8 processes = 4 + 1 + 1 + 1 + 1" in done.stdout
    assert "proved for 8 ranks" in done.stdout
    assert (tmp_path / "out" / "demo.svg").read_text().startswith("<svg")
    assert (tmp_path / "out" / "demo.toml").exists()
