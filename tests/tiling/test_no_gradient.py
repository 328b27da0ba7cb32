"""A parameter to which one device gives no gradient has none on tiles, where zeros would let a weight decay or a
momentum move it; and the other way round."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling.exchanger import Exchanger
from halocline.tiling.plain import for_tiles
from harness.ranks import assert_close, image, on_threads

Gradients = list[Tensor | None]
SHAPE = (2, 4, 6, 7)


class Partly(nn.Module):
    """A layer of each kind: used, not at all, without a graph, detached, and frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.quiet, self.apart, self.frozen = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(5))
        self.frozen.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            quiet = self.quiet(x)
        return self.frozen(self.used(x).tanh()) + quiet + self.apart(x).detach()


def compare(model: nn.Module, step: Callable[[nn.Module, Tensor], Gradients]) -> Gradients:
    torch.manual_seed(1)
    model = model.double()
    expected = step(copy.deepcopy(model), image(SHAPE).requires_grad_())

    def run(exchanger: Exchanger) -> None:
        found = step(copy.deepcopy(model), tiling.tile(image(SHAPE).requires_grad_(), (2, 2), exchanger))
        for i, (actual, wanted) in enumerate(zip(found, expected, strict=True)):
            assert_close(actual, wanted, 1e-12, f"gradient {i} on rank {exchanger.rank}")

    on_threads(4, run)
    return expected


def penalty(model: nn.Module, x: Tensor) -> Gradients:
    slope = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0]
    slope.square().sum().backward()
    return [p.grad for p in model.parameters()]


def plain_penalty(model: nn.Module, x: Tensor) -> Gradients:
    torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].square().sum().backward()
    return [p.grad for p in model.parameters()]


def penalty_of_the_last(model: nn.Module, x: Tensor) -> Gradients:
    """Of a gradient with respect to what the last layer is given: it does not depend on that, and so on no other."""
    assert isinstance(model, nn.Sequential)
    between = model[:-1](x)
    torch.autograd.grad(model[-1](between).sum(), between, create_graph=True)[0].square().sum().backward()
    return [p.grad for p in model.parameters()]


def asked(model: nn.Module, x: Tensor) -> Gradients:
    trained = [p for p in model.parameters() if p.requires_grad]
    return list(torch.autograd.grad(model(x).square().sum(), trained, allow_unused=True))


def once(model: nn.Module, x: Tensor) -> Gradients:
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()]


MODELS = {
    "convolutions": lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 4, 3, padding=1)),
    "norms": lambda: nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(SHAPE[1:]), nn.Conv2d(4, 2, 1)
    ),
    "mirrored": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")),
    "resized": lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear"), nn.PReLU(4)),
    "partly": lambda: nn.Sequential(Partly(), nn.Conv2d(4, 4, 1)),
}


@pytest.mark.parametrize("step", [penalty, plain_penalty, penalty_of_the_last, asked, once])
@pytest.mark.parametrize("name", MODELS)
def test_none_is_none(name: str, step: Callable[[nn.Module, Tensor], Gradients]) -> None:
    compare(MODELS[name](), step)


def test_the_last_bias_is_not_moved_by_a_gradient_penalty() -> None:
    def step(model: nn.Module, x: Tensor) -> Gradients:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.5)
        plain_penalty(model, x)
        optimizer.step()
        return [p.detach() for p in model.parameters()]

    compare(MODELS["convolutions"](), step)
    assert compare(MODELS["convolutions"](), plain_penalty)[-1] is None


class _Forgetful(torch.autograd.Function):
    """Gives its second argument a gradient where it is told to."""

    @staticmethod
    def forward(ctx, x, parameter, gives):  # type: ignore[no-untyped-def]
        ctx.gives = gives
        return x + 0 * parameter

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad, grad.sum() if ctx.gives else None, None


@pytest.mark.parametrize("givers", [(), (1,), (0, 1, 2)])
def test_ranks_agree_who_has_a_gradient(givers: tuple[int, ...]) -> None:
    def run(exchanger: Exchanger) -> Tensor | None:
        parameter = torch.ones((), dtype=torch.float64, requires_grad=True)
        seen = for_tiles(parameter, exchanger)
        _Forgetful.apply(image((3,)).requires_grad_(), seen, exchanger.rank in givers).sum().backward()
        return parameter.grad

    for found in on_threads(3, run):
        assert (found is None) == (not givers)
        assert found is None or found == 3 * len(givers)


def test_a_gradient_none_of_a_pooled_vector() -> None:
    """What a head after pooling does not depend on gets None through the pooling, and all before it."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.body(x).mean((2, 3)), self.head.weight, self.head.bias)

    expected = compare(Head(), plain_penalty)
    assert expected[1] is None and expected[0] is not None
