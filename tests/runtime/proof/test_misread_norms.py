"""Norms that torch misreads are told by name, and only those."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halocline.runtime.proof.misread_norms import MisreadNorms
from halocline.runtime.proof.written_norms import written_norms


def laid(shape: tuple[int, ...], order: tuple[int, ...], seed: int) -> Tensor:
    """An image whose dims lie in memory in this order."""
    values = torch.randn([shape[d] for d in order], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.permute([order.index(d) for d in range(len(shape))])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("function", [F.batch_norm, F.instance_norm])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 4, 1), (2, 3, 4, 5), (1, 3, 6)])
def test_a_norm_is_misread_where_its_gradient_is_wrong(shape: tuple[int, ...], function: Any, training: bool) -> None:
    """Inputs and gradients in all orders: the kernel is suspected where norms written out differ, and nowhere else."""
    orders = list(permutations(range(len(shape))))
    given = torch.tensor([0.3, -0.2, 0.1]).double(), torch.tensor([2.0, 1.0, 0.5]).double()
    wrong = 0
    for order, grad_order in product(orders[::5] + orders[-1:], orders):
        x, grad = laid(shape, order, 0), laid(shape, grad_order, 1)
        gradients = []
        for mode in (watched := MisreadNorms([]), written_norms()):
            leaf = x.detach().requires_grad_()
            with mode:
                function(leaf, *(t.clone() for t in given), None, None, training).backward(grad)
            gradients.append(leaf.grad)
        differs = not torch.allclose(*gradients, rtol=1e-8, atol=1e-8)
        assert bool(watched.names) == differs, (order, grad_order)
        wrong += differs
    ambiguous = shape[0] == 1 or shape[-1] == 1 or function is F.instance_norm
    assert (wrong > 0) == (ambiguous and len(shape) == 4)


class Sequence(nn.Module):
    """A norm, and the pixels as a sequence whose second dim are the samples, as nn.MultiheadAttention has them."""

    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.norm, self.after, self.recompute = nn.BatchNorm2d(3), nn.LayerNorm(3), recompute

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.norm, x, use_reentrant=False) if self.recompute else self.norm(x)
        return self.after(y.permute(2, 3, 0, 1)).permute(2, 3, 0, 1)


@pytest.mark.parametrize("recompute", [False, True])
def test_modules_are_named_in_the_order_of_the_model(recompute: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Sequence(recompute), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Sequential(Sequence()))
    with MisreadNorms(net.named_children()) as watched:
        net(torch.randn(2, 3, 4, 5)).square().sum().backward()
    assert watched.names == []
    drawn = torch.get_rng_state()
    with MisreadNorms(net.named_children()) as watched:
        net(torch.ones(1, 3, 4, 5)).square().sum().backward()
    assert watched.names == ["0.norm", "3.0.norm"]
    assert torch.equal(torch.get_rng_state(), drawn), "nothing that a model would have drawn is"
    watched.names = []
    net(torch.randn(1, 3, 4, 5)).sum().backward()
    assert watched.names == [], "it is over"


def test_a_norm_of_the_loss() -> None:
    x = torch.randn(1, 3, 4, 5, requires_grad=True)
    with MisreadNorms([]) as watched:
        F.layer_norm(F.batch_norm(x, None, None, training=True).permute(2, 3, 0, 1), (3,)).square().sum().backward()
    assert watched.names == ["of the loss"]


def test_a_forward_that_fails_leaves_no_name_behind() -> None:
    net = nn.Sequential(Sequence())
    with MisreadNorms(net.named_children()) as watched:
        with pytest.raises(ValueError):
            net[0](torch.randn(3))
        assert watched._inside == ["of the loss"]


def test_a_gradient_that_is_one_number_repeated() -> None:
    x = torch.randn(1, 3, 4, 5, requires_grad=True)
    with MisreadNorms([]) as watched:
        F.instance_norm(F.batch_norm(x, None, None, training=True)).sum().backward()
    assert watched.names == []
