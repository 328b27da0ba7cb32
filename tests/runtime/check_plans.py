"""What runs on each rank of the exactness tests: a plan's steps, compared with the same steps on one device."""

from __future__ import annotations

import traceback
from functools import cache, lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine, World, verify


class Pair(nn.Module):
    """From one tensor to a pair: what AmoebaNet's cells hand on."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, F.relu(self.conv(x))


class Mix(nn.Module):
    """From a pair to a pair, with a skip."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        before, now = pair
        return now, F.relu(self.norm(self.conv(now)) + before)


class Join(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]


def cnn() -> list[Any]:
    """Eight layers: strides, BatchNorm, pooling, a head."""
    return [
        lambda: nn.Sequential(nn.Conv2d(3, 4, 5, 2, 2, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)),
        lambda: nn.Conv2d(4, 6, 3, padding=1),
        lambda: nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()),
        lambda: nn.MaxPool2d(3, 2, 1),
        lambda: nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6, momentum=0.3)),
        lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1)),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(8, 5),
    ]


def pairs() -> list[Any]:
    """Eight layers whose boundaries carry pairs of tensors."""
    return [
        lambda: nn.Conv2d(3, 4, 3, 2, 1),
        lambda: Pair(4),
        lambda: Mix(4),
        lambda: Mix(4),
        lambda: Mix(4),
        lambda: Join(),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(4, 5),
    ]


class Down(nn.Module):
    """To half the size, with the way around it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * channels, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, F.max_pool2d(F.relu(self.conv(x)), 2)


class Deep(nn.Module):
    """Works on the smaller of two; the other passes by."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pair[0], self.inner(pair[1])


class Up(nn.Module):
    """Back to the full size, joined with what passed by."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, 2)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.cat([pair[0], F.interpolate(self.up(pair[1]), size=pair[0].shape[2:], mode="bilinear")], 1)


def dense() -> list[Any]:
    """Eight layers of a small U-Net with dropout: a class for every pixel."""
    return [
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        lambda: Down(4),
        lambda: Deep(nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()),
        lambda: Deep(nn.Dropout(0.2), nn.BatchNorm2d(8)),
        lambda: Up(4),
        lambda: nn.Sequential(nn.Conv2d(8, 6, 3, padding=1), nn.ReLU()),
        lambda: nn.Sequential(nn.Dropout2d(0.2), nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")),
        lambda: nn.Conv2d(6, 5, 1),
    ]


def mlp() -> list[Any]:
    """Eight layers on vectors, with dropout."""
    return [lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2)) for _ in range(7)] + [
        lambda: nn.Linear(6, 5)
    ]


class Hooked(nn.Module):
    """A layer whose weights have hooks that are not linear, one of them used on pixels and on their mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(channels, channels, 3, padding=1), nn.Linear(channels, channels)
        for p in self.parameters():
            p.register_hook(lambda grad: grad.clamp(-0.01, 0.01) / (1 + grad.norm()))

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(self.conv(x).movedim(1, -1)).movedim(-1, 1)
        gate = torch.sigmoid(self.mix(y.mean((2, 3))))
        if gate.requires_grad:
            gate.register_hook(lambda grad: grad * grad.abs().sqrt())
        return torch.tanh(y) * gate[:, :, None, None]


def hooked() -> list[Any]:
    """Eight layers with hooks."""
    return [
        lambda: nn.Conv2d(3, 4, 3, 2, 1),
        *[lambda: Hooked(4)] * 5,
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(4, 5),
    ]


