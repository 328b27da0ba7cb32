"""`make demo`: it runs from an empty folder, holds itself against one device, and leaves what it says."""

from pathlib import Path

import pytest

from harness.processes import program

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@pytest.mark.slow
def test_the_demo_trains_and_draws(tmp_path: Path) -> None:
    done = program(DEMO, directory=tmp_path)
    assert done.code == 0, done.err
    assert "5 processes = 4 + 1" in done.out
    assert "exact: resnet-v1-8 under gems on 5 processes" in done.out
    assert "they differ by at most" in done.out
    out = tmp_path / "out" / "demo"
    assert "<svg" in (out / "timeline.svg").read_text()[:200]
    assert (out / "gems" / "checkpoints").is_dir() and (out / "pipeline" / "metrics.jsonl").is_file()
