"""Gradients of parameters that are not dense floats: complex ones, and the sparse gradient of an embedding.

They are those of one device, in value and in kind.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from halocline import tiling
from harness.ranks import assert_close, image, on_threads

SHAPE = (2, 3, 6, 5)


class Phases(nn.Module):
    """Complex weights on tiles and on what was reduced from them."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.complex(image((3, 1, 1), 1), image((3, 1, 1), 2)))
        self.head = nn.Parameter(torch.complex(image((3,), 3), image((3,), 4)))

    def forward(self, x: Tensor) -> Tensor:
        turned = x * self.phase
        return ((turned.mean((2, 3)) * self.head).abs().sum() + turned.abs().square().mean()).real


class Looked(nn.Module):
    """An embedding of a map of numbers."""

    def __init__(self, sparse: bool, padding: int | None = None) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, padding_idx=padding, sparse=sparse).double()

    def forward(self, x: Tensor) -> Tensor:
        return (self.table((x.abs() * 3).long() % 5) * x.unsqueeze(-1)).square().mean()


def dense(gradient: Tensor | None) -> list[Tensor | None]:
    """Real numbers that tell all of a gradient."""
    if gradient is None:
        return [None]
    whole = gradient.to_dense() if gradient.is_sparse else gradient
    return [whole.real, whole.imag] if whole.is_complex() else [whole]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(Phases(), id="complex"),
        pytest.param(Looked(sparse=False), id="embedding"),
        pytest.param(Looked(sparse=True), id="sparse embedding"),
        pytest.param(Looked(sparse=True, padding=1), id="sparse embedding with padding"),
    ],
)
def test_gradients_are_those_of_one_device(model: nn.Module) -> None:
    one = copy.deepcopy(model)
    one(image(SHAPE)).backward()
    expected = [p.grad for p in one.parameters()]
    copies = [copy.deepcopy(model) for _ in range(2)]

    def run(exchanger: tiling.ThreadExchanger) -> None:
        mine = copies[exchanger.rank]
        loss = mine(tiling.tile(image(SHAPE), cuts=[[0, 6], [0, 2, 5]], group=exchanger))
        tiling.backward(loss, mine, exchanger)
        for actual, one_device in zip([p.grad for p in mine.parameters()], expected, strict=True):
            assert actual is not None and one_device is not None
            assert actual.layout == one_device.layout and actual.dtype == one_device.dtype
            for a, b in zip(dense(actual), dense(one_device), strict=True):
                assert_close(a, b, 1e-12, f"gradient on rank {exchanger.rank}")

    on_threads(2, run)
