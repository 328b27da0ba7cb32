"""A model: two parameters made one on one device, its net, its loss."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch import nn

from halocline.models.losses import token_loss
from halocline.models.model import Model, tie
from harness.transformers_small import NAMES, built, inputs, small, words


@pytest.mark.parametrize("name", NAMES)
def test_the_second_becomes_the_first(name: str) -> None:
    model = small(name)
    net = built(model)
    for first, second in model.tied:
        assert net.get_parameter(first) is net.get_parameter(second)
    copies = {second for _, second in model.tied}
    names = {name for name, _ in net.named_parameters(remove_duplicate=False)}
    assert {name for name, _ in net.named_parameters()} == names - copies
    token_loss(net(inputs(model, words())), words(seed=1)).backward()
    assert all(p.grad is not None for p in net.parameters())


def test_shapes_that_differ_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    with pytest.raises(
        ValueError, match=r"0\.weight is \(3, 2\) and 1\.weight is \(2, 3\): only parameters of one shape"
    ):
        tie(net, [("0.weight", "1.weight")])


def test_a_model_by_name_as_one_net() -> None:
    model = Model.of("gpt3-small", layers=1, hidden=8, heads=2, vocab=11, seq=5)
    net = model.net()
    assert net.get_parameter("0.tokens.weight") is net.get_parameter("3.logits.weight")
    assert Model("mine", net, "causal").net() is net


def test_the_loss_suits_the_task() -> None:
    assert Model("mine", [], "causal").loss is token_loss
    assert Model("mine", [], "causal", loss=F.mse_loss).loss is F.mse_loss
    assert Model("mine", [], "segmentation").loss is Model("mine", []).loss is F.cross_entropy
