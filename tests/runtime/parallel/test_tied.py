"""Tied weights: one parameter in several layers, in one stage or in several, on one rank or on many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from halocline.plan import Layout, Plan, Stage
from halocline.runtime import Engine, World
from halocline.runtime.layers import named_layers
from halocline.runtime.parallel.tied import Ties, ties
from harness.checks.transformers import clipped, compare_all, engine_of, exact, model, plan
from harness.ranks import on_processes
from harness.teams import ONE, plan_of

ALONE: dict[str, Any] = {"split_size": 1, "parts": 2}


@pytest.mark.parametrize("name", ["gpt", "t5"])
def test_tied_in_one_stage(name: str) -> None:
    exact([compare_all([(name, plan(name, **ALONE))])])


def test_tied_across_stages() -> None:
    """A head tied to the table of the first stage; T5's biases, tied over many layers; over replicas and two pipes."""
    cases = [(name, plan(name, split_size=4, parts=4)) for name in ("gpt", "t5")]
    cases += [(name, plan(name, split_size=2, parts=2, replicas=2)) for name in ("bert", "t5")]
    cases += [("t5", plan("t5", split_size=4, parts=2, schedule="gems"))]
    cases += [("gpt", plan("gpt", split_size=4, parts=4, schedule="chimera"))]
    exact(on_processes(4, compare_all, cases))


def test_both_copies_on_one_rank() -> None:
    """Mirrored pipes and interleaved chunks put the first and the last stage on one rank."""
    cases = [
        ("t5", plan("t5", split_size=2, parts=2, schedule="gems")),
        ("gpt", plan("gpt", split_size=2, parts=2, schedule="interleaved", chunks=2)),
    ]
    exact(on_processes(2, compare_all, cases))


def test_a_sharded_optimizer_updates_tied_weights_alike() -> None:
    cases = [("t5", plan("t5", split_size=2, parts=2, schedule="gems"))]
    exact(on_processes(2, compare_all, cases, shard_optimizer=True))


def test_clipping_counts_a_tied_parameter_once() -> None:
    for worst, _ in on_processes(2, clipped, "gpt", plan("gpt", split_size=2, parts=2)):
        assert worst < 1e-12
    worst, missing = clipped("gpt", plan("gpt", **ALONE))
    assert worst < 1e-12
    assert missing == 0


def named(text: str) -> list[str]:
    return [name for name, _ in engine_of("t5", text, {}).named_parameters()]


def test_a_tied_parameter_has_one_name() -> None:
    alone = named(plan("t5", **ALONE))
    assert len(alone) == len(set(alone))
    head = f"{len(model('t5').layers) - 1}.logits.weight"
    assert "0.tokens.weight" in alone and head not in alone
    ranks = on_processes(2, named, plan("t5", split_size=2, parts=2))
    assert "0.tokens.weight" in ranks[0] and "0.tokens.weight" in ranks[1]
    assert head not in ranks[1]
    assert set(ranks[0]) | set(ranks[1]) == set(alone)


def test_layers_that_come_with_a_parameter_in_common_are_tied() -> None:
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    layers = nn.Sequential(first, nn.Tanh(), last)
    found = ties((), named_layers(layers), Plan.uniform(3))
    assert [t.names for t in found] == [("0.weight", "2.weight")]
    engine = Engine(Plan.from_flags(split_size=1, layers=3), layers, loss=F.mse_loss)
    assert [name for name, _ in engine.named_parameters()] == ["0.weight", "0.bias", "2.bias"]


def test_ties_join_where_they_meet() -> None:
    layers = [lambda: nn.Linear(2, 2) for _ in range(4)]
    pairs = [("2.weight", "3.weight"), ("0.weight", "1.weight"), ("1.weight", "2.weight")]
    (found,) = ties(pairs, named_layers(layers), plan_of([ONE, ONE], layers=4))
    assert found.names == ("0.weight", "1.weight", "2.weight", "3.weight")
    assert found.stages == (0, 0, 1, 1)


def test_two_cuts_of_one_parameter_on_one_rank_are_refused() -> None:
    """Which every rank finds, before any waits for another."""
    stages = (Stage((0, 1)), Stage((1, 2)), Stage((2, 3), tensor=2))
    made = Plan(stages, "gems", 2, pipes=2)
    layers = [lambda: nn.Linear(2, 2) for _ in range(3)]
    found = ties([("0.weight", "2.weight")], named_layers(layers), made)
    for rank in range(4):
        with pytest.raises(ValueError, match=r"0.weight is tied between stages\[0\] with tensor = 1 and stages\[2\]"):
            Ties(World(rank, 4, torch.device("cpu")), Layout(made), found, {})


def test_what_cannot_be_tied_is_refused() -> None:
    layers = [lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 3)]
    one = Plan.from_flags(split_size=1, layers=2)
    with pytest.raises(ValueError, match=r"names layer '7', and the model's layers are 0 to 1"):
        Engine(one, layers, loss=F.mse_loss, tied=[("0.weight", "7.weight")])
    with pytest.raises(ValueError, match=r"layer 1 has no such parameter: it has weight, bias"):
        Engine(one, layers, loss=F.mse_loss, tied=[("0.weight", "1.table")])
    with pytest.raises(ValueError, match=r"0.weight is \(2, 2\) and 1.weight is \(3, 2\)"):
        Engine(one, layers, loss=F.mse_loss, tied=[("0.weight", "1.weight")])
