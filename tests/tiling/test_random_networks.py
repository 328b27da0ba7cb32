"""Random networks of a few operators that end in norms and random numbers, on uneven tiles down to one pixel and none.

Wherever a result lies in memory otherwise than on one device, a later draw differs: torch fills memory in order.
Outputs, gradients and the generator are held to one device, with norms written out, as torch's kernels misread some
strides.
"""

import copy
import random
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.runtime.proof.norms import WrittenNorms
from halocline.tiling import TileSpec, TileTensor, UntiledOperation
from halocline.tiling.plain import cut
from halocline.tiling.strides import CHANNELS_LAST
from harness.ranks import assert_close, image, in_turns, weighted_loss, whole

pytestmark = pytest.mark.filterwarnings("ignore")
Operator = Callable[[Tensor], Tensor]


def shuffled(r: random.Random, ndim: int) -> list[int]:
    """The dims in some order, pixels' dims as they follow: of dims of one pixel each torch does not keep another."""
    order = r.sample(range(ndim), ndim)
    pixels = iter(range(2, ndim))
    return [next(pixels) if d > 1 else d for d in order]


def operators(r: random.Random, x: Tensor) -> dict[str, Callable[[], Any]]:
    """By name, what makes an operator for such a tensor."""
    dims, channels, size = x.ndim - 2, x.shape[1], tuple(x.shape[2:])
    kernel, out, dim = r.choice([1, 2, 3]), r.choice([1, 2, 4]), r.randrange(x.ndim)
    order = shuffled(r, x.ndim)
    back = [order.index(d) for d in range(x.ndim)]
    at = dims - 1
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[at]
    batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[at]
    sample = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[at]
    pool = r.choice([(F.max_pool1d, F.max_pool2d, F.max_pool3d), (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)])[at]
    groups = r.choice([g for g in range(1, channels + 1) if channels % g == 0])
    wide, stride = r.choice([1, 2, x.ndim - 1]), r.choice([1, 2])
    return {
        "conv": lambda: conv(channels, out, kernel, stride, kernel // 2),
        "pool": lambda: lambda x: pool(x, 2, stride),
        "resize": lambda: lambda x: F.interpolate(x, size=tuple(n + 1 for n in size)),
        "pad": lambda: lambda x: F.pad(x, (1, 0)),
        "act": lambda: r.choice([F.gelu, torch.sigmoid, lambda x: x * 2, lambda x: x * x, torch.clone]),
        "gate": lambda: lambda x: x.mean(dim, keepdim=True) * x,
        "plain": lambda: lambda x: x + image(tuple(x.shape), 5),
        "join": lambda: lambda x: torch.cat([x, x.tanh()], 1),
        "order": lambda: lambda x: (x.permute(order) * 1.5).permute(back),
        "copy": lambda: lambda x: x.permute(order).clone(memory_format=torch.contiguous_format).permute(back),
        "roll": lambda: lambda x: x.roll(1, dim),
        "flip": lambda: lambda x: x.flip(dim),
        "repeat": lambda: lambda x: x.narrow(dim, 0, 1).expand(x.shape),
        "mix": lambda: lambda x: torch.einsum("bc...,oc->bo...", x, image((out, channels))),
        "tokens": lambda: lambda x: torch.softmax(x.movedim(1, -1), -1).movedim(-1, 1),
        "batch norm": lambda: batch(channels, affine=r.random() < 0.5, momentum=r.choice([0.1, None])),
        "instance norm": lambda: sample(channels, affine=True),
        "group norm": lambda: nn.GroupNorm(groups, channels),
        "layer norm": lambda: nn.LayerNorm(tuple(x.shape[wide:])),
        "own norm": lambda: lambda x: (x - x.mean(dim, True)) / (x.var(dim, correction=0, keepdim=True) + 0.1).sqrt(),
    }


def draws(r: random.Random, x: Tensor) -> Operator:
    order, dim = shuffled(r, x.ndim), r.randrange(x.ndim)
    back = [order.index(d) for d in range(x.ndim)]
    channels = {3: F.dropout1d, 4: F.dropout2d, 5: F.dropout3d}[x.ndim]
    return r.choice(
        [
            lambda x: F.dropout(x, 0.3),
            lambda x: x + torch.randn_like(x),
            lambda x: x * torch.rand_like(x.permute(order)).permute(back),
            lambda x: x + torch.empty_like(x).uniform_(),
            lambda x: x + torch.randn(x.shape, dtype=x.dtype),
            lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
            lambda x: F.feature_alpha_dropout(channels(x, 0.3), 0.2, True),
            lambda x: x + torch.randn_like(x.narrow(dim, 0, 1)),
            lambda x: F.gumbel_softmax(x, dim=1),
        ]
    )


class Network(nn.Module):
    """Random operators, each fit for what the one before makes; norms and random numbers last."""

    def __init__(self, r: random.Random, x: Tensor) -> None:
        super().__init__()
        self.names: list[str] = []
        self.operators: list[Any] = []
        self.layers = nn.ModuleList()
        count = r.randint(3, 6)
        for i in range(30):
            made = operators(r, x)
            last = len(self.names) >= count - 2
            name = r.choice([n for n in made if not last or "norm" in n])
            torch.manual_seed(i)
            operator = made[name]() if len(self.names) % 2 == 0 or not last else draws(r, x)
            operator = operator.double() if isinstance(operator, nn.Module) else operator
            try:
                with torch.no_grad(), WrittenNorms():
                    y = copy.deepcopy(operator)(x)
            except (RuntimeError, ValueError):  # too few pixels for it
                continue
            if not 0 < y.numel() < 3000:
                continue
            x = y
            self.names.append(name)
            self.operators.append(operator)
            if isinstance(operator, nn.Module):
                self.layers.append(operator)
            if len(self.names) == count:
                return

    def forward(self, x: Tensor) -> Tensor:
        for operator in self.operators:
            x = operator(x)
        return x


def case(seed: int) -> tuple[Network, Tensor, list[list[int]]]:
    r = random.Random(seed)
    dims = r.choice([1, 2, 2, 2, 3])
    size = [r.choice([2, 2, 3, 5]) if dims < 3 else r.choice([2, 3]) for _ in range(dims)]
    x = image((r.choice([1, 2]), r.choice([1, 2, 4]), *size), seed)
    if r.random() < 0.5 and x.ndim in CHANNELS_LAST:
        x = x.contiguous(memory_format=CHANNELS_LAST[x.ndim])
    cuts = [[0, *sorted(r.randint(0, n) for _ in range(r.choice([0, 1]))), n] for n in size]
    if max(size) == 2 and r.random() < 0.7:
        return Network(r, x), x, [[0, 1, 2] for _ in size]
    cuts[-1] = [0, *sorted(r.randint(0, size[-1]) for _ in range(r.choice([1, 2]))), size[-1]]
    return Network(r, x), x, cuts


def step(net: Network, x: Tensor, leaf: Tensor) -> list[Tensor | None]:
    with WrittenNorms():
        outputs = whole(net(x))
        loss = weighted_loss(outputs)
        if loss.requires_grad:
            loss.backward()
    return [outputs[0].detach(), torch.rand(1), *net.buffers(), leaf.grad, *(p.grad for p in net.parameters())]


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_networks(first: int) -> None:
    refused = 0
    for seed in range(first, first + 20):
        net, x, cuts = case(seed)
        size = prod(len(c) - 1 for c in cuts)
        copies = [copy.deepcopy(net) for _ in range(size)]
        leaf = x.clone().requires_grad_()
        torch.manual_seed(seed)
        expected = step(net, leaf.clone(), leaf)

        def on_tile(exchanger: tiling.Exchanger, x: Tensor = x, cuts: Any = cuts, copies: Any = copies) -> Any:
            spec = TileSpec(tuple(map(tuple, cuts)), exchanger, tuple(range(2 - x.ndim, 0)))
            leaf = x.clone().requires_grad_()
            return step(copies[exchanger.rank], TileTensor.wrap(cut(leaf, spec), spec), leaf)

        try:
            results = in_turns(size, seed, on_tile)
        except UntiledOperation:
            refused += 1
            continue
        for rank, result in enumerate(results):
            for i, (actual, wanted) in enumerate(zip(result, expected)):
                assert_close(actual, wanted, 1e-10, f"{seed}: {net.names}, {tuple(x.shape)}, {cuts}, {rank}, {i}")
    assert refused < 4
