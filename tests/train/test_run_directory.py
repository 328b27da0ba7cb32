"""Where a run writes, what it goes on from, and what a run that goes on without MODEL is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from halocline.train.config import Config

from halocline.plan import Plan
from halocline.train.metrics import Metrics, read
from halocline.train.run_directory import Beginning, RunDirectory, beginning, newest_run, resolved


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(path: str, config: Config | None = None, checkpoint: int | None = 5) -> RunDirectory:
    run = RunDirectory(Path(path))
    run.describe(Plan.uniform(2, batch=8), config or Config(model="small-cnn", lr=0.5))
    if checkpoint is not None:
        there = run.checkpoints / f"step-{checkpoint:06d}"
        there.mkdir(parents=True)
        (there / "manifest.json").write_text("{}")
    return run


def test_a_new_run_gets_a_name_of_its_own() -> None:
    config = Config(model="my_models.cnn:make")
    first = beginning(config, now=0).directory
    assert first.startswith("runs/my_models.cnn-make-19")
    made(first)
    assert beginning(config, now=0).directory == f"{first}-2"


def test_a_directory_with_a_run_in_it_is_not_written_over() -> None:
    made("here")
    with pytest.raises(ValueError, match=r"here already holds a run.*--resume latest"):
        beginning(Config(run_dir="here"))


def test_a_path_that_can_hold_no_run_is_told_with_a_fix() -> None:
    """It was the system's words alone: [Errno 17] File exists."""
    Path("taken").write_text("")
    for path in ("taken", "taken/below"):
        with pytest.raises(ValueError, match=f"{path} cannot be the run's directory .*: give another --run-dir"):
            made(path)


def test_resuming() -> None:
    made("runs/old")
    made("elsewhere")
    step = str(Path("runs/old/checkpoints/step-000005"))
    assert beginning(Config(resume="latest")) == Beginning("runs/old", newest_of="runs/old/checkpoints")
    assert beginning(Config(resume="latest", run_dir="new")) == Beginning("new", newest_of="new/checkpoints")
    assert beginning(Config(resume="elsewhere")) == Beginning("elsewhere", newest_of="elsewhere/checkpoints")
    assert beginning(Config(resume="elsewhere", run_dir="x")) == Beginning("x", newest_of="elsewhere/checkpoints")
    found = beginning(Config(resume=step))
    assert Path(found.directory) == Path("runs/old").resolve() and found.checkpoint == step
    with pytest.raises(ValueError, match="--resume nowhere is neither"):
        beginning(Config(resume="nowhere"))


def test_a_run_that_goes_on_elsewhere_does_not_write_over_another() -> None:
    """It mixed its metrics with the other's and deleted the other's later checkpoints."""
    made("first")
    made("second", checkpoint=9)
    for source in ("first", "first/checkpoints/step-000005"):
        with pytest.raises(ValueError, match=r"second already holds a run.*choose another --run-dir"):
            beginning(Config(resume=source, run_dir="second"))
        assert beginning(Config(resume=source, run_dir="./first")).directory == "./first"


def test_no_run_to_resume() -> None:
    with pytest.raises(ValueError, match="no run under runs/"):
        newest_run(Path("runs"))


def test_a_run_goes_on_with_what_it_was_started_with() -> None:
    made("runs/old", Config(model="resnet-v1-20", lr=0.5, split_size=2, accumulate=2))
    config, plan = resolved(Config(resume="runs/old", momentum=0.5))
    assert (config.model, config.lr, config.momentum, config.split_size) == ("resnet-v1-20", 0.5, 0.5, 2)
    assert plan == Plan.uniform(2, batch=8)
    _, other = resolved(Config(resume="runs/old", split_size=4))
    assert other is None  # the flags now give the plan
    config, plan = resolved(Config(model="small-cnn", resume="runs/old"))
    assert (config.lr, plan) == (0.1, None)  # with MODEL, the command line says everything


def test_when_a_run_that_goes_on_ends_may_be_said_otherwise() -> None:
    """--epochs beside the saved --steps was refused, though only one of them was said."""
    made("runs/old", Config(model="small-cnn", steps=4))
    for flag in ("epochs", "num_epochs"):
        config, _ = resolved(Config(resume="runs/old", **{flag: 3}))  # type: ignore[arg-type]
        assert (getattr(config, flag), config.steps) == (3, None)
    assert resolved(Config(resume="runs/old", lr=0.2))[0].steps == 4


def test_settings_and_versions_are_kept() -> None:
    run = made("there")
    kept = json.loads(run.config.read_text())
    assert kept["lr"] == 0.5 and {"torch", "python", "halocline"} <= kept["versions"].keys()


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_are_there_as_soon_as_they_are_written_and_end_where_a_run_goes_on() -> None:
    path = Path("run/metrics.jsonl")
    with Metrics(path) as metrics:
        for step in (1, 2, 3):
            metrics.write("step", step, loss=1 / step)
            assert len(read(path)) == step
    with open(path, "a") as file:
        file.write('{"kind": "step", "st')  # a crash
    with Metrics(path, after=2) as metrics:
        metrics.write("step", 3, loss=0.25)
    assert [(e["step"], e["loss"]) for e in read(path)] == [(1, 1.0), (2, 0.5), (3, 0.25)]


def test_metrics_are_json_where_a_loss_is_not_finite() -> None:
    path = Path("run/metrics.jsonl")
    with Metrics(path) as metrics:
        metrics.write("step", 1, loss=float("nan"), lr=float("inf"))
    assert read(path) == [{"kind": "step", "step": 1, "loss": None, "lr": None}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_with_the_file() -> None:
    with pytest.raises(ValueError, match=r"/dev/full could not be written \(no space left"):
        with Metrics(Path("/dev/full")) as metrics:
            metrics.write("step", 1, loss=0.5)


def test_tensorboard() -> None:
    with Metrics(Path("run/metrics.jsonl"), tensorboard=Path("run/board")) as metrics:
        metrics.write("step", 1, loss=0.5, note="words are left out")
    (file,) = Path("run/board").iterdir()
    assert b"step/loss" in file.read_bytes()
