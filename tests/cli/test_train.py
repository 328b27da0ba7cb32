"""`halocline train` as a user calls it: bare, under torchrun, interrupted and resumed on another plan; and mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import harness
from halocline.cli import main
from halocline.train.settings import Settings

COMMAND = [*harness.COMMAND, "train"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
USER_MODEL = """
from torch import nn


def make(width=4):
    return [
        lambda: nn.Conv2d(3, width, 3, padding=1),
        lambda: nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        lambda: nn.Linear(4 * width, 10),
    ]
"""


def metrics(run: Path) -> list[dict[str, Any]]:
    text = (run / "metrics.jsonl").read_text() if (run / "metrics.jsonl").exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def steps(run: Path) -> list[int]:
    return [entry["step"] for entry in metrics(run) if entry["kind"] == "step"]


def finished(words: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=600, env=ENVIRONMENT)


def test_interrupted_on_two_processes_and_resumed_on_one(tmp_path: Path) -> None:
    """A user's own model on two tiles; Ctrl-C reaches launcher and ranks, as from a terminal; then another plan."""
    (tmp_path / "my_model.py").write_text(USER_MODEL)
    flags = "my_model:make --model-options width=6 --split-size 1 --num-spatial-parts 2 --batch-size 4 --samples 400"
    process = subprocess.Popen(
        [*COMMAND, *flags.split(), "--image-size", "16", "--steps", "100000", "--lr", "0.01", "--run-dir", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 600
        while len(steps(tmp_path / "run")) < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, err
    last = steps(tmp_path / "run")[-1]
    assert steps(tmp_path / "run") == list(range(1, last + 1))
    assert f"interrupted after step {last}, which is saved" in err and "--resume run" in err
    assert err.splitlines()[-1] == "files in run: checkpoints/, metrics.jsonl, plan.toml, run.toml"
    assert "Traceback" not in err
    assert (tmp_path / "run" / "checkpoints" / f"step-{last:06d}" / "manifest.json").exists()

    words = ["--resume", "run", "--split-size", "1", "--num-workers", "1", "--steps", str(last + 2)]
    done = subprocess.run(
        [*COMMAND, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path / "run") == list(range(1, last + 3))
    assert done.stdout.startswith(f"done: {last + 2} steps, loss ")
    assert f"step-{last + 2:06d}" in done.stdout


def test_a_run_is_repeated_by_its_own_file_and_goes_on_with_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--lr 0.1 was dropped where a run goes on, for it is the default."""
    monkeypatch.chdir(tmp_path)

    def rates_and_losses(run: str) -> list[tuple[float, float]]:
        return [(entry["lr"], entry["loss"]) for entry in metrics(Path(run)) if entry["kind"] == "step"]

    words = "small-cnn --image-size 16 --batch-size 4 --samples 8 --lr 0.5 --dtype float64 --device cpu --steps 2"
    assert main(["train", *words.split(), "--run-dir", "a"]) == 0
    assert main("train a/run.toml --run-dir b".split()) == 0
    assert rates_and_losses("a") == rates_and_losses("b") and len(rates_and_losses("a")) == 2
    assert main("train b/run.toml --steps 3 --lr 0.1 --run-dir c".split()) == 0
    assert [rate for rate, _ in rates_and_losses("c")] == [0.1] * 3
    assert main("train --resume a --lr 0.1 --steps 3".split()) == 0
    assert [rate for rate, _ in rates_and_losses("a")] == [0.5, 0.5, 0.1]
    assert Settings.load("a/run.toml").optimizer.lr == 0.1
    capsys.readouterr()
    assert main("train --resume a --schedule gems --microbatches 16".split()) == 2
    assert "the run took 4 samples a step, which 1 replicas x 16 microbatches cannot share" in capsys.readouterr().err


def test_under_torchrun(tmp_path: Path) -> None:
    """The ranks that torchrun has started train together, and one of them speaks."""
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", *COMMAND]
    flags = "small-mlp --split-size 2 --parts 2 --batch-size 4 --samples 8 --steps 2 --run-dir run --device cpu"
    done = finished([*run, *flags.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path / "run") == [1, 2]
    assert done.stdout.count("done: 2 steps") == done.stdout.count("files in run: ") == 1


def test_a_multiple_of_the_plans_processes_is_answered_with_replicas(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    flags = "small-cnn --split-size 2 --batch-size 4 --steps 1 --device cpu"
    done = finished([*torchrun, "-m", "halocline", "train", *flags.split()], tmp_path)
    assert done.returncode != 0
    said = (
        "the plan needs 2 processes and 4 are running: start it with torchrun --nproc-per-node 2, or use --replicas 2"
    )
    assert f"halocline: error: {said}" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no model to train"),
        ("resnt-v1-20", "did you mean"),
        ("small-cnn --lr fast", "--lr = 'fast' is not a number"),
        ("small-cnn --base-lr 1", "--base-lr is not a flag: did you mean --lr?"),
        ("small-cnn --split-size 9", "9"),
        ("small-cnn --optimizer adam", "did you mean 'adamw'"),
        ("small-cnn --plan nowhere.toml", "nowhere.toml"),
        ("small-cnn --app 1 --datapath nowhere", "nowhere"),
        ("small-cnn --resume nowhere", "nowhere is neither"),
        ("--resume latest", "no run under runs/"),
        ("small-cnn --num-filters 3", "small-cnn has no option num_filters"),
        ("amoebanet-d --num-layers 4", "num_layers = 4"),
        ("small-cnn --augment mirror", "'mirror' is not an augmentation"),
        ("small-cnn --mean red", "mean = red"),
        ("small-cnn --batch-size 20 --samples 3", "3 samples"),
        ("small-cnn --steps 3 --epochs 2", "give one of them"),
        ("small-cnn --device cuda", "cpu"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "cuda" in words:
        import torch

        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words.split()]) == 2
    err = capsys.readouterr().err
    assert said in err and err.startswith("halocline: error: ") and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in ("--resume", "--shard-optimizer", "--lr-schedule", "--num-spatial-parts", "--from-hf", "--keep"):
        assert flag in text
