"""How a run ends: the last line says where its files are, whoever started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halocline.train.start import _report
from halocline.train.trainer import Outcome

ROOT = Path(__file__).resolve().parents[2]


def last_line(words: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words.split()],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_of_training(tmp_path: Path) -> None:
    words = (
        "-m halocline train small-mlp --stages 2 --microbatches 2 --batch-size 4 --steps 1 --run-dir out --device cpu"
    )
    assert last_line(f"{words} --timeline --timing-csv --meter none", tmp_path) == (
        "files in out: checkpoints/, instructions-R.csv, meter.txt, metrics.jsonl, plan.toml, run.toml, "
        "time-energy-R.csv, timeline/"
    )


def test_of_a_sweep_whose_profile_and_weights_go_elsewhere(tmp_path: Path) -> None:
    sizes = "--layers 2 --hidden 16 --heads 2 --vocab 64 --seq 16 --microbatches 4 --batch-size 8 --device cpu"
    words = f"-m halocline train gpt3-small {sizes} --sweep --meter simulated --lowest-frequency 1410 --run-dir out"
    line = last_line(
        f"{words} --profile-warmup 1 --profile-steps 8 --profile p.csv --to-hf gpt2 --save-every 0", tmp_path
    )
    assert line.startswith("files in out: ") and line.endswith("; also p.csv, gpt2")
    assert (tmp_path / "p.csv").is_file() and (tmp_path / "gpt2").is_dir()


def test_of_the_verb_that_profiles(tmp_path: Path) -> None:
    """Its run's directory does not outlive it, so that the profile is all there is to tell."""
    sizes = "--layers 2 --hidden 16 --heads 2 --vocab 64 --seq 16 --microbatches 4 --batch-size 8 --device cpu"
    words = f"-m halocline energy profile gpt3-small {sizes} --meter simulated --lowest-frequency 1410 --out p.csv"
    assert last_line(f"{words} --profile-warmup 1 --profile-steps 8", tmp_path).startswith("wrote p.csv: ")


def test_of_the_scripts_of_nowdl(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "layer_parallelism" / "benchmark_resnet_lp.py"
    words = f"{script} --split-size 2 --image-size 16 --batch-size 2 --steps 1 --run-dir out --device cpu"
    assert last_line(words, tmp_path) == "files in out: metrics.jsonl, plan.toml, run.toml"


def test_a_directory_that_is_not_kept_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = Outcome(1, 1.0, {}, str(tmp_path), "")
    assert _report(end, speaks=True, kept=False) == 0
    assert capsys.readouterr().out == "done: 1 steps, loss 1\n"
    assert _report(end, speaks=False) == 0
    assert capsys.readouterr().out == ""
