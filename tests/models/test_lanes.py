"""Lanes of a transformer: ranks that split a batch give the loss and gradients of the whole, whatever each predicts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import halocline.tiling.rules  # noqa: F401  (a tile without rules could do nothing)
from halocline.models.losses import IGNORED
from halocline.models.model import tie
from halocline.tiling.exchanger import ThreadExchanger
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor
from harness.ranks import on_threads
from harness.transformers_small import NAMES, TOKENS, built, inputs, small, words

CUTS = (0, 1, 5)


@pytest.mark.parametrize("name", NAMES)
def test_two_lanes_equal_one_device(name: str) -> None:
    model = small(name)
    net = built(model)
    given, target = inputs(model, words(5)), words(5, seed=1)
    if model.task != "causal":
        target[torch.rand(5, TOKENS, generator=torch.Generator().manual_seed(0)) < 0.7] = IGNORED
    expected = model.loss(net(given), target)
    expected.backward()

    def run(exchanger: ThreadExchanger) -> tuple[Tensor, dict[str, Tensor | None]]:
        spec = TileSpec((CUTS,), exchanger, (-2,), (0, 1))
        mine = tie(copy.deepcopy(net), model.tied)
        mine.zero_grad()

        def lane(tensor: Tensor) -> Tensor:
            return TileTensor.wrap(tensor[CUTS[exchanger.rank] : CUTS[exchanger.rank + 1]], spec)

        loss = model.loss(mine(tuple(map(lane, given)) if isinstance(given, tuple) else lane(given)), lane(target))
        (loss / 2).backward()  # each lane starts from an equal share of the loss
        return loss.detach(), {key: p.grad for key, p in mine.named_parameters()}

    (loss, first), (_, second) = on_threads(2, run)
    assert torch.allclose(loss, expected.detach(), rtol=1e-12)
    for key, parameter in net.named_parameters():
        a, b = first[key], second[key]
        assert a is not None and b is not None and parameter.grad is not None
        assert torch.allclose(a + b, parameter.grad, rtol=1e-10, atol=1e-14), key
