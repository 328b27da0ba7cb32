"""Where a run writes, what it goes on from, and what a run that goes on without MODEL is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from halocline.plan import Plan
from halocline.train.metrics import Metrics, read
from halocline.train.planning import model_of, plan_to_train
from halocline.train.run_directory import Beginning, RunDirectory, beginning, newest_run, resolved
from halocline.train.settings import Settings


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(path: str, settings: Settings | None = None, checkpoint: int | None = 5) -> RunDirectory:
    run = RunDirectory(Path(path))
    run.describe(Plan.uniform(2, batch=8), settings or Settings.of(model="small-cnn", lr=0.5))
    if checkpoint is not None:
        there = run.checkpoints / f"step-{checkpoint:06d}"
        there.mkdir(parents=True)
        (there / "manifest.json").write_text("{}")
    return run


def test_a_new_run_gets_a_name_of_its_own() -> None:
    settings = Settings.of(model="my_models.cnn:make")
    first = beginning(settings, now=0).directory
    assert first.startswith("runs/my_models.cnn-make-19")
    made(first)
    assert beginning(settings, now=0).directory == f"{first}-2"


def test_a_directory_with_a_run_in_it_is_not_written_over() -> None:
    made("here")
    with pytest.raises(ValueError, match=r"here already holds a run.*--resume latest"):
        beginning(Settings.of(run_dir="here"))


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
    assert beginning(Settings.of(resume="latest")) == Beginning("runs/old", newest_of="runs/old/checkpoints")
    assert beginning(Settings.of(resume="latest", run_dir="new")) == Beginning("new", newest_of="new/checkpoints")
    assert beginning(Settings.of(resume="elsewhere")) == Beginning("elsewhere", newest_of="elsewhere/checkpoints")
    assert beginning(Settings.of(resume="elsewhere", run_dir="x")) == Beginning("x", newest_of="elsewhere/checkpoints")
    found = beginning(Settings.of(resume=step))
    assert Path(found.directory) == Path("runs/old").resolve() and found.checkpoint == step
    with pytest.raises(ValueError, match="--resume nowhere is neither"):
        beginning(Settings.of(resume="nowhere"))


def test_a_run_that_goes_on_elsewhere_does_not_write_over_another() -> None:
    """It mixed its metrics with the other's and deleted the other's later checkpoints."""
    made("first")
    made("second", checkpoint=9)
    for source in ("first", "first/checkpoints/step-000005"):
        with pytest.raises(ValueError, match=r"second already holds a run.*choose another --run-dir"):
            beginning(Settings.of(resume=source, run_dir="second"))
        assert beginning(Settings.of(resume=source, run_dir="./first")).directory == "./first"


def test_no_run_to_resume() -> None:
    with pytest.raises(ValueError, match="no run under runs/"):
        newest_run(Path("runs"))


def test_a_run_goes_on_with_what_it_was_started_with() -> None:
    made("runs/old", Settings.of(model="resnet-v1-20", lr=0.5, stages=2, accumulate=2))
    found = resolved(Settings.of(resume="runs/old", momentum=0.5))
    settings = found.settings
    assert (settings.model.name, settings.optimizer.lr, settings.optimizer.momentum) == ("resnet-v1-20", 0.5, 0.5)
    assert (settings.plan.stages, found.plan) == (2, Plan.uniform(2, batch=8))
    assert resolved(Settings.of(resume="runs/old", stages=4)).plan is None  # the flags now give the plan
    found = resolved(Settings.of(model="small-cnn", resume="runs/old"))
    assert (found.settings.optimizer.lr, found.plan) == (0.1, None)  # with MODEL, the command line says everything


def test_a_setting_said_at_its_default_is_said() -> None:
    """--lr 0.1 --dtype float32 on a run saved with other values was dropped, for these are the defaults."""
    made("runs/old", Settings.of(model="small-cnn", lr=0.5, dtype="float64", momentum=0.3, stages=2))
    settings = resolved(Settings.of(resume="runs/old", lr=0.1, dtype="float32")).settings
    assert (settings.optimizer.lr, settings.run.dtype, settings.optimizer.momentum) == (0.1, "float32", 0.3)
    found = resolved(Settings.of(resume="runs/old", stages=1))
    assert (found.settings.plan.stages, found.plan) == (1, None)


@pytest.mark.parametrize(
    ("said", "batch"),
    [
        ({"schedule": "gems", "microbatches": 4}, 8),
        ({"schedule": "gems", "passes": 2, "microbatches": 8}, 8),
        ({"stages": 2, "microbatches": 4}, 8),
        ({"replicas": 2}, 4),
        ({"lanes": 3, "stages": 2}, 8),
        ({"accumulate": 2, "stages": 2}, 8),
        ({"schedule": "gems", "microbatches": 4, "batch_size": 4}, 16),
        ({"stages": 2, "microbatches": 2, "microbatch_size": 3}, 6),
    ],
    ids=str,
)
def test_another_plan_takes_as_many_samples_a_step_unless_told_otherwise(said: dict[str, Any], batch: int) -> None:
    """8 samples a step resumed with --schedule gems --microbatches 4 became 16."""
    made("runs/old", Settings.of(model="small-cnn", batch_size=8))
    found = resolved(Settings.of(resume="runs/old", **said))
    plan = plan_to_train(found.settings, model_of(found.settings), found.samples)
    assert plan.batch == batch


@pytest.mark.parametrize("said", [{"microbatches": 16, "stages": 2}, {"replicas": 3}])
def test_samples_that_another_plan_cannot_share_are_refused_with_both_numbers(said: dict[str, Any]) -> None:
    made("runs/old", Settings.of(model="small-cnn", batch_size=8))
    found = resolved(Settings.of(resume="runs/old", **said))
    with pytest.raises(ValueError, match=r"8 samples .*(16|3)"):
        plan_to_train(found.settings, model_of(found.settings), found.samples)


def test_when_a_run_that_goes_on_ends_may_be_said_otherwise() -> None:
    """--epochs beside the saved --steps was refused, though only one of them was said."""
    made("runs/old", Settings.of(model="small-cnn", steps=4))
    run = resolved(Settings.of(resume="runs/old", epochs=3)).settings.run
    assert (run.epochs, run.steps) == (3, None)
    assert resolved(Settings.of(resume="runs/old", lr=0.2)).settings.run.steps == 4


def test_settings_and_versions_are_kept() -> None:
    run = made("there")
    first, *_ = run.settings.read_text().splitlines()
    assert first.startswith("# halocline train there/run.toml repeats this run (python 3.")
    assert "torch " in first and "halocline " in first
    assert Settings.load(run.settings).optimizer.lr == 0.5


def test_a_run_of_an_older_halocline_says_what_to_do() -> None:
    """It kept its settings in config.json."""
    run = made("runs/old")
    run.settings.unlink()
    (run.path / "config.json").write_text('{"model": "small-cnn"}')
    with pytest.raises(ValueError, match=r"runs/old was written by an older .*config.json.*name MODEL"):
        resolved(Settings.of(resume="runs/old"))
    assert newest_run(Path("runs")) == run.path


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
