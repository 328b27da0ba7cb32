"""Max pooling that returns indices, and max_unpool, as SegNet and QuickNAT use them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from harness.ranks import assert_exact, image, on_threads

POOL: tuple[Any, ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
ADAPTIVE: tuple[Any, ...] = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
UNPOOL: tuple[Any, ...] = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)
CUTS: dict[int, Any] = {1: ((0, 3, 4, 13),), 2: ((0, 5, 11), (0, 2, 8)), 3: ((0, 3, 6), (0, 5), (0, 4, 7))}
SHAPE: dict[int, Any] = {1: (2, 3, 13), 2: (2, 3, 11, 8), 3: (1, 2, 6, 5, 7)}


@pytest.mark.parametrize("seed", range(12))
def test_indices_are_those_of_one_device(seed: int) -> None:
    chance = random.Random(seed)
    dims = chance.choice([1, 2, 2, 3])
    kernel = chance.choice([2, 3])
    settings = {
        "kernel_size": kernel,
        "stride": chance.choice([None, 1, 2, 3]),
        "padding": chance.choice([0, kernel // 2]),
        "dilation": chance.choice([1, 1, 2]),
        "ceil_mode": chance.choice([False, True]),
    }
    margin = chance.choice([0, 0, 2])

    def pool(x: Tensor) -> Any:
        return POOL[dims - 1](x, return_indices=True, **settings)

    assert_exact(pool, SHAPE[dims], cuts=CUTS[dims], margin=margin, tiled=True)
    # Many equal pixels: the first one in reading order is chosen; and nothing but -inf, also beside the padding.
    assert_exact(lambda x: pool(x.sign())[1], SHAPE[dims], cuts=CUTS[dims], gradients=False)
    assert_exact(lambda x: pool(x.detach() * 0 - torch.inf), SHAPE[dims], cuts=CUTS[dims], gradients=False)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_indices_are_those_of_one_device(dims: int) -> None:
    for size in (1, 3, 4):
        assert_exact(lambda x, n=size: ADAPTIVE[dims - 1](x, n, return_indices=True), SHAPE[dims], cuts=CUTS[dims])
    assert_exact(
        lambda x: ADAPTIVE[dims - 1](x.sign(), 3, return_indices=True)[1], SHAPE[dims], cuts=CUTS[dims], gradients=False
    )


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_unpooling_equals_one_device(dims: int, margin: int) -> None:
    def there_and_back(x: Tensor) -> list[Tensor]:
        y, where = POOL[dims - 1](x, 2, return_indices=True)
        z, elsewhere = POOL[dims - 1](x, 3, 2, 1, return_indices=True)
        return [
            UNPOOL[dims - 1](y, where, 2, output_size=x.size()),
            UNPOOL[dims - 1](z, elsewhere, 3, 2, 1, x.size()),
        ]

    assert_exact(there_and_back, SHAPE[dims], cuts=CUTS[dims], margin=margin, tiled=True)


def test_indices_that_point_far_away_and_plain_ones() -> None:
    numbers = torch.arange(12).flip(0).view(1, 1, 3, 4).expand(2, 3, 3, 4) * 4

    def unpool(x: Tensor, y: Tensor) -> list[Tensor]:
        far = numbers if not isinstance(x, tiling.TileTensor) else torch.zeros_like(x).long() + numbers
        return [F.max_unpool2d(x, far, 2), F.max_unpool2d(y, numbers, 2), F.max_unpool2d(x, far, 2, output_size=(7, 8))]

    assert_exact(unpool, [(2, 3, 3, 4), (2, 3, 3, 4)], grid=(2, 2), tiled=True)


def test_nothing_moves_when_windows_do_not_overlap() -> None:
    def unpool(exchanger: tiling.ThreadExchanger) -> None:
        x = tiling.tile(image((1, 2, 8, 12)), (2, 2), exchanger)
        y, where = F.max_pool2d(x, 2, return_indices=True)
        exchanger.counter.reset()
        F.max_unpool2d(y, where, 2)
        assert (exchanger.counter.exchanges, exchanger.counter.reductions) == (0, 1)

    on_threads(4, unpool)


def test_lanes_of_tiles() -> None:
    def there_and_back(x: Tensor) -> list[Tensor]:
        y, where = F.max_pool2d(x, 2, return_indices=True)
        z, first = F.adaptive_max_pool2d(x, 3, return_indices=True)
        return [F.max_unpool2d(y, where, 2, output_size=x.size()[2:]), where, z, first]

    assert_exact(there_and_back, (2, 2, 7, 6), grid=(2, 1, 2), dims=(-4, -2, -1))
    assert_exact(there_and_back, (2, 2, 7, 6), grid=(2,), dims=(-4,))


class SegNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((3, 4), (4, 6))]
        )
        self.up = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in ((6, 4), (4, 3))]
        )
        self.pool, self.unpool = nn.MaxPool2d(2, 2, return_indices=True), nn.MaxUnpool2d(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            size = x.size()
            x, where = self.pool(x)
            kept.append((where, size))
        for block in self.up:
            where, size = kept.pop()
            x = block(self.unpool(x, where, output_size=size))
        return x


@pytest.mark.parametrize("kwargs", [{"grid": (1, 3)}, {"cuts": ((0, 7, 17), (0, 6, 13))}])
def test_segnet_equals_one_device(kwargs: Any) -> None:
    torch.manual_seed(0)
    assert_exact(SegNet(), (2, 3, 17, 13), tolerance=1e-11, tiled=True, **kwargs)
