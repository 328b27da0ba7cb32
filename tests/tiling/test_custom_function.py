"""A model's own autograd.Function: its forward and its backward see tiles, and its gradients are one device's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import assert_exact, image
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from halocline.tiling import UntiledOperation


def function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """An autograd.Function of which the two halves are given."""
    halves = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Own", (torch.autograd.Function,), halves).apply  # type: ignore[attr-defined]


def kept(ctx: Any, *tensors: Tensor) -> None:
    ctx.save_for_backward(*tensors)


def normalised(ctx: Any, x: Tensor) -> Tensor:
    scale = x.square().mean()
    ctx.save_for_backward(x, scale)
    return x / scale


def normalised_back(ctx: Any, grad: Tensor) -> Tensor:
    x, scale = ctx.saved_tensors
    return grad / scale - x * ((grad * x).sum() * 2 / (scale.square() * x.numel()))


def slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def exponential(ctx: Any, x: Tensor) -> Tensor:
    out = torch.exp(x)
    ctx.save_for_backward(out)
    return out


FUNCTIONS = {
    "its input, reversed": function(lambda ctx, x: x, lambda ctx, grad: -grad),
    "a view of its input, reversed": function(lambda ctx, x: x.view_as(x), lambda ctx, grad: -grad),
    "straight through": function(lambda ctx, x: x.sign(), lambda ctx, grad: grad.clamp(-1, 1)),
    "swish": function(lambda ctx, x: (kept(ctx, x), F.silu(x))[1], lambda ctx, grad: grad * slope(*ctx.saved_tensors)),
    "saves its result": function(exponential, lambda ctx, grad: grad * ctx.saved_tensors[0]),
    "two results": function(
        lambda ctx, x: (kept(ctx, x), x * 2, F.silu(x))[1:],
        lambda ctx, first, second: first * 2 + second * slope(*ctx.saved_tensors),
    ),
    "sums in both halves": function(normalised, normalised_back),
    "in place": function(lambda ctx, x: (ctx.mark_dirty(x), x.mul_(2))[1], lambda ctx, grad: grad * 2),
}


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_one_device(name: str, margin: int) -> None:
    weight = image((2, 3, 3, 3))

    def run(x: Tensor) -> list[Tensor]:
        out = FUNCTIONS[name](F.conv2d(x, image((3, 3, 3, 3)), padding=1))
        return [F.conv2d(o, weight, padding=1) for o in (out if isinstance(out, tuple) else (out,))]

    assert_exact(run, (2, 3, 7, 5), grid=(2, 2), margin=margin)


def test_its_parameters_get_their_gradients() -> None:
    scaled = function(
        lambda ctx, x, scale: (kept(ctx, x, scale), x * scale)[1],
        lambda ctx, grad: (
            grad * ctx.saved_tensors[1],
            (grad * ctx.saved_tensors[0]).sum((0, 2, 3), keepdim=True),
        ),
    )
    assert_exact(scaled, (2, 3, 7, 5), grid=(1, 3), plain=[image((1, 3, 1, 1)).requires_grad_()])


def test_one_that_leaves_the_tiling_is_refused() -> None:
    energy = function(
        lambda ctx, x: (kept(ctx, x), x.square().sum())[1], lambda ctx, grad: 2 * grad * ctx.saved_tensors[0]
    )
    with pytest.raises(UntiledOperation):
        assert_exact(lambda x: energy(F.relu(x)), (2, 3, 7, 5), grid=(1, 2))


def test_reentrant_checkpointing_is_refused_with_the_way_out() -> None:
    with pytest.raises(UntiledOperation, match="use_reentrant=False"):
        assert_exact(lambda x: checkpoint(F.silu, x * 2, use_reentrant=True), (2, 3, 7, 5), grid=(1, 2))


def hooked(kind: str, hook: Callable[..., Any]) -> nn.Module:
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
    getattr(net[1], kind)(hook)
    return net


@pytest.mark.parametrize(
    ("kind", "hook"),
    [
        ("register_full_backward_hook", lambda module, inputs, outputs: (inputs[0] / inputs[0].norm(),)),
        ("register_full_backward_pre_hook", lambda module, outputs: (outputs[0] * outputs[0].mean(),)),
    ],
)
def test_backward_hooks_of_modules(kind: str, hook: Callable[..., Any]) -> None:
    """Which torch builds on an autograd.Function of its own."""
    assert_exact(hooked(kind, hook), (2, 3, 7, 5), grid=(2, 2))


@pytest.mark.parametrize(
    "hook",
    [lambda grad: None, lambda grad: grad / grad.norm(), lambda grad: image(grad.shape), lambda grad: grad.flip(-1)],
)
def test_hooks_of_tensors(hook: Callable[[Tensor], Any]) -> None:
    def run(x: Tensor) -> Tensor:
        y = F.conv2d(x, image((3, 3, 3, 3)), padding=1)
        if y.requires_grad:
            y.register_hook(hook)
        return F.conv2d(y, image((2, 3, 3, 3)), padding=1)

    assert_exact(run, (2, 3, 7, 6), grid=(1, 2))
