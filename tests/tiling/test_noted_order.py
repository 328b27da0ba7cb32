"""Random numbers after what leaves ranks one pixel or none: their strides do not say how the whole lies in memory."""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import TileSpec, TileTensor
from halocline.tiling.plain import cut
from halocline.tiling.strides import strides_in
from harness.ranks import assert_close, image, in_turns


class Case(NamedTuple):
    function: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    cuts: list[list[int]]
    order: tuple[int, ...] | None = None
    """How the dims of the image lie in memory, the outermost first."""


def axial_attention(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    attention = nn.MultiheadAttention(4, 2).double()
    y = x.movedim(1, -1)
    rows = y.reshape(-1, y.shape[-2], 4).transpose(0, 1)
    rows = attention(rows, rows, rows, need_weights=False)[0].transpose(0, 1)
    return rows.reshape(y.shape).movedim(-1, 1)


def turned(x: Tensor) -> Tensor:
    """Through a noise that lies in another order, and back."""
    return torch.randn_like(x.permute(0, 1, 2, 4, 3)).permute(0, 1, 2, 4, 3) + x


CASES = {
    "axial attention of one sample": Case(axial_attention, (1, 4, 4, 2), [[0, 2, 4], [0, 1, 2]]),
    "axial attention, tiles of one pixel": Case(axial_attention, (1, 4, 2, 2), [[0, 1, 2], [0, 1, 2]]),
    "pixels of a slice in one dim": Case(
        lambda x: x[:, :, ::2].flatten(-2), (2, 4, 4, 4), [[0, 4], [0, 3, 4]], (0, 2, 3, 1)
    ),
    "a slice of lines": Case(lambda x: x[:, :, ::2], (2, 1, 5, 2), [[0, 5], [0, 0, 1, 2]], (0, 3, 2, 1)),
    "sorted with fewer channels than ranks": Case(
        lambda x: x.sort(2)[0], (2, 4, 6, 4), [[0, 2, 4, 6], [0, 1, 4]], (0, 2, 3, 1)
    ),
    "one sample, pooled as a sequence": Case(
        lambda x: F.adaptive_avg_pool1d(F.linear(x.transpose(1, 2), image((2, 4))).transpose(1, 2), 11),
        (1, 4, 10),
        [[0, 1, 7, 10]],
    ),
    "pooled after tiles without pixels": Case(
        lambda x: F.avg_pool2d(F.conv2d(x, image((2, 1, 1, 1)), stride=2, groups=2), 2, 2, 1),
        (2, 2, 6, 1),
        [[0, 0, 3, 6], [0, 0, 1]],
        (0, 3, 2, 1),
    ),
    "repeated by nothing": Case(lambda x: F.pad(x, (0, 0), mode="replicate"), (2, 1, 11), [[0, 7, 8, 11]], (1, 2, 0)),
    "a volume that was turned": Case(turned, (1, 3, 2, 2, 1), [[0, 2], [0, 1, 2], [0, 0, 1]]),
    "joined volumes of one slice": Case(
        lambda x: torch.cat([x, x * 2], 1), (1, 3, 1, 4, 2), [[0, 1], [0, 0, 4], [0, 1, 2]], (0, 2, 3, 4, 1)
    ),
}


def on_tiles(function: Callable[[Tensor], Any], x: Tensor, cuts: list[list[int]]) -> list[Any]:
    def on_tile(exchanger: tiling.Exchanger) -> Any:
        spec = TileSpec(tuple(map(tuple, cuts)), exchanger, tuple(range(2 - x.ndim, 0)))
        return function(TileTensor.wrap(cut(x, spec), spec))

    return in_turns(prod(len(c) - 1 for c in cuts), 7, on_tile)


@pytest.mark.parametrize("name", CASES)
def test_noise_afterwards(name: str) -> None:
    function, shape, cuts, order = CASES[name]
    strides = strides_in(order or tuple(range(len(shape))), shape)
    x = torch.empty_strided(shape, strides, dtype=torch.float64).copy_(image(shape))

    def noisy(x: Tensor) -> Tensor:
        y = function(x)
        y = y + torch.randn_like(y)
        out = F.dropout(y.transpose(-1, -2), 0.4)
        return out.full() if isinstance(out, TileTensor) else out

    torch.manual_seed(7)
    expected = noisy(x)
    for rank, found in enumerate(on_tiles(noisy, x, cuts)):
        assert_close(found, expected, 1e-10, f"rank {rank}")


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_what_is_repeated_is_not_contiguous(memory_format: torch.memory_format) -> None:
    x = image((1, 4, 2, 2)).contiguous(memory_format=memory_format)

    def answers(x: Tensor) -> list[bool]:
        views = (x.expand(3, 4, 2, 2), x[:, :1].expand(1, 4, 2, 2), x[:, :2], x.permute(0, 2, 3, 1))
        return [v.is_contiguous(memory_format=f) for v in views for f in (torch.contiguous_format, memory_format)]

    expected = answers(x)
    for found in on_tiles(answers, x, [[0, 1, 2], [0, 1, 2]]):
        assert found == expected


def test_trained_after_inference_mode() -> None:
    """Small tables are made once and kept, also where the first to ask for them wants no gradient."""
    x = image((1, 2, 5, 7))

    def resized(x: Tensor) -> Tensor:
        out = F.interpolate(F.adaptive_avg_pool2d(x, (3, 4)), size=(7, 9), mode="bilinear")
        return out.full() if isinstance(out, TileTensor) else out

    def trained(x: Tensor) -> Tensor:
        with torch.inference_mode():
            resized(x)
        leaf = x.local.requires_grad_() if isinstance(x, TileTensor) else x.requires_grad_()
        (resized(x) ** 2).sum().backward()
        assert leaf.grad is not None
        return TileTensor.wrap(leaf.grad, x.spec).full() if isinstance(x, TileTensor) else leaf.grad

    expected = trained(x.clone())
    for rank, found in enumerate(on_tiles(trained, x, [[0, 2, 5], [0, 1, 7]])):
        assert_close(found, expected, 1e-10, f"rank {rank}")
