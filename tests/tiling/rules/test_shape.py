"""Permuting, reshaping, squeezing, repeating: tiles while the image's dims stay dims, a gathered tensor otherwise."""

from collections.abc import Callable
from functools import reduce
from math import prod
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication, TileTensor, UntiledOperation
from harness.ranks import assert_exact, image, on_threads

SHAPE = (2, 4, 7, 9)
CASES = {
    "stays tiled": [
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: torch.permute(x, (0, 3, 1, 2)),
        lambda x: x.transpose(2, 3),
        lambda x: F.conv2d(x.transpose(-1, -2), image((2, 4, 3, 2))),
        lambda x: x.swapaxes(0, 3),
        lambda x: x.mT,
        lambda x: torch.movedim(x, 1, -1),
        lambda x: torch.movedim(x, (2, 3), (0, 1)),
        lambda x: x[0, 0].t(),
        lambda x: x.view(2, 2, 2, 7, 9).transpose(1, 2).reshape(2, 4, 7, 9),
        lambda x: x.flatten(0, 1),
        lambda x: x.reshape(8, 1, 7, 1, 9),
        lambda x: x.view(-1, 7, 9),
        lambda x: x.unflatten(1, (2, -1)),
        lambda x: x.view_as(x),
        lambda x: x.unsqueeze(0),
        lambda x: x.unsqueeze(-1),
        lambda x: x.unsqueeze(3),
        lambda x: x[:1].squeeze(0),
        lambda x: x[:1].squeeze(),
        lambda x: x.squeeze((0, 1)),
        lambda x: x[:1].expand(3, -1, -1, 9),
        lambda x: x[:1].expand_as(x),
        lambda x: torch.broadcast_to(x, (3, *x.shape)),
        lambda x: x.repeat(2, 1, 1, 1),
        lambda x: torch.tile(x, (2, 1, 1)),
        lambda x: x.repeat_interleave(2, 1),
        lambda x: torch.atleast_2d(x),
    ],
    "is gathered": [
        lambda x: x.flatten(2),
        lambda x: x.flatten(1),
        lambda x: x.view(2, 4, -1).transpose(1, 2),
        lambda x: x.reshape(2, 4, 7, 3, 3),
        lambda x: x.ravel(),
        lambda x: x[:, :, :1].squeeze(),
        lambda x: x[..., :1].expand(-1, -1, -1, 5),
        lambda x: x.repeat(1, 1, 2, 1),
        lambda x: x.repeat_interleave(2, 2),
        lambda x: torch.zeros(4, 1, 1, dtype=x.dtype).expand_as(x) + x.flatten(2).view_as(x),
    ],
}


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize(("kind", "number"), [(k, i) for k, v in CASES.items() for i in range(len(v))])
def test_every_change_of_shape(kind: str, number: int, margin: int) -> None:
    tiled = kind == "stays tiled"
    assert_exact(CASES[kind][number], SHAPE, grid=(2, 2), margin=margin, tiled=tiled)
    assert_exact(CASES[kind][number], SHAPE, cuts=[[0, 1, 2, 7], [0, 9]], tiled=tiled)


def test_tiles_without_pixels_keep_their_shapes() -> None:
    def run(x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 4).permute(0, 2, 3, 1).reshape(2, 1, 2, 2, 2)
        return x.flatten(3).transpose(1, 2).unsqueeze(0).permute(0, 1, 3, 4, 2)

    assert_exact(run, (2, 4, 4, 8), grid=(1, 4))


def test_channels_first_and_last_as_in_a_convnext_block() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 7, padding=3, groups=4)
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
            self.scale = nn.Parameter(torch.full((4,), 0.5))

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x).permute(0, 2, 3, 1)
            return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)

    assert_exact(Block(), SHAPE, grid=(2, 2), tiled=True)


def test_the_swap_of_height_and_width_needs_no_message() -> None:
    exchanger = NoCommunication(1, 4)
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), exchanger).transpose(2, 3)
    assert isinstance(x, TileTensor) and x.spec.dims == (-2, -1) and x.spec.ranks == (0, 2, 1, 3)
    assert x.shape == (2, 4, 9, 7) and x.spec.box == ((4, 9), (0, 3)) and x.local.shape == (2, 4, 5, 3)


def test_writing_through_a_view_reaches_the_tile() -> None:
    def run(x: Tensor) -> Tensor:
        x.view(2, 2, 2, 7, 9)[:, 0].mul_(3.0)
        x.permute(0, 2, 3, 1)[..., 1].add_(1.0)
        return x

    assert_exact(run, SHAPE, grid=(2, 2))


