"""Layers as a rank builds them: compiled ones give what eager ones give, in a pipeline and among tensor ranks."""

from __future__ import annotations

import pytest
from torch import nn

from halocline.runtime.building import compile_layers
from harness.checks.transformers import compare_all, exact, plan
from harness.ranks import on_processes
from harness.teams import LANES, ONE, plan_of

BACKEND = "aot_eager"
"""Traces forward and backward, and runs them without a C++ compiler."""


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of the compiler itself
def test_one_process() -> None:
    given = {"dropout": 0.2, "attention_dropout": 0.0}
    exact([compare_all([("gpt", plan("gpt", split_size=1, parts=2), given)], compile=BACKEND)])


def test_pipelines_and_tensor_ranks() -> None:
    cases = [
        ("bert", plan("bert", split_size=2, parts=2, recompute="all")),
        ("gpt", plan("gpt", split_size=1, parts=2, tp=2)),
        ("gpt", plan("gpt", split_size=1, parts=2, replicas=2, shard="parameters")),
    ]
    exact(on_processes(2, compare_all, cases, compile=BACKEND))


def test_stages_with_lanes_stay_as_they_are() -> None:
    layers = {s: [(str(s), nn.Linear(2, 2)), (f"{s}b", nn.Tanh())] for s in range(2)}
    compile_layers(plan_of([ONE, LANES], layers=4), layers, BACKEND)
    compiled = {name: layer._compiled_call_impl is not None for held in layers.values() for name, layer in held}
    assert compiled == {"0": True, "0b": False, "1": False, "1b": False}
