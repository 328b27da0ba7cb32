"""now-dl's own commands: each resolves to the processes its documents say, and runs under real launchers as written,
with small models. Only what cannot change the command line is added: a few samples, one step.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halocline.cli import nowdl
from halocline.train import metrics
from halocline.train.planning import model_of, plan_of
from halocline.train.settings import Settings
from harness.cifar import write_pickle
from harness.processes import program

ROOT = Path(__file__).parents[2]
SMALL = "--image-size 64 --batch-size 2"
SHORT = "--steps 1 --samples 4"
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
    (LP, "resnet", "", 2),
    (GEMS, "amoebanet", "--split-size 3", 3),
    (GEMS, "resnet", "--split-size 2 --times 4", 2),
    (GEMS_SP, "amoebanet", "--split-size 5 --times 2", 8),
    (GEMS_SP, "resnet", "--split-size 5 --times 4", 8),
    ("gems_master_model/benchmark_{}_gems_master_with_sp.py", "resnet", "--split-size 5 --times 4", 8),
    ("spatial/model/amoebanet_run.py", "amoebanet", "--num-spatial-parts 4 --split-size 2 --spatial-size 1", 5),
]


def _small(model: str) -> str:
    return SMALL + " --num-layers 3 --num-filters 16" * (model == "amoebanet")


def _words(text: str) -> list[str]:
    return text.replace('"', "").split()


@pytest.mark.parametrize(("script", "model", "flags", "processes"), COMMANDS)
def test_a_command_asks_for_the_processes_of_its_document(
    script: str, model: str, flags: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "benchmarks" / script.format(model)
    assert os.access(path, os.X_OK), "now-dl's documents start some of them without python"
    asked: list[Any] = []
    monkeypatch.setattr(nowdl, "_run", lambda script, options: asked.append(options.settings) or 0)
    monkeypatch.setattr(sys, "argv", [str(path), *_words(f"{flags} {_small(model)}")])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 0
    plan = plan_of(asked[0], model_of(asked[0]))
    assert plan.world_size == processes
    assert plan.pipes == (2 if "gems" in script else 1)
    if "gems" in script:
        times = int(flags.split("--times ")[1][0]) if "--times" in flags else 2
        assert plan.batch == 2 * times, "effective batch = replication x batch"


def _launch(launcher: list[str], number: int, directory: Path, more: str = "") -> str:
    script, model, flags, _ = COMMANDS[number]
    path = str(ROOT / "benchmarks" / script.format(model))
    done = subprocess.run(
        [*launcher, path, *_words(f"{flags} {_small(model)} {SHORT} {more}")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


NUMBER = r"[-+.e\d]+"
EPOCH = re.compile(rf"^Epoch (\d+) Global loss: ({NUMBER}) Acc ({NUMBER})$", re.M)
"""now-dl's line of an epoch."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 11])
def test_a_command_runs(number: int, tmp_path: Path) -> None:
    script, model, flags, processes = COMMANDS[number]
    path, words = ROOT / "benchmarks" / script.format(model), _words(f"{flags} {_small(model)} {SHORT}")
    ended = program(path, *words, processes=processes, directory=tmp_path)
    assert ended.code == 0, ended.err[-3000:]
    times = rf" Time:{NUMBER} Time Allreduce:{NUMBER}" if "with_sp" in script else ""
    assert re.search(rf"^Epoch: 0 images per sec:{NUMBER}{times}$", ended.out, re.M)
    assert re.search(rf"^Mean {NUMBER} Median {NUMBER}$", ended.out, re.M)
    assert f"Effective batch size: {4 if 'gems' in script else 2}" in ended.out
    assert len(EPOCH.findall(ended.out)) == 1


