"""Two parameters made one on one device."""

from __future__ import annotations

import pytest
from torch import nn

from halocline.models.losses import token_loss
from halocline.models.model import tie
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
