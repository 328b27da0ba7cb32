"""now-dl's own commands: each resolves to the processes its documents say, and runs under real launchers as written,
with small models. Only what cannot change the command line is added: a few samples, one step.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import nowdl
from halocline.train.planning import model_of, plan_of
from halocline.train.progress import Standing
from harness.processes import program

ROOT = Path(__file__).parents[2]
SMALL = "--num-layers 3 --num-filters 16 --image-size 64 --batch-size 2"
SHORT = "--steps 1 --samples 4 --evaluation-fraction 0"
SP, LP = "spatial_parallelism/benchmark_{}_sp.py", "layer_parallelism/benchmark_{}_lp.py"
GEMS = "gems_master_model/benchmark_{}_gems_master.py"
GEMS_SP = "gems_master_with_spatial_parallelism/benchmark_{}_gems_master_with_sp.py"

COMMANDS: list[tuple[str, str, str, int]] = [
    (SP, "amoebanet", '--num-spatial-parts 4 --slice-method "vertical" --split-size 2 --spatial-size 1', 5),
    (SP, "amoebanet", '--num-spatial-parts 4 --slice-method "vertical" --split-size 3 --spatial-size 2', 9),
    (SP, "resnet", '--num-spatial-parts 4 --slice-method "horizontal" --split-size 3 --spatial-size 2', 9),
    (SP, "resnet", '--halo-D2 --num-spatial-parts 4 --slice-method "square"', 5),
    (SP, "resnet", "--halo-D2 --fused-layers 2 --num-spatial-parts 4 --slice-method vertical --local-DP 2", 6),
    (SP, "amoebanet", "--num-spatial-parts 2 --slice-method horizontal --local-DP 2", 4),
    (SP, "amoebanet", "", 5),
    (LP, "amoebanet", "--split-size 4 --parts 2", 4),
    (LP, "resnet", "--num-spatial-parts 4", 2),
    (GEMS, "amoebanet", "--split-size 3", 3),
    (GEMS, "resnet", "--split-size 2 --times 4", 2),
    (GEMS_SP, "amoebanet", "--split-size 5 --times 2", 8),
    (GEMS_SP, "resnet", "--split-size 5 --times 4", 8),
    ("gems_master_model/benchmark_{}_gems_master_with_sp.py", "resnet", "--split-size 5 --times 4", 8),
    ("spatial/model/amoebanet_run.py", "amoebanet", "--num-spatial-parts 4 --split-size 2 --spatial-size 1", 5),
]


def _words(text: str) -> list[str]:
    return text.replace('"', "").split()


@pytest.mark.parametrize(("script", "model", "flags", "processes"), COMMANDS)
def test_a_command_asks_for_the_processes_of_its_document(
    script: str, model: str, flags: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "benchmarks" / script.format(model)
    assert os.access(path, os.X_OK), "now-dl's documents start some of them without python"
    asked: list[Any] = []
    monkeypatch.setattr(nowdl, "_start", lambda config: asked.append(config) or 0)
    monkeypatch.setattr(sys, "argv", [str(path), *_words(f"{flags} {SMALL}")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 0
    plan = plan_of(asked[0], model_of(asked[0]))
    assert plan.world_size == processes
    assert plan.pipes == (2 if "gems" in script else 1)
    if "gems" in script:
        times = int(flags.split("--times ")[1][0]) if "--times" in flags else 2
        assert plan.batch == 2 * times, "effective batch = replication x batch"


def _launch(launcher: list[str], number: int) -> str:
    script, model, flags, _ = COMMANDS[number]
    path = str(ROOT / "benchmarks" / script.format(model))
    done = subprocess.run(
        [*launcher, path, *_words(f"{flags} {SMALL} {SHORT}")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 11])
def test_a_command_runs(number: int, tmp_path: Path) -> None:
    script, model, flags, processes = COMMANDS[number]
    path, words = ROOT / "benchmarks" / script.format(model), _words(f"{flags} {SMALL} {SHORT}")
    ended = program(path, *words, processes=processes, directory=tmp_path)
    assert ended.code == 0, ended.err[-3000:]
    assert "Epoch: 0 images per sec:" in ended.out
    assert "Mean " in ended.out and " Median " in ended.out
    assert f"Effective batch size: {4 if 'gems' in script else 2}" in ended.out


@pytest.mark.slow
def test_a_command_runs_under_torchrun() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    assert "Epoch: 0 images per sec:" in _launch([*launcher, str(COMMANDS[5][-1])], 5)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI: apt-get install openmpi-bin")
def test_a_command_runs_under_mpirun() -> None:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", *root, "-np", str(COMMANDS[9][-1]), sys.executable]
    assert "Epoch: 0 images per sec:" in _launch(launcher, 9)


@pytest.mark.parametrize("kind", ["", "_conv", "_with_compute_val"])
def test_a_halo_benchmark_runs_and_validates(kind: str) -> None:
    path = str(ROOT / "benchmarks" / "communication" / "halo" / f"benchmark_sp_halo_exchange{kind}.py")
    flags = "--image-size 12 --halo-len 2 --out-channels 4 --warmup 1 --iterations 2 --num-spatial-parts 2 --sizes 9,24"
    if kind == "_conv":
        flags += " --enable-val-recv-tensors --enable-val-conv --enable-val-small-conv --enable-one-w-dim-kernel --CPU"
    ended = program(path, *flags.split(), processes=2, directory=ROOT)
    assert ended.code == 0, ended.err[-3000:]
    assert "Rank:1 Time taken (ms):" in ended.out
    assert "Validation passed Rank:1" in ended.out
    assert "MiB/s" in ended.out
    assert kind in ("", "_conv") or "Rank:0 Sequential time taken (ms):" in ended.out


def test_a_wrong_flag_is_answered_with_the_nearest() -> None:
    path = ROOT / "benchmarks" / SP.format("resnet")
    done = subprocess.run([sys.executable, str(path), "--num-spatal-parts", "4"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean --num-spatial-parts" in done.stderr and "Traceback" not in done.stderr


def test_verbose_tells_the_time_of_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    """-v was read and did nothing."""
    for verbose, lines in ((False, 3), (True, 5)):
        shown = nowdl.NowdlLines(0, verbose=verbose)
        for step in (1, 2):
            shown.show(Standing(step, 2, 0, 1.5, 8.0, "images", 1 << 30, 0.0, samples=4, seconds=0.5))
        said = capsys.readouterr().out
        assert len(said.splitlines()) == lines and said.count("Epoch: 0 images per sec:8.0") == 2
        assert ("step 2/2  loss 1.5  8 images/s  1.00 GiB  0:00 left  0.500 s" in said) == verbose


def test_only_an_evaluation_is_a_line_of_now_dl(capsys: pytest.CaptureFixture[str]) -> None:
    shown = nowdl.NowdlLines(0)
    shown.say("2 bad files are left out: a.png, b.png")
    shown.show(Standing(1, 2, 0, 1.5, 8.0, "images", 1 << 30, 0.0, samples=4, seconds=0.5))
    shown.evaluated("step 1: evaluation  loss 2  accuracy 50.0%")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "2 bad files are left out: a.png, b.png"
    assert said[-1] == "Epoch: 0 Global loss: 1.5 step 1: evaluation  loss 2  accuracy 50.0%"
