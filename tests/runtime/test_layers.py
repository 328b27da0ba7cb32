"""Layers and their names, where one module stands in several places."""

from __future__ import annotations

import torch
from torch import nn

from halocline.runtime.layers import named_layers, one_device


def test_one_relu_for_all_is_there_each_time() -> None:
    relu = nn.ReLU()
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    for layers in (nn.Sequential(first, relu, second, relu), [first, relu, second, relu]):
        assert [name for name, _ in named_layers(layers)] == ["0", "1", "2", "3"]
        net = one_device(layers)
        x = torch.randn(5, 3)
        assert len(net) == 4
        torch.testing.assert_close(net(x), relu(second(relu(first(x)))))


def test_a_module_with_parameters_is_one_in_all_its_places() -> None:
    shared = nn.Linear(3, 3)
    net = nn.Sequential()
    for name, layer in (("a", shared), ("b", nn.ReLU()), ("c", shared)):
        net.add_module(name, layer)
    assert [layer is shared for _, layer in named_layers(net)] == [True, False, True]
