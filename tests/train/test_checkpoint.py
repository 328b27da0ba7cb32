"""Checkpoints on disk: what is written, what survives a crash, and what is said of a damaged or foreign one."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from halocline.plan import Plan, Stage
from halocline.runtime.engine import Engine
from halocline.runtime.processes.world import World
from halocline.train import checkpoint as checkpoints
from halocline.train.checkpoint import Checkpoint, complete, newest, prune, restore, restore_weights, save
from halocline.train.manifest import Damaged, Manifest
from halocline.train.optimizers import OptimizerMaker
from halocline.train.settings import OptimizerSettings
from harness.checks.runs import network, refused, train

ONE = Plan((Stage((0, 8)),), "layer", 2, batch=4).to_toml()
WORLD = World(0, 1, torch.device("cpu"))


def engine_of(layers: Any, name: str = "adamw", **options: Any) -> Engine:
    count = len(layers)
    plan = Plan((Stage((0, count)),), "layer", 1)
    return Engine(
        plan,
        layers,
        loss=nn.functional.mse_loss,
        optimizer=OptimizerMaker(OptimizerSettings(name=name)),
        world=WORLD,
        **options,
    )


def linear(width: int = 5) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2)]


def stepped(engine: Engine, steps: int = 1) -> Engine:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        engine.step(torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator))
    return engine


def saved(root: Path, *steps: int) -> None:
    """Checkpoints of one engine after some numbers of steps."""
    engine = engine_of(linear())
    for step in steps:
        stepped(engine, step - engine.steps)
        save(root, engine, {"sampler": {}}, {})


def flip_a_bit(path: Path, at: float = 0.6) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 4
    path.write_bytes(bytes(data))


# -- what is written ---------------------------------------------------------------------------------------------------


def test_everything_is_there_once_by_its_one_device_name_and_nothing_is_pickled(tmp_path: Path) -> None:
    engine = stepped(engine_of(linear()), 2)
    path = save(tmp_path, engine, {"sampler": {"position": 8}}, {"lr": 0.1})
    assert path == tmp_path / "step-000002"
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "rank-00000.safetensors"]
    assert not list(tmp_path.glob(".*"))
    manifest = Manifest.load(path)
    model = nn.Sequential(*linear())
    assert set(manifest.model) == set(model.state_dict())
    parameters = [name for name, _ in model.named_parameters()]
    kept = {f"optimizer.{name}.{key}" for name in parameters for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(manifest.tensors) == {*model.state_dict(), *kept, "random.torch"}
    assert (manifest.step, manifest.optimizer, manifest.state["sampler"]) == (2, "AdamW", {"position": 8})
    for file in path.iterdir():
        assert not file.read_bytes().startswith((b"\x80", b"PK"))  # neither pickle nor a zip of one


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    engine = stepped(engine_of(linear()), 3)
    checkpoint = Checkpoint(save(tmp_path, engine, {}, {}))
    checkpoint.check()
    other = engine_of(linear())
    restore(other, checkpoint)
    assert other.steps == 3
    for (name, a), (_, b) in zip(engine.named_parameters(), other.named_parameters()):
        assert torch.equal(a, b), name
        ours, theirs = engine.optimizers[0].state[a], other.optimizers[0].state[b]
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    for (_, a), (_, b) in zip(engine.named_buffers(), other.named_buffers()):
        assert torch.equal(a, b)
    stepped(engine), stepped(other)
    assert all(torch.equal(a, b) for a, b in zip(engine.parameters(), other.parameters()))


def test_tied_weights_are_kept_once_and_known_by_both_names(tmp_path: Path) -> None:
    layers = [lambda: nn.Linear(3, 3, bias=False), nn.Tanh, lambda: nn.Linear(3, 3, bias=False)]
    engine = engine_of(layers, tied=[("0.weight", "2.weight")])
    engine.step(torch.ones(2, 3), torch.zeros(2, 3))
    checkpoint = Checkpoint(save(tmp_path, engine, {}, {}))
    assert list(checkpoint.manifest.model) == ["0.weight"]
    assert checkpoint.manifest.aliases == {"2.weight": "0.weight"}
    assert torch.equal(checkpoint.tensor("2.weight"), checkpoint.tensor("0.weight"))
    other = engine_of(layers, tied=[("0.weight", "2.weight")], seed=9)
    restore(other, checkpoint)
    assert torch.equal(dict(other.named_parameters())["0.weight"], dict(engine.named_parameters())["0.weight"])


def test_one_module_in_two_layers_and_buffers_that_are_not_kept(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.two = nn.Linear(3, 3)
            self.register_buffer("cache", torch.zeros(2), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x))

    checkpoint = Checkpoint(save(tmp_path, engine_of([Twice()]), {}, {}))
    assert set(checkpoint.manifest.model) == {"0.one.weight", "0.one.bias"}
    assert checkpoint.manifest.aliases == {"0.two.weight": "0.one.weight", "0.two.bias": "0.one.bias"}


def test_older_ones_are_deleted_and_the_rest_stays(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 12)
    prune(tmp_path, 2, 12)
    assert [p.name for p in complete(tmp_path)] == ["step-000012", "step-000003"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000003", "step-000012"]


def test_a_future_that_was_left_goes_too(tmp_path: Path) -> None:
    """A run went on from step 3 and has just saved step 5: what lies beyond is not its past."""
    saved(tmp_path, 1, 3, 5, 7, 9)
    prune(tmp_path, 2, 5)
    assert [p.name for p in complete(tmp_path)] == ["step-000005", "step-000003"]


def test_a_step_that_comes_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    engine = stepped(engine_of(linear(), "sgd"))
    path = save(tmp_path, engine, {}, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
    assert Checkpoint(path).manifest.optimizer == "SGD"


# -- crashes and damage ------------------------------------------------------------------------------------------------


def test_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """kill -9 at any moment: what is found afterwards is complete and holds what the process had then."""
    engine = engine_of([nn.Linear(300, 300), nn.Linear(300, 2)])
    partial = turn = 0
    while turn < 8 or ((not partial or engine.steps < 2) and turn < 80):
        turn += 1
        with warnings.catch_warnings():  # newer Pythons warn of forks beside threads
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            while True:
                engine.steps += 1
                with torch.no_grad():
                    for parameter in engine.parameters():
                        parameter.fill_(engine.steps)
                save(tmp_path, engine, {}, {})
                prune(tmp_path, 2, engine.steps)
        random.seed(turn)
        time.sleep((0.02 + 0.1 * random.random()) * max(1, turn / 8))  # more for a machine that is slow
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        partial += bool(list(tmp_path.glob(".step-*")))
        found = newest(WORLD, tmp_path)
        if found is not None:
            found.check()
            assert all((found.tensor(n) == found.manifest.step).all() for n in found.manifest.model)
            engine.steps = found.manifest.step
    assert engine.steps > 1
    assert partial, "no kill hit a save: the test has not shown anything"
    save(tmp_path, engine, {}, {})
    assert not list(tmp_path.glob(".step-*"))


@pytest.mark.parametrize("at", [0.01, 0.3, 0.9])
def test_a_flipped_bit_is_named_and_the_one_before_is_taken(at: float, tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    flip_a_bit(tmp_path / "step-000003" / "rank-00000.safetensors", at)
    said: list[str] = []
    found = newest(WORLD, tmp_path, said.append)
    assert found is not None and found.manifest.step == 2
    assert len(said) == 1 and "step-000003/rank-00000.safetensors is damaged" in said[0] and "SHA-256" in said[0]
    with pytest.raises(Damaged, match=r"rank-00000.safetensors is damaged.*--resume .*step-000002$"):
        checkpoints.chosen(WORLD, tmp_path / "step-000003")


@pytest.mark.parametrize("at", [0.1, 0.5, 0.99])
def test_a_flipped_bit_in_the_manifest(at: float, tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    flip_a_bit(tmp_path / "step-000002" / "manifest.json", at)
    said: list[str] = []
    found = newest(WORLD, tmp_path, said.append)
    assert found is not None and found.manifest.step == 1
    assert "manifest.json is damaged" in said[0]


def test_files_cut_short_or_gone(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    short = tmp_path / "step-000003" / "rank-00000.safetensors"
    short.write_bytes(short.read_bytes()[:-9])
    (tmp_path / "step-000002" / "rank-00000.safetensors").unlink()
    said: list[str] = []
    found = newest(WORLD, tmp_path, said.append)
    assert found is not None and found.manifest.step == 1
    assert "bytes and not" in said[0] and "is missing" in said[1]
    flip_a_bit(tmp_path / "step-000001" / "manifest.json")
    with pytest.raises(ValueError, match="none of the 3 checkpoints"):
        newest(WORLD, tmp_path)


def test_a_manifest_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    found = Manifest.load(tmp_path / "step-000001")
    found.files["../secret"] = {"sha256": "", "bytes": 0}
    found.save(tmp_path / "step-000001")
    with pytest.raises(Damaged, match="secret"):
        Checkpoint(tmp_path / "step-000001")


def test_a_later_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    path = tmp_path / "step-000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 7}))
    with pytest.raises(ValueError, match="format 7 and this version reads 1"):
        Checkpoint(tmp_path / "step-000001")


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"checkpoint of step 0 could not be written: not a directory.*--run-dir"):
        save(tmp_path / "file" / "checkpoints", engine_of(linear()), {}, {})


# -- what does not fit -------------------------------------------------------------------------------------------------


def misfit(tmp_path: Path, layers: list[nn.Module], name: str = "adamw") -> str:
    saved(tmp_path, 1)
    with pytest.raises(ValueError) as caught:
        restore(engine_of(layers, name), Checkpoint(tmp_path / "step-000001"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_shapes_are_named_with_both(tmp_path: Path) -> None:
    said = misfit(tmp_path, linear(6))
    assert "0.weight has shape [6, 3] in the model and [5, 3] in" in said and "step-000001" in said


def test_a_layer_that_was_not_saved(tmp_path: Path) -> None:
    said = misfit(tmp_path, [*linear(), nn.Linear(2, 2)])
    assert "has no 3.weight, 3.bias, which the model has" in said and "0.bias" in said


def test_a_layer_that_is_not_in_the_model(tmp_path: Path) -> None:
    said = misfit(tmp_path, linear()[:2])
    assert "has 2.bias, 2.weight, which the model of 2 layers has not" in said


def test_another_optimizer(tmp_path: Path) -> None:
    said = misfit(tmp_path, linear(), "sgd")
    assert "AdamW" in said and "SGD" in said and "--optimizer adamw" in said


def test_weights_from_elsewhere(tmp_path: Path) -> None:
    engine = engine_of(linear())
    given = {name: torch.full_like(p, 2.0) for name, p in nn.Sequential(*linear()).named_parameters()}
    restore_weights(engine, lambda names: given.items(), "some/dir")
    assert all((p == 2).all() for p in engine.parameters())
    with pytest.raises(ValueError, match=r"some/dir has no 2.bias, which the model has"):
        restore_weights(engine, lambda names: [i for i in given.items() if i[0] != "2.bias"], "some/dir")
    with pytest.raises(ValueError, match=r"0.bias has shape \[5\] in the model and \[1\] in some/dir"):
        restore_weights(engine, lambda names: [("0.bias", torch.zeros(1))], "some/dir")


def test_the_trainer_says_it_too(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    train(run, ONE, steps=1)
    assert "already holds a run" in refused(run, ONE)
    assert "--optimizer adamw" in refused(str(tmp_path / "b"), ONE, resume=run, optimizer="sgd")
    assert "the saved position is in 40 samples, the data now has 48" in refused(
        str(tmp_path / "c"), ONE, resume=run, samples=48
    )
    assert "neither a run's directory nor a checkpoint's" in refused(str(tmp_path / "d"), ONE, resume=str(tmp_path))
    assert len(network().layers) == 8
