"""The loop through its front door, on one process: what the settings do, and a user's own model and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from halocline.data.dataset import Spec
from halocline.models.model import Model
from halocline.plan import Plan, Stage
from halocline.runtime.guards.finite import NotFinite
from halocline.runtime.layers import one_device
from halocline.tiling.boxes import Box
from halocline.train import Settings, Trainer
from halocline.train.datasets import open_datasets
from halocline.train.metrics import read
from halocline.train.planning import model_of

SMALL: dict[str, Any] = {"model": "small-cnn", "device": "cpu", "batch_size": 4, "samples": 16, "image_size": "16"}


def run(directory: Path, **settings: Any) -> tuple[Trainer, list[dict[str, Any]]]:
    trainer = Trainer(Settings.of(**{**SMALL, "run_dir": str(directory), **settings}))
    trainer.fit()
    return trainer, read(directory / "metrics.jsonl")


def steps(entries: list[dict[str, Any]], key: str = "loss") -> list[Any]:
    return [e[key] for e in entries if e["kind"] == "step"]


class Points:
    """A user's own data: points of a plane and which side of a line they lie on, with one input and one target."""

    inputs = (Spec((2,)),)
    targets = (Spec((), torch.int64),)
    classes = 2

    def __len__(self) -> int:
        return 64

    def read(self, sample: int, what: str, box: Box | None = None, *, part: int = 0, epoch: int = 0) -> Tensor:
        point = torch.randn(2, generator=torch.Generator().manual_seed(sample))
        return point if what == "input" else (point.sum() > 0).long()


