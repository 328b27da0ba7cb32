"""A backward in two halves: the gradients of one backward, for the work of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from halocline import tiling
from halocline.runtime.halves import input_half, weight_half
from harness.ranks import assert_close, image


class Shared(nn.Module):
    """One convolution twice, a parameter on and beside the trunk, and a hook that changes a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        y.register_hook(lambda grad: 2 * grad)
        y = F.relu(self.norm(y)) * self.gain
        return self.conv(y) + x, self.gain * self.conv.weight.sum()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(4), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y)[0]


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, 4, 1).requires_grad_(False), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def blocks(count: int) -> nn.Sequential:
    layers = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(count)]
    return nn.Sequential(*(layer for block in layers for layer in block))


MODELS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "eight blocks": (lambda: blocks(8), (2, 4, 8, 8)),
    "shared": (Shared, (2, 4, 6, 6)),
    "attention": (Attention, (2, 5, 4)),
    "frozen": (Frozen, (2, 4, 6, 6)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), (3, 4)),
}


def backward(model: nn.Module, x: Tensor, halves: bool, needs_input: bool = True) -> tuple[list[Tensor | None], int]:
    """The gradients of the input and of the parameters, and the operations that they took."""
    model.zero_grad()
    x = x.clone().requires_grad_(needs_input)
    found = model(x)
    outputs = list(found) if isinstance(found, tuple) else [found]
    gradients = [image(o.shape, salt) for salt, o in enumerate(outputs)]
    with FlopCounterMode(display=False) as counter:
        if halves:
            parameters = [p for p in model.parameters() if p.requires_grad]
            (grad,), branches = input_half(outputs, gradients, [x], parameters)
            weight_half(branches)
        else:
            torch.autograd.backward(outputs, gradients)
            grad = x.grad
    return [grad, *(p.grad for p in model.parameters())], counter.get_total_flops()


@pytest.mark.parametrize("needs_input", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_two_halves_cost_one_backward(name: str, needs_input: bool) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    model = make().double()
    expected, once = backward(model, image(shape), False, needs_input)
    found, twice = backward(model, image(shape), True, needs_input)
    for number, (a, b) in enumerate(zip(found, expected)):
        assert_close(a, b, 1e-14, f"gradient {number}")
    assert twice == once


def test_a_tile_finds_each_of_its_gradients_once() -> None:
    torch.manual_seed(0)
    model = blocks(3).double()
    # Nothing is sent: the counter watches the modules of all threads.
    tile = tiling.tile(image((2, 4, 7, 6)), (2, 2), tiling.NoCommunication(3, 4))
    found: list[tuple[list[Tensor | None], int]] = []
    for halves in (False, True):
        model.zero_grad()
        x = tile.local.clone().requires_grad_()
        y = model(tiling.TileTensor.wrap(x, tile.spec)).local
        with FlopCounterMode(display=False) as counter:
            if halves:
                (grad,), branches = input_half([y], [torch.ones_like(y)], [x], model.parameters())
                weight_half(branches)
            else:
                y.sum().backward()
                grad = x.grad
        found.append(([grad, *(p.grad for p in model.parameters())], counter.get_total_flops()))
    (expected, once), (halved, twice) = found
    for number, (a, b) in enumerate(zip(halved, expected)):
        assert_close(a, b, 1e-14, f"gradient {number}")
    assert twice == once
