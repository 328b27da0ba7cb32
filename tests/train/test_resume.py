"""Any plan goes on from any other's checkpoint, on real processes; on the same plan nothing tells that it stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from halocline.plan import Plan, Stage
from halocline.train.checkpoint import Checkpoint
from halocline.train.metrics import read
from harness.checks.runs import losses, train
from harness.ranks import on_processes

# Four microbatches of two samples each, whoever computes them: BatchNorm sees a microbatch at a time.
ONE = Plan((Stage((0, 8)),), "layer", 4, batch=8).to_toml()
TILES = Plan((Stage((0, 8), tiles=(2, 2)),), "gpipe", 4, batch=8).to_toml()
GEMS = Plan((Stage((0, 4)), Stage((4, 8))), "gems", 2, pipes=2, replicas=2, batch=4).to_toml()
PIPE = Plan((Stage((0, 3), tiles=(1, 2)), Stage((3, 5)), Stage((5, 8))), "1f1b", 4, batch=8).to_toml()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five steps on one process."""
    directory = tmp_path_factory.mktemp("straight") / "run"
    train(str(directory), ONE, steps=5, lr_schedule="constant", save_every=1, keep=9)
    return directory


def step_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:06d}"


def test_any_plan_goes_on_from_any_other(straight: Path, tmp_path: Path) -> None:
    """One process, 2x2 tiles, replicas of mirrored pipes with ZeRO-1, tiles and stages, and back to one process: each
    takes one step."""
    legs: list[tuple[str, str, dict[str, Any]]] = [
        ("tiles", TILES, {}),
        ("gems", GEMS, {"shard_optimizer": True}),
        ("pipe", PIPE, {}),
        ("one", ONE, {}),
    ]
    source, expected = straight, losses(straight)
    for step, (name, plan, settings) in enumerate(legs, 1):
        run = tmp_path / name
        settings |= {"resume": str(step_of(source, step)), "steps": step + 1, "lr_schedule": "constant"}
        ranks = (
            [train(str(run), plan, **settings)] if plan == ONE else on_processes(4, train, str(run), plan, **settings)
        )
        for rank in ranks:  # nobody reads what it does not hold
            parameters = {n.split(".", 1)[1].rpartition(".")[0] for n in rank["wanted"] if n.startswith("optimizer.")}
            weights = {n for n in rank["wanted"] if not n.startswith(("optimizer.", "random."))}
            assert weights == set(rank["held"])
            assert parameters <= set(rank["held"])
        ((number, epoch, loss, rate),) = losses(run)
        assert (number, epoch, rate) == (step + 1, expected[step][1], expected[step][3])
        assert loss == pytest.approx(expected[step][2], rel=1e-10)
        assert_equal(Checkpoint(step_of(run, step + 1)), Checkpoint(step_of(straight, step + 1)))
        source = run


def assert_equal(ours: Checkpoint, known: Checkpoint) -> None:
    """Every tensor, those of the optimizer included, within 1e-10 of its largest value."""
    assert ours.manifest.tensors.keys() == known.manifest.tensors.keys()
    assert any(name.startswith("optimizer.") for name in known.manifest.tensors)
    for name in known.manifest.tensors:
        a, b = ours.tensor(name).double(), known.tensor(name).double()
        assert a.shape == b.shape
        scale = max(b.abs().max().item(), 1e-6) if b.numel() else 1.0
        assert not b.numel() or (a - b).abs().max().item() <= 1e-10 * scale, name


def test_weights_that_no_rank_has_whole(tmp_path: Path) -> None:
    """A language model with a tied head: tensor ranks and stages, then parameters divided over replicas (FSDP2) with
    tensor ranks, then one process; the curve is that of one process all the way."""
    gpt = {
        "model": "gpt3-small",
        "layers": 2,
        "hidden": 16,
        "heads": 2,
        "vocab": 33,
        "seq": 8,
        "lr_schedule": "constant",
    }
    one = Plan((Stage((0, 5)),), "layer", 4, batch=8).to_toml()
    tensor = Plan((Stage((0, 2), tensor=2), Stage((2, 5), tensor=2)), "1f1b", 4, batch=8).to_toml()
    divided = Plan((Stage((0, 5), tensor=2, shard="parameters"),), "1f1b", 2, replicas=2, batch=4).to_toml()
    whole = tmp_path / "whole"
    train(str(whole), one, steps=4, save_every=1, keep=9, **gpt)
    source = whole
    for step, (name, plan) in enumerate((("tensor", tensor), ("divided", divided), ("one", one)), 1):
        settings = {**gpt, "resume": str(step_of(source, step)), "steps": step + 1}
        run = tmp_path / name
        if plan == one:
            train(str(run), plan, **settings)
        else:
            on_processes(4, train, str(run), plan, **settings)
        assert losses(run)[0][2] == pytest.approx(losses(whole)[step][2], rel=1e-10)
        assert_equal(Checkpoint(step_of(run, step + 1)), Checkpoint(step_of(whole, step + 1)))
        source = run
    assert Checkpoint(step_of(source, 4)).manifest.aliases == {"4.logits.weight": "0.tokens.weight"}


@pytest.mark.parametrize("processes", [1, 4])
def test_a_crash_leaves_no_trace_on_the_same_plan(processes: int, tmp_path: Path) -> None:
    """float32, augmentation, worker processes, ZeRO-1: six steps equal three steps, a crash after the fifth, and the
    rest, bit by bit."""
    settings: dict[str, Any] = {
        "dtype": "float32",
        "workers": 1,
        "augment": "flip,rotate,colour=0.2",
        "save_every": 3,
        "eval_every": 2,
        "shard_optimizer": processes > 1,
        "samples": 24,
    }
    run = tmp_path / "run"
    plan = GEMS if processes > 1 else ONE

    def leg(**more: Any) -> list[Any]:
        if processes == 1:
            return [train(str(run), plan, **settings, **more)]
        return on_processes(processes, train, str(run), plan, **settings, **more)

    whole = leg()
    curve = losses(run)
    weights = (step_of(run, 6) / "rank-00000.safetensors").read_bytes()
    shutil.rmtree(step_of(run, 6))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-2]) + lines[-2][:17])
    again = leg(resume="latest")
    assert [rank["digest"] for rank in again] == [rank["digest"] for rank in whole]
    assert losses(run) == curve
    assert len(curve) == 6 and {c[1] for c in curve} == {0, 1}
    assert (step_of(run, 6) / "rank-00000.safetensors").read_bytes() == weights
    evaluations = [e for e in read(run / "metrics.jsonl") if e["kind"] == "evaluation"]
    assert [e["step"] for e in evaluations] == [2, 4, 6]