@pytest.mark.slow
def test_a_script_leaves_what_it_was_asked_for(tmp_path: Path) -> None:
    """--run-dir, --save-every, --export-timing-csv and --timeline left nothing: the directory was deleted."""
    path = ROOT / "benchmarks" / LP.format("resnet")
    flags = "--image-size 32 --batch-size 2 --samples 4 --num-epochs 2 --evaluation-fraction 0.5 -v "
    flags += "--run-dir kept --save-every 1 --export-timing-csv --timeline --optimizer adamw --lr 0.01"
    ended = program(path, *flags.split(), processes=2, directory=tmp_path)
    assert ended.code == 0, ended.err[-3000:]
    kept = tmp_path / "kept"
    assert (kept / "instructions-1.csv").is_file() and list((kept / "timeline").iterdir())
    assert len(list((kept / "checkpoints").iterdir())) == 3
    made = Settings.load(kept / "run.toml")
    assert (made.optimizer.name, made.optimizer.lr) == ("adamw", 0.01)
    # The lines of each epoch: two steps with their speeds, now-dl's line, and the evaluation on a line of its own.
    lines = [line for line in ended.out.splitlines() if line.startswith(("Epoch", "step"))]
    assert [place for place, line in enumerate(lines) if EPOCH.match(line)] == [4, 10], lines
    assert lines[5].startswith("step 2: evaluation  loss ") and lines[11].startswith("step 4: evaluation  loss ")
    steps = [entry for entry in metrics.read(kept / "metrics.jsonl") if entry["kind"] == "step"]
    for (number, loss, accuracy), of_epoch in zip(EPOCH.findall(ended.out), (steps[:2], steps[2:])):
        assert {entry["epoch"] for entry in of_epoch} == {int(number)}
        assert float(loss) == pytest.approx(sum(entry["loss"] for entry in of_epoch) / 2)
        assert float(accuracy) == pytest.approx(sum(entry["accuracy"] for entry in of_epoch) / 2)
    assert len(re.findall(rf"^Step :[01], LOSS: {NUMBER}, Global loss: {NUMBER} Acc: {NUMBER}$", ended.out, re.M)) == 4
    # It goes on with what it was told: --resume took the scripts' defaults, and so other data and another optimizer.
    ended = program(path, "--resume", "kept", "--steps", "5", processes=2, directory=tmp_path)
    assert ended.code == 0 and "done: 5 steps" in ended.out + ended.err, ended.err[-3000:]
    assert Settings.load(kept / "run.toml").optimizer == made.optimizer
    other = ROOT / "benchmarks" / LP.format("amoebanet")
    ended = program(other, "--resume", "kept", "--steps", "6", directory=tmp_path)
    assert ended.code == 2 and "--resume kept trains resnet-v2-110, and this script amoebanet-d: use" in ended.err


@pytest.mark.slow
def test_cifar_on_tiles_is_cifar_on_one_device(tmp_path: Path) -> None:
    """As torchvision leaves it, resized: the losses of two steps, the second after an update, in float64."""
    for number in (1, 2):
        write_pickle(tmp_path / "data" / "cifar-10-batches-py" / f"data_batch_{number}", 4, seed=number)
    flags = "--app 2 --datapath data --image-size 40 --batch-size 4 --steps 2 --dtype float64 --lr 0.1"
    found = []
    for script, more, processes in ((SP, "--run-dir tiles", 5), (LP, "--run-dir one --split-size 1", 0)):
        path = ROOT / "benchmarks" / script.format("resnet")
        ended = program(path, *f"{flags} {more}".split(), processes=processes, directory=tmp_path)
        assert ended.code == 0, ended.err[-3000:]
        entries = metrics.read(tmp_path / more.split()[1] / "metrics.jsonl")
        found.append([entry["loss"] for entry in entries if entry["kind"] == "step"])
    tiles, one = found
    assert len(one) == 2 and one[0] != one[1]
    assert tiles == pytest.approx(one, abs=1e-10)


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    path = ROOT / "benchmarks" / GEMS.format("resnet")
    ended = program(path, "--dry-run", "--batch-size", "2", "--times", "4", directory=tmp_path)
    assert ended.code == 0, ended.err[-3000:]
    assert "nothing was started" in ended.out and "schedule gems" in ended.out and "a step takes 8 samples" in ended.out
    assert "images per sec" not in ended.out and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_command_runs_under_torchrun(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    assert "Epoch: 0 images per sec:" in _launch([*launcher, str(COMMANDS[5][-1])], 5, tmp_path)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI: apt-get install openmpi-bin")
def test_twice_the_processes_under_mpirun_are_two_replicas(tmp_path: Path) -> None:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", *root, "-np", str(2 * COMMANDS[10][-1])]
    said = _launch([*launcher, sys.executable], 10, tmp_path, "--image-size 32 --times 1 --samples 8")
    assert "4 processes = 2 replicas x 2: data parallelism" in said
    assert "Effective batch size: 8 = 2 passes x 2 x 2 replicas (GEMS-MAST: one pass in each of the two pipes)" in said
    assert "Epoch: 0 images per sec:" in said


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


@pytest.mark.slow
def test_a_halo_benchmark_starts_its_processes_itself(tmp_path: Path) -> None:
    """It wanted a launcher."""
    path = str(ROOT / "benchmarks" / "communication" / "halo" / "benchmark_sp_halo_exchange.py")
    flags = "--image-size 12 --warmup 1 --iterations 2 --num-spatial-parts 2 --sizes 9"
    ended = program(path, *flags.split(), directory=tmp_path)
    assert ended.code == 0, ended.err[-3000:]
    assert all(f"Validation passed Rank:{rank}" in ended.out for rank in (0, 1))


def test_a_wrong_flag_is_answered_with_the_nearest() -> None:
    path = ROOT / "benchmarks" / SP.format("resnet")
    done = subprocess.run([sys.executable, str(path), "--num-spatal-parts", "4"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean --num-spatial-parts" in done.stderr and "Traceback" not in done.stderr