def some_chain(chance: Random, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Permutations, merged, split, dropped and added dims, as they come."""
    steps: list[Callable[[Tensor], Tensor]] = []
    for _ in range(chance.randint(2, 6)):
        ndim = len(shape)
        first = chance.randrange(ndim)
        last = chance.randint(first, min(first + 1, ndim - 1))
        match chance.randrange(5):
            case 0:
                order = chance.sample(range(ndim), ndim)
                steps.append(lambda x, order=order: x.permute(order))
                shape = tuple(shape[d] for d in order)
                continue
            case 1:
                shape = (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :])
            case 2:
                factor = chance.choice([n for n in range(1, shape[first] + 1) if shape[first] % n == 0])
                shape = (*shape[:first], factor, shape[first] // factor, *shape[first + 1 :])
            case 3:
                shape = (*shape[:first], 1, *shape[first:])
            case _:
                shape = tuple(chance.sample(shape, ndim))  # other sizes for the same values
        steps.append(lambda x, shape=shape: x.reshape(shape))
    return lambda x: reduce(lambda y, step: step(y), steps, x)


@pytest.mark.parametrize("seed", range(40))
def test_any_chain_of_shapes(seed: int) -> None:
    """Equal sizes, one sample and one pixel leave it open which dim is which; no choice may give other values."""
    chance = Random(seed)
    shape = (chance.choice([1, 1, 2]), chance.choice([1, 2, 4]), chance.choice([1, 2, 4]), chance.choice([1, 4, 6]))
    cuts = [sorted([0, chance.randint(0, n), n]) for n in shape[2:]]
    for _ in range(3):
        chain = some_chain(chance, shape)
        assert_exact(chain, shape, cuts=cuts, dims=(-2, -1), margin=chance.choice([0, 1]))


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    for call in (lambda: x.view(torch.int32), lambda: x.T, lambda: x.resize_(4), lambda: torch.atleast_3d(x[0, 0])):
        with pytest.raises(UntiledOperation):
            call()
    with pytest.raises(ValueError, match=r"504 values cannot take the shape \(5, -1\)"):
        x.view(5, -1)


CUTS = [[0, 3, 7], [0, 2, 9]]


def as_kornia_makes_one_hot(x: Tensor) -> Tensor:
    labels = (x[:, 0] > 0).long()
    hot = torch.zeros(2, 2, 7, 9, dtype=x.dtype).scatter_(1, labels.unsqueeze_(1), 1.0)
    assert labels.shape == (2, 1, 7, 9)
    return (x[:, :2] * hot).sum() + labels.squeeze_(1).sum()


def all_of_them(x: Tensor) -> Tensor:
    y = x * 2
    y.unsqueeze_(1).transpose_(-1, 2).swapaxes_(0, 2)
    y = y * y
    y.squeeze_().swapdims_(0, -2).unsqueeze_(dim=-1).squeeze_((0, -1))
    return y + 1


@pytest.mark.parametrize("function", [as_kornia_makes_one_hot, all_of_them])
def test_equals_one_device(function: object) -> None:
    assert_exact(function, (2, 3, 7, 9), cuts=CUTS)  # type: ignore[arg-type]
    assert_exact(function, (2, 3, 7, 9), cuts=CUTS, margin=1)  # type: ignore[arg-type]


def test_the_tile_itself_changes_and_views_of_it_do_not() -> None:
    def changed(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(image((2, 3, 7, 9)), group=exchanger, cuts=CUTS)
        view = x[:]
        assert x.unsqueeze_(0) is x and x.shape == (1, 2, 3, 7, 9) and view.shape == (2, 3, 7, 9)
        x.zero_()
        assert not view.full().any()

    on_threads(4, changed)


def test_what_is_refused_in_place() -> None:
    pixels = tiling.tile(torch.zeros(2, 3, 1, 8), (1, 2), NoCommunication(0, 2))
    for call in (lambda: pixels.squeeze_(), lambda: pixels.squeeze_(2), lambda: pixels.squeeze_((0, -2))):
        with pytest.raises(UntiledOperation, match="squeeze"):
            call()
    assert pixels.squeeze_(0).shape == (2, 3, 1, 8)
    leaf = tiling.tile(torch.zeros(2, 3, 4, 8), (1, 2), NoCommunication(0, 2)).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.unsqueeze_(0)
