"""run.sh on real processes: commands of Perseus's paper with models and batches shrunk, and the files they leave."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SMALL = "--hidden 16 --heads 2 --vocab 64 --seq 16 --num_warmup_steps 1 --num_prof_steps 1"


def run_sh(words: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "run.sh"), *words.split()],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def test_a_gpt_in_four_stages_leaves_its_timing(tmp_path: Path) -> None:
    """The paper's list of stages; row by row what each rank did, and no energy, for nothing measures it here."""
    words = f"gpt3-xl 2 4 --partition_method custom:0,8,14,21,27 {SMALL} --export_timing_csv true --run_dir out"
    done = run_sh(f"{words} --meter none", tmp_path, NUM_GPUS="4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done: 2 steps, loss ")
    assert done.stdout.splitlines()[-1] == (
        "files in out: instructions-R.csv, meter.txt, metrics.jsonl, plan.toml, run.toml, time-energy-R.csv"
    )
    assert done.stderr.count("by default: activation checkpointing") == 1
    assert done.stderr.count("there is no energy meter here") == 1
    for rank in range(4):
        assert (tmp_path / "out" / f"time-energy-{rank}.csv").read_text() == "time,energy\n"
        rows = list(csv.DictReader((tmp_path / "out" / f"instructions-{rank}.csv").read_text().splitlines()))
        assert list(rows[0])[:3] == ["instruction", "start", "end"]
        names = [row["instruction"] for row in rows]
        assert names.count("forward_microstep") == names.count("backward_microstep") == 2 * 4
        assert names.count("batch_input") == (8 if rank == 0 else 0)
        assert {row["stage"] for row in rows if row["microbatch"]} == {str(rank)}
        assert all(float(row["start"]) <= float(row["end"]) for row in rows)
    assert not (tmp_path / "out" / "checkpoints").exists(), "of synthetic data nothing is kept"


def test_a_t5_that_recomputes_and_is_traced(tmp_path: Path) -> None:
    words = f"t5-3b 2 4 --pp 2 --partition_method custom:0,33,74 {SMALL} --train-schedule last_no_recompute_1f1b"
    done = run_sh(f"{words} --activation-checkpointing true --export_pytorch_trace --run-dir out", tmp_path)
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "out" / "pytorch-trace-1.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert "aten::linear" in names and any(str(name).startswith("backward p0 s1 m3") for name in names)


def test_merak_defaults_and_its_words_of_training(tmp_path: Path) -> None:
    """Losses are those of a run that says all in Halocline's own words, and recomputes nothing."""
    sizes = "--hidden 16 --heads 2 --vocab 64 --pp 2"
    theirs = (
        f"gpt3-small 2 4 {sizes} --num_layers 3 --seq_length 16 --max_steps 3 --learning_rate 3e-3 --adam_beta2 0.95 "
        "--lr_scheduler_type linear --warmup_steps 1 --output_dir theirs --save true --fp16 false --dtype float64 "
        "--logging_steps 1 --parallel_vocab false --tp_overlapping_level 0 --wall_clock_breakdown true"
    )
    ours = (
        f"gpt3-small 2 4 {sizes} --layers 3 --seq 16 --steps 3 --lr 3e-3 --beta2 0.95 --lr-schedule linear --warmup 1 "
        "--run-dir ours --recompute none --balance 3,3 --dtype float64"
    )
    one, two = run_sh(theirs, tmp_path), run_sh(ours, tmp_path)
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    assert "by default: activation checkpointing (" in one.stderr and "uniform_transformer" in one.stderr
    assert "by default" not in two.stderr
    assert one.stdout.splitlines()[-1] == (
        "files in theirs: checkpoints/, metrics.jsonl, plan.toml, run.toml, timeline/"
    )
    kept = (tmp_path / "theirs" / "plan.toml").read_text()
    assert kept.count("recompute = true") == 1
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("theirs", "ours")
    ]
    assert len(losses[0]) == 3 and max(abs(a - b) for a, b in zip(*losses)) < 1e-10


def test_merak_profile_true_is_a_sweep(tmp_path: Path) -> None:
    words = f"gpt3-small 2 2 --pp 2 --layers 2 {SMALL} --meter simulated --profile true --run_dir out"
    done = run_sh(f"{words} --lowest_frequency 1395", tmp_path)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "true").exists()
    assert (tmp_path / "out" / "profile.csv").read_text().count("forward") >= 2
    assert "profile.csv" in done.stdout.splitlines()[-1]


def test_a_wide_resnet_in_two_replicas(tmp_path: Path) -> None:
    words = f"wide-resnet101_8 4 2 --pp 2 --dp 2 --partition_method custom:0,16,34 {SMALL} --seq 32"
    done = run_sh(f"{words} --run-dir out", tmp_path, MASTER_PORT="29517")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [16, 16]


def test_a_mistake_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    done = run_sh("gpt3-xl 8 128", tmp_path, NUM_GPUS="2", NNODES="1")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == (
        "run.sh: error: pp 4 x tp 1 x dp 1 = 4 processes, but NNODES x NUM_GPUS = 1 x 2 = 2: use NUM_GPUS=4, or other "
        "degrees\n"
    )


def test_a_python_without_halocline_is_told(tmp_path: Path) -> None:
    """By a link in another directory, which has no environment beside it."""
    (tmp_path / "run.sh").symlink_to(ROOT / "run.sh")
    python = shutil.which("false") or "false"
    words = ["bash", str(tmp_path / "run.sh"), "gpt3-xl", "8", "4"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHON": python})
    assert done.returncode == 2
    assert done.stderr == (
        f"run.sh: error: {python} has no halocline: run make install in {ROOT}, or set PYTHON to one that has it\n"
    )


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck: apt-get install shellcheck")
def test_the_script_is_clean() -> None:
    done = subprocess.run(["shellcheck", str(ROOT / "run.sh")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
