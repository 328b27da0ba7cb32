"""A model's own autograd.Function: its forward and its backward see tiles, and its gradients are one device's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image, on_threads


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


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_what_another_one_returned(name: str, margin: int) -> None:
    """Which has two results, of which one is also used besides (wavelets do so)."""

    def run(x: Tensor) -> list[Tensor]:
        given, also = FUNCTIONS["two results"](F.conv2d(x, image((3, 3, 3, 3)), padding=1))
        out = FUNCTIONS[name](given)
        return [F.avg_pool2d(o, 2) for o in (*(out if isinstance(out, tuple) else (out,)), given, also)]

    assert_exact(run, (2, 3, 7, 5), grid=(2, 2), margin=margin)


class PassesOn(TorchFunctionMode):
    """Asks the rules itself, and stays in force while they work."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if tiling.TileTensor not in types:
            return func(*args, **(kwargs or {}))
        with self:
            return tiling.TileTensor.__torch_function__(func, types, args, kwargs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_a_mode_that_asks_the_rules(name: str) -> None:
    def run(x: Tensor) -> Any:
        with PassesOn():
            return FUNCTIONS[name](x * 1)

    assert_exact(run, (2, 3, 7, 5), grid=(2, 2))


def test_its_parameters_get_their_gradients() -> None:
    scaled = function(
        lambda ctx, x, scale: (kept(ctx, x, scale), x * scale)[1],
        lambda ctx, grad: (
            grad * ctx.saved_tensors[1],
            (grad * ctx.saved_tensors[0]).sum((0, 2, 3), keepdim=True),
        ),
    )
    assert_exact(scaled, (2, 3, 7, 5), grid=(1, 3), plain=[image((1, 3, 1, 1)).requires_grad_()])


REDUCING = {
    "to one number": function(
        lambda ctx, x: (kept(ctx, x), x.square().sum())[1], lambda ctx, grad: 2 * grad * ctx.saved_tensors[0]
    ),
    "to channels": function(
        lambda ctx, x: (kept(ctx, x), x.square().mean((2, 3)))[1],
        lambda ctx, grad: grad[:, :, None, None] * ctx.saved_tensors[0] * 2 / ctx.saved_tensors[0][0, 0].numel(),
    ),
    "whose gradient is plain": function(
        lambda ctx, x: x.mean((2, 3)), lambda ctx, grad: (grad / 35)[:, :, None, None].expand(2, 3, 7, 5).clone()
    ),
    "and a tile": function(
        lambda ctx, x: (kept(ctx, x), x.mean((2, 3)), F.silu(x))[1:],
        lambda ctx, grad, tile: (grad / 35)[:, :, None, None] + tile * slope(*ctx.saved_tensors),
    ),
    "and a tile that is not used": function(
        lambda ctx, x: (kept(ctx, x), x.mean((2, 3)), F.silu(x))[1:],
        lambda ctx, grad, tile: (grad / 35)[:, :, None, None] + tile * slope(*ctx.saved_tensors),
    ),
}


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("name", REDUCING)
def test_one_that_reduces_pixels(name: str, margin: int) -> None:
    def run(x: Tensor) -> Any:
        out = REDUCING[name](F.conv2d(x, image((3, 3, 3, 3)), padding=1))
        return out[0] if "not used" in name else out

    assert_exact(run, (2, 3, 7, 5), cuts=[[0, 1, 7], [0, 4, 5]], margin=margin)


def test_a_plain_gradient_of_another_shape_is_refused() -> None:
    """Which autograd would sum to the shape of a tile of one pixel."""
    halved = function(lambda ctx, x: x.mean((2, 3)), lambda ctx, grad: grad[:, :, None, None].expand(2, 3, 4, 5))
    with pytest.raises(UntiledOperation, match="gradient of that shape"):
        assert_exact(lambda x: halved(x * 1) if type(x) is not Tensor else x.mean((2, 3)), (2, 3, 7, 5), grid=(7, 5))


def test_one_whose_context_is_set_up_apart() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor, scale: float = 3.0) -> Tensor:
            return x * scale * x.mean()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            (x,) = ctx.saved_tensors
            return ctx.scale * (grad * x.mean() + (grad * x).mean()), None

    assert_exact(lambda x: Scaled.apply(x * 2), (2, 3, 7, 5), grid=(2, 2))


def test_in_place_one_that_sums() -> None:
    centred = function(lambda ctx, x: (ctx.mark_dirty(x), x.sub_(x.mean()))[1], lambda ctx, grad: grad - grad.mean())

    def run(x: Tensor) -> Tensor:
        y = F.conv2d(x, image((3, 3, 3, 3)), padding=1)
        centred(y)
        return F.conv2d(y, image((2, 3, 3, 3)), padding=1)

    for margin in (0, 2):
        assert_exact(run, (2, 3, 7, 5), grid=(2, 2), margin=margin)


def test_a_leaf_tile() -> None:
    """A tile that was made to require its gradient is given to a function, and to two at once."""
    double = function(lambda ctx, x: x * 2, lambda ctx, grad: grad * 2)

    def run(exchanger: tiling.Exchanger) -> Tensor:
        x = tiling.tile(image((2, 3, 7, 5)), (1, 2), exchanger).requires_grad_()
        (double(x) + double(x) * x).sum().backward()
        assert x.grad is not None
        return x.grad.full()

    for grad in on_threads(2, run):
        torch.testing.assert_close(grad, 2 + 4 * image((2, 3, 7, 5)), rtol=1e-12, atol=1e-12)


# ------------------------------------------------------------------------------------------------ reentrant checkpoints


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.GroupNorm(1, 3)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        out = F.silu(self.norm(self.conv(x)), inplace=True)
        return out if y is None else out + y