def test_a_users_own_model_and_data_learn(tmp_path: Path) -> None:
    model = Model("line", [lambda: nn.Linear(2, 8), nn.Tanh, lambda: nn.Linear(8, 2)], classes=2, sequence=0)
    settings = Settings.of(epochs=5, lr=0.5, run_dir=str(tmp_path / "run"), device="cpu")
    plan = Plan((Stage((0, 3)),), "layer", 2, batch=8)
    outcome = Trainer(settings, plan=plan, model=model, dataset=Points(), evaluation=Points()).fit()
    assert outcome.step == 40 and not outcome.interrupted
    assert outcome.scores["accuracy"] > 0.9
    entries = read(tmp_path / "run" / "metrics.jsonl")
    assert [e["step"] for e in entries if e["kind"] == "evaluation"] == [8, 16, 24, 32, 40]  # every epoch
    assert steps(entries, "epoch") == [n // 8 for n in range(40)]


def test_a_run_directory_has_everything(tmp_path: Path) -> None:
    trainer, entries = run(tmp_path / "run", steps=3, timeline=True, tensorboard=True)
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {"plan.toml", "run.toml", "metrics.jsonl", "checkpoints", "timeline", "tensorboard"}
    assert Plan.load(tmp_path / "run" / "plan.toml") == trainer.plan
    assert trainer.plan.image == (16, 16)
    step = entries[0]
    assert step["step"] == 1 and step["samples"] == 4 and step["images_per_second"] > 0 and step["memory"] > 1 << 20


def test_a_run_that_died_before_its_first_checkpoint_starts_its_metrics_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1, "loss": 7.0}\n{"kind": "st')
    _, entries = run(tmp_path, steps=2, resume="latest", evaluation_fraction=0.0)
    assert steps(entries, "step") == [1, 2] and steps(entries)[0] != 7.0


def test_accumulating_is_a_larger_batch(tmp_path: Path) -> None:
    """Two batches of two microbatches summed up are one batch of four: same losses, same weights."""
    a, accumulated = run(
        tmp_path / "a", steps=2, accumulate=2, microbatches=2, dtype="float64", schedule="gpipe", stages=1
    )
    b, whole = run(tmp_path / "b", steps=2, microbatches=4, batch_size=8, dtype="float64", schedule="gpipe", stages=1)
    assert (a.plan.microbatches, a.plan.batch) == (b.plan.microbatches, b.plan.batch) == (4, 8)
    assert steps(accumulated) == steps(whole)
    assert all(torch.equal(p, q) for p, q in zip(a.engine.parameters(), b.engine.parameters()))


def test_the_learning_rate_rises_and_falls(tmp_path: Path) -> None:
    _, entries = run(tmp_path / "run", steps=6, warmup=2, lr=1e-3, lr_schedule="linear", final_lr=0.5)
    assert steps(entries, "lr") == pytest.approx([0.0005, 0.001, 0.001, 0.000875, 0.00075, 0.000625])


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "bf16", "model": "small-mlp"},
        {"channels_last": True},
        {"offload": True, "dtype": "float64"},
        {"clip": 0.01},
        {"augment": "flip,rotate"},
        {"recompute": "all"},
        {"nan": "skip"},
    ],
    ids=str,
)
def test_options_of_the_engine_take_effect(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each changes how a run computes; none changes what the first loss is, but for rounding and for images."""
    # oneDNN's bf16 kernels use instructions that some virtual machines announce and then refuse.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", "bf16" not in settings.values())
    dtype = settings.get("dtype", "float32").replace("bf16", "float32")
    _, plain = run(tmp_path / "plain", steps=2, dtype=dtype, model=settings.get("model", "small-cnn"))
    trainer, entries = run(tmp_path / "run", steps=2, **settings)
    assert steps(entries)[0] == pytest.approx(steps(plain)[0], rel=0.2 if "augment" in settings else 0.02)
    exact = "offload" in settings or "recompute" in settings or "nan" in settings
    assert (steps(entries) == steps(plain)) == exact or "channels_last" in settings
    assert trainer.engine.options.offload == settings.get("offload", False)


def test_evaluation_has_the_size_of_training(tmp_path: Path) -> None:
    """Where files say it: those to evaluate on may be larger."""
    for name, side in (("train/a/0.png", 16), ("train/a/1.png", 20), ("val/a/0.png", 24)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (side + 1, side)).save(tmp_path / name)
    settings = Settings.of(model="small-cnn", data=str(tmp_path), batch_size=2)
    trained, evaluated = open_datasets(settings, Plan((Stage((0, 8)),), "layer", 1, batch=2), model_of(settings))
    assert evaluated is not None and trained.inputs[0].pixels == evaluated.inputs[0].pixels == (16, 17)


KEEPS = """
import torch
from torch import nn

class Keeps(nn.Module):
    table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.ones(x.shape[-1], device=x.device, dtype=x.dtype)
        return x * self.table

def make():
    return nn.Sequential(Keeps(), nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
"""


def test_a_model_that_is_built_and_was_looked_at_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find its classes and its work; what it keeps from then on had no values."""
    (tmp_path / "own_table.py").write_text(KEEPS)
    monkeypatch.syspath_prepend(str(tmp_path))
    _, entries = run(tmp_path / "run", model="own_table:make", balance="autopipe", stages=1, steps=1)
    assert steps(entries, "step") == [1]


def test_the_seed_decides(tmp_path: Path) -> None:
    _, a = run(tmp_path / "a", steps=2, seed=1)
    _, b = run(tmp_path / "b", steps=2, seed=1)
    _, c = run(tmp_path / "c", steps=2, seed=2)
    assert steps(a) == steps(b) != steps(c)


def test_no_evaluation_and_no_checkpoints(tmp_path: Path) -> None:
    trainer, entries = run(tmp_path / "run", steps=2, evaluation_fraction=0.0, save_every=0)
    assert trainer.held_out is None and len(entries) == 2
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_batch_that_the_data_cannot_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a batch of 4 cannot be filled with 3 samples"):
        run(tmp_path / "run", steps=1, samples=3)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_what_was_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="the loss of step 2"):  # as metrics count them
        run(tmp_path / "run", steps=9, lr=1e30, save_every=1)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]


def test_weights_start_as_on_one_device(tmp_path: Path) -> None:
    trainer = Trainer(Settings.of(**SMALL, run_dir=str(tmp_path / "run"), seed=5))
    net = one_device(trainer.model.layers, 5)
    assert all(torch.equal(p, q) for p, q in zip(trainer.engine.parameters(), net.parameters()))
