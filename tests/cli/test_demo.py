"""`make demo`: it runs from an empty folder, holds itself against one device, and leaves what it says."""

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_trains_and_draws(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, DEMO], cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "5 processes = 4 + 1" in done.stdout
    assert "exact: resnet-v1-8 under gems on 5 processes" in done.stdout
    assert "they differ by at most" in done.stdout
    out = tmp_path / "out" / "demo"
    assert "<svg" in (out / "timeline.svg").read_text()[:200]
    assert (out / "gems" / "checkpoints").is_dir() and (out / "pipeline" / "metrics.jsonl").is_file()
