"""The models that plans are tried with: plain ones, pairs at boundaries, hooks, custom functions, detached parts."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