class Asking(nn.Module):
    """A layer that asks for gradients of its own weights in its forward; one is used on pixels and on their mean."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.mix = nn.Conv2d(channels, channels, 3, padding=1), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mix(self.conv(x).movedim(1, -1)).movedim(-1, 1)
        gate = torch.sigmoid(self.mix(y.mean((2, 3))))[:, :, None, None]
        if not torch.is_grad_enabled():
            return y * gate
        loss, weights = gate.square().mean() + y.square().mean(), (self.mix.weight, self.conv.weight)
        kept = torch.autograd.grad(loss, weights[0], retain_graph=True)[0].norm().detach()
        through = torch.autograd.grad(loss, weights[1], create_graph=True, allow_unused=True)[0].norm()
        return torch.tanh(y * (1 + kept + through)) * gate


def asking() -> list[Any]:
    """Eight layers that ask for gradients."""
    return [
        lambda: nn.Conv2d(3, 4, 3, 2, 1),
        *[lambda: Asking(4)] * 5,
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(4, 5),
    ]


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).sum((0, 2, 3), keepdim=True)


class Written(nn.Module):
    """A layer whose operator is a function of its own, with a parameter; another parameter is not used at all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.unused = nn.Conv2d(channels, channels, 3, padding=1), nn.Linear(channels, channels)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, channels).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(_Scaled.apply(self.conv(x), self.scale))


def written() -> list[Any]:
    """Eight layers with functions of their own."""
    return [
        lambda: nn.Conv2d(3, 4, 3, 2, 1),
        *[lambda: Written(4)] * 5,
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(4, 5),
    ]


class Last(nn.Module):
    """Draws random numbers for what lies in memory in another order, and hands that on."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.2, self.training).contiguous(memory_format=torch.channels_last)


def noisy() -> list[Any]:
    """Eight layers with dropout of images in channels_last and of turned ones."""
    return [
        lambda: nn.Conv2d(3, 4, 3, 2, 1),
        lambda: Last(),
        lambda: nn.Sequential(Last(), nn.Conv2d(4, 4, 3, padding=1)),
        lambda: nn.Sequential(nn.Dropout(0.2), nn.Tanh(), Turned()),
        lambda: nn.Sequential(nn.Dropout(0.2), Turned()),
        lambda: nn.Sequential(nn.Dropout(0.2), nn.BatchNorm2d(4)),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(4, 5),
    ]


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x.transpose(2, 3).contiguous()).transpose(2, 3)


class Forks(nn.Module):
    """Goes on from an image without a gradient for it, in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach()
        return self.one(x), self.other(x)


