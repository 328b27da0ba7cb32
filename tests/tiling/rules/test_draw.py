"""Random numbers written to tiles and drawn by their values are those of one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import image, on_processes

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: torch.empty_like(x).normal_(1, 2) * x,
    "uniform": lambda x: torch.zeros_like(x).uniform_(-1, 1) + x,
    "bernoulli": lambda x: torch.empty_like(x).bernoulli_(0.3) * x,
    "bernoulli of tiles": lambda x: torch.empty_like(x).bernoulli_(torch.sigmoid(x.detach())) * x,
    "gumbel": lambda x: -torch.empty_like(x).exponential_().log() + x,
    "others": lambda x: sum(
        (torch.zeros_like(x).cauchy_(), torch.zeros_like(x).log_normal_(), torch.zeros_like(x).geometric_(0.2)), x
    ),
    "whole numbers": lambda x: torch.zeros_like(x).random_(0, 9) * x,
    "channels last": lambda x: torch.empty_like(x.contiguous(memory_format=torch.channels_last)).normal_() * x,
    "by probabilities": lambda x: torch.bernoulli(x.detach().sigmoid()) * x + x.detach().sigmoid().bernoulli(),
    "by rates": lambda x: torch.poisson(x.detach().abs()) * x,
    "by means": lambda x: torch.normal(x.detach(), 0.5) * x + torch.normal(x.detach(), x.detach().abs()),
}


def draw(names: list[str]) -> None:
    for name in names:
        one, cut = image((2, 3, 5, 7)).requires_grad_(), image((2, 3, 5, 7)).requires_grad_()
        torch.manual_seed(3)
        expected = DRAWS[name](one) + torch.rand(1)  # the generators are in step afterwards
        torch.manual_seed(3)
        out = (DRAWS[name](tiling.tile(cut, cuts=((0, 5), (0, 3, 7)))) + torch.rand(1)).full()
        assert torch.equal(out, expected), name
        (expected.square().sum()).backward()
        tiling.backward(out.square().sum(), [])
        torch.testing.assert_close(cut.grad, one.grad, rtol=1e-12, atol=1e-12, msg=name)


def test_are_those_of_one_device() -> None:
    on_processes(2, draw, list(DRAWS))


def test_a_plain_tensor_is_not_filled_by_one_tile() -> None:
    x = tiling.tile(image((2, 3, 5, 7)), (1, 2), NoCommunication(0, 2))
    with pytest.raises(UntiledOperation, match="plain tensor"):
        torch.zeros(2, 3, 5, 7).bernoulli_(x)


def test_a_view_is_not_filled() -> None:
    """torch draws other numbers for a tensor that lies in memory with gaps, of which one tile need not know."""
    x = tiling.tile(image((2, 3, 5, 7)), (1, 2), NoCommunication(0, 2))
    with pytest.raises(UntiledOperation, match="a view is not filled"):
        x.clone()[:, :1].normal_()
