"""What runs on each rank of the exactness tests: a plan's steps, compared with the same steps on one device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.boundary import sample_cuts
from halocline.runtime.layers import one_device


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


def mlp() -> list[Any]:
    """Eight layers on vectors, with dropout."""
    return [lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.2)) for _ in range(7)] + [
        lambda: nn.Linear(6, 5)
    ]


MODELS = {"cnn": (cnn, (3, 21, 18)), "pairs": (pairs, (3, 17, 16)), "mlp": (mlp, (6,))}


def batch(model: str, samples: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + samples)
    x = torch.randn((samples, *MODELS[model][1]), generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 5, (samples,), generator=generator)


def reference(model: str, plan: Plan, sizes: list[int]) -> tuple[nn.Sequential, list[float], list[dict[str, Tensor]]]:
    """The same steps on one device, the microbatches of all replicas one after the other."""
    from halocline.runtime.layers import derived_seed

    net = one_device(MODELS[model][0](), seed=3).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses, gradients = [], []
    for step, samples in enumerate(sizes):
        x, y = batch(model, samples, step)
        optimizer.zero_grad()
        total, number = 0.0, 0
        for begin, end in sample_cuts(samples, plan.replicas):
            for a, b in sample_cuts(end - begin, plan.microbatches):
                value: Any = x[begin + a : begin + b]
                for name, layer in net.named_children():
                    torch.manual_seed(derived_seed(3, step, name, number))
                    value = layer(value)
                loss = F.cross_entropy(value, y[begin + a : begin + b])
                (loss * ((b - a) / samples)).backward()
                total += loss.item() * (b - a) / samples
                number += 1
        gradients.append({n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None})
        optimizer.step()
        losses.append(total)
    return net, losses, gradients


def compare(model: str, text: str, sizes: list[int], **options: Any) -> dict[str, float]:
    """Run the plan here and report the largest relative differences from one device."""
    plan = Plan.from_toml(text)
    from halocline.runtime import World

    options.setdefault("world", World.join(deadline=15))
    engine = Engine(
        plan,
        MODELS[model][0](),
        loss=F.cross_entropy,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        seed=3,
        dtype=torch.float64,
        **options,
    )
    net, losses, gradients = reference(model, plan, sizes)
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
    parameters, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    for name, parameter in engine.named_parameters():
        note("parameter", parameter.detach(), parameters[name].detach())
    for name, buffer in engine.named_buffers():
        note("buffer", buffer.double(), buffers[name].double())
    return worst