class Joins(nn.Module):
    """Wants no gradient of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            second = self.conv(pair[1])
        return torch.tanh(self.conv(pair[0])) + second


def detached() -> list[Any]:
    """Eight layers, of which the first have no gradients at all, and others only some."""
    return [
        lambda: nn.Conv2d(3, 4, 3, padding=1),
        lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Tanh()),
        lambda: Forks(),
        lambda: Mix(4),
        lambda: Joins(),
        lambda: nn.Conv2d(4, 4, 3, padding=1),
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(4, 5),
    ]


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "detached": (detached, (3, 9, 10)),
    "noisy": (noisy, (3, 9, 10)),
    "cnn": (cnn, (3, 21, 20)),
    "pairs": (pairs, (3, 17, 16)),
    "dense": (dense, (3, 13, 14)),
    "mlp": (mlp, (6,)),
    "hooked": (hooked, (3, 9, 10)),
    "asking": (asking, (3, 9, 10)),
    "written": (written, (3, 9, 10)),
}


def batch(model: str, samples: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + samples)
    shape = (samples, *MODELS[model][1])
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    places = (samples, *shape[2:]) if model == "dense" else (samples,)
    return x, torch.randint(0, 5, places, generator=generator)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@lru_cache(maxsize=256)
def reference(model: str, replicas: int, microbatches: int, sizes: tuple[int, ...]) -> verify.Reference:
    """The same steps on one device; equal for all plans with as many replicas and microbatches."""
    return verify.reference(
        MODELS[model][0](),
        Plan.from_flags(split_size=1, parts=microbatches, replicas=replicas, layers=8),
        [batch(model, samples, step) for step, samples in enumerate(sizes)],
        loss=F.cross_entropy,
        optimizer=optimizer,
        seed=3,
        dtype=torch.float64,
    )


@cache
def world() -> World:
    """One world for all plans of this process, so that groups are made once."""
    return World.join(deadline=300)


def compare(model: str, text: str, sizes: list[int], **options: Any) -> dict[str, float]:
    """Run the plan here and report the largest relative differences from one device."""
    plan = Plan.from_toml(text)
    options.setdefault("world", world())
    engine = Engine(
        plan,
        MODELS[model][0](),
        loss=F.cross_entropy,
        optimizer=optimizer,
        seed=3,
        dtype=torch.float64,
        **options,
    )
    known = reference(model, plan.replicas, plan.microbatches, tuple(sizes))
    losses, gradients, parameters, buffers = known.losses, known.gradients, known.parameters, known.buffers
    worst = {"loss": 0.0, "gradient": 0.0, "parameter": 0.0, "buffer": 0.0}

    def note(what: str, ours: Tensor, theirs: Tensor) -> None:
        scale = max(1e-3, theirs.abs().max().item()) if theirs.numel() else 1.0
        worst[what] = max(worst[what], (ours - theirs).abs().max().item() / scale if theirs.numel() else 0.0)

    for step, samples in enumerate(sizes):
        result = engine.step(*batch(model, samples, step))
        note("loss", torch.tensor(result.loss), torch.tensor(losses[step]))
        for name, parameter in engine.named_parameters():
            assert (parameter.grad is None) == (name not in gradients[step]), name
            if parameter.grad is not None:
                note("gradient", parameter.grad, gradients[step][name])
    for name, parameter in engine.named_parameters():
        note("parameter", parameter.detach(), parameters[name])
    for name, buffer in engine.named_buffers():
        note("buffer", buffer.double(), buffers[name].double())
    return worst


def compare_all(cases: list[tuple[str, str, list[int]]]) -> list[dict[str, float] | str]:
    """`compare` for one plan after the other, up to the first that fails, whose traceback is the last answer."""
    found: list[dict[str, float] | str] = []
    for case in cases:
        try:
            found.append(compare(*case))
        except Exception:
            found.append(traceback.format_exc())
            break
    return found


def gradients_of(plans: list[str], samples: int) -> list[tuple[float, dict[str, Tensor]]]:
    """What one step of each plan gives on this rank, with a model that treats every sample by itself."""
    found = []
    for text in plans:
        layers = [lambda: nn.Linear(6, 6), nn.Tanh, lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 5)]
        engine = Engine(Plan.from_toml(text), layers, loss=F.cross_entropy, world=world(), dtype=torch.float64)
        result = engine.step(*batch("mlp", samples, 0))
        found.append((result.loss, {name: p.grad.clone() for name, p in engine.named_parameters()}))  # type: ignore[union-attr]
    return found


def one_step(model: str, text: str, samples: int, autocast: bool = False) -> tuple[float, int]:
    """Loss and samples of a step in float32, or under autocast to bfloat16."""
    dtype = torch.bfloat16 if autocast else None
    engine = Engine(Plan.from_toml(text), MODELS[model][0](), loss=F.cross_entropy, world=world(), autocast=dtype)
    x, y = batch(model, samples, 0)
    result = engine.step(x.float(), y)
    return result.loss, result.samples


def exchanges_of(model: str, texts: list[str]) -> list[int]:
    """How often the tiles of this rank exchange pixels in the second step of each plan."""
    found = []
    for text in texts:
        plan = Plan.from_toml(text)
        engine = Engine(plan, MODELS[model][0](), loss=F.cross_entropy, world=world(), dtype=torch.float64)
        engine.step(*batch(model, 4, 0))  # the first one also records what a group reaches for
        counter = world().exchanger(tuple(range(plan.world_size))).counter
        before = counter.exchanges
        engine.step(*batch(model, 4, 1))
        found.append(counter.exchanges - before)
    return found