class Reentrant(nn.Module):
    def __init__(self, reduce: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = Part(), Part(), nn.Linear(3, 2)
        self.reduce = reduce

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = checkpoint(self.second, x, 2 * x, use_reentrant=True)
        if not self.reduce:
            return checkpoint(self.first, y, use_reentrant=True)
        return checkpoint(lambda t: self.head(t.mean((2, 3))), y, use_reentrant=True)


@pytest.mark.filterwarnings("ignore:None of the inputs")  # of the inner one, in the outer one's forward
def test_reentrant_checkpoints_are_exact() -> None:
    for reduce in (False, True):
        assert_exact(Reentrant(reduce), (2, 3, 7, 5), grid=(2, 2))
    assert_exact(checkpointed_twice, (2, 3, 7, 5), cuts=[[0, 1, 7], [0, 5]])


def checkpointed_twice(x: Tensor) -> Tensor:
    """A checkpoint within a checkpoint, of a tensor that is not used elsewhere."""
    inner = lambda t: checkpoint(lambda u: torch.tanh(u) * u.mean(), t * 2, use_reentrant=True)  # noqa: E731
    return checkpoint(inner, F.conv2d(x, image((3, 3, 3, 3)), padding=1), use_reentrant=True)


def test_reentrant_checkpoints_that_could_not_be_exact_are_refused_in_the_forward() -> None:
    x = tiling.tile(image((2, 3, 7, 5)).requires_grad_(), (1, 2), NoCommunication(0, 2))
    wide = tiling.TileTensor.wrap(image((2, 3, 7, 3)).requires_grad_(), x.spec.grown(1))
    scale = image((1, 3, 1, 1)).requires_grad_()
    for args in ((wide,), (x, scale)):
        with pytest.raises(UntiledOperation, match="use_reentrant=False"):
            checkpoint(torch.mul, *args, 2.0, use_reentrant=True)


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


class Skips(nn.Module):
    """What custom functions and hooked modules return is used more than once, by such functions and by others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        for module in (self.first, self.second):
            module.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x * 2)
        y = self.second(y) + y * y.mean((2, 3), keepdim=True)
        doubled = function(lambda ctx, t: t * 2, lambda ctx, grad: grad * 3)
        z = doubled(y)
        z = doubled(z) + z
        z.mul_(1.5)
        return doubled(z) * z


def test_what_a_function_returned_is_used_twice() -> None:
    assert_exact(Skips(), (2, 3, 7, 5), grid=(2, 2))
    assert_exact(Skips(), (2, 3, 7, 5), grid=(1, 2), margin=1)


def test_in_place_functions_on_what_a_function_returned() -> None:
    def tripled(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        y = function(lambda ctx, t: t * 2, lambda ctx, grad: grad * 2)(x)
        z = function(tripled, lambda ctx, grad: grad * 3)(y)
        return y.sin(), z

    assert_exact(model, (2, 3, 7, 5), grid=(2, 2))


def test_anomalies_are_looked_for_in_gradients_of_functions() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert_exact(Skips(), (2, 3, 7, 5), grid=(1, 2))
        wrong = function(lambda ctx, t: t * 2, lambda ctx, grad: grad * float("nan"))
        x = tiling.tile(image((2, 3, 7, 5)).requires_grad_(), (1, 1))
        with pytest.raises(RuntimeError, match="returned nan values"), pytest.warns(UserWarning, match="forward call"):
            wrong(x * 2).sum().backward()


def saves_input(ctx: Any, x: Tensor) -> Tensor:
    ctx.save_for_backward(x)
    return x * x


def saves_both(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    out = x.exp()
    ctx.save_for_backward(out)
    return out, out.mean()


def of_both(ctx: Any, grad: Tensor, mean: Tensor) -> Tensor:
    (out,) = ctx.saved_tensors
    return out * grad + out * mean / out.numel()


TWICE_DIFFERENTIABLE = [
    lambda x: function(lambda ctx, t: t.view_as(t), lambda ctx, grad: -0.5 * grad)(x),
    lambda x: function(saves_input, lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad)(x),
    lambda x: function(exponential, lambda ctx, grad: ctx.saved_tensors[0] * grad)(x),
    lambda x: torch.mul(*function(saves_both, of_both)(x)),
]


class Penalised(nn.Module):
    """A penalty on gradients, which go through a custom function and the hook of a module."""

    def __init__(self, own: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.own = nn.Conv2d(3, 3, 3, padding=1), own
        self.conv.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        loss = self.own(self.conv(y) * 0.3).sin().sum()
        first, second = torch.autograd.grad(loss, [y, self.conv.weight], create_graph=True)
        return first.square().mean() + second.square().mean() + loss


@pytest.mark.parametrize("number", range(len(TWICE_DIFFERENTIABLE)))
def test_gradients_of_gradients_of_functions_and_hooked_modules(number: int) -> None:
    assert_exact(Penalised(TWICE_DIFFERENTIABLE[number]), (2, 3, 7, 5), grid=(2, 2), tolerance=1e-10)


def test_gradients_of_gradients_of_what_hooks_took_are_refused() -> None:
    def model(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return Penalised(TWICE_DIFFERENTIABLE[1]).double()(x)

    with pytest.raises(UntiledOperation, match="save_on_cpu"):
        assert_exact(model, (2, 3, 7, 5), grid=(1, 2))


def test_a_reentrant_checkpoint_of_which_hooks_took_the_input() -> None:
    def model(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return checkpoint(torch.sin, x * 2, use_reentrant=True)

    assert_exact(model, (2, 3, 7, 5), grid=(2, 2))
