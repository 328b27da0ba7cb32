"""Matrix products with tiles: local over channels, gathered over pixels; embeddings of maps of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image

SHAPE = (2, 4, 8, 9)


def last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


LOCAL = [
    lambda x: F.linear(last(x), image((5, 4)), image((5,))),
    lambda x: F.linear(last(x), image((4,))),
    lambda x: last(x) @ image((4, 5)),
    lambda x: torch.matmul(last(x), image((4,))),
    lambda x: torch.einsum("nchw,oc->nohw", x, image((5, 4))),
    lambda x: torch.einsum("nchw,nchw->nhw", x, F.max_pool2d(x, 3, 1, 1)),
    lambda x: torch.einsum("n c h w -> n w h c", x),
    lambda x: torch.einsum("bchw,bhwc->bhw", [x, last(x)]),
    lambda x: F.one_hot((x[:, 0].abs() * 2).long().clamp(max=5), 6).double() * x[:, 0].unsqueeze(-1),
]
GATHERED = [
    lambda x: F.linear(x, image((5, 9))),
    lambda x: x @ x.mT,
    lambda x: image((3, 8)) @ x,
    lambda x: torch.einsum("nchw,ndhw->ncd", x, x),
    lambda x: torch.einsum("nchw,hk->nckw", x, image((8, 3))),
    lambda x: torch.einsum("...hw->...wh", x),
    lambda x: torch.bmm(x[:, 0], x[:, 1].mT),
    lambda x: torch.mm(x[0, 0], image((9, 2))),
    lambda x: torch.tensordot(x, image((4, 3)), dims=([1], [0])),
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(LOCAL)))
def test_products_over_channels(number: int, margin: int) -> None:
    assert_exact(LOCAL[number], SHAPE, grid=(2, 2), margin=margin, tiled=True)
    assert_exact(LOCAL[number], SHAPE, cuts=[[0, 1, 2, 8], [0, 9]], tiled=True)


@pytest.mark.parametrize("number", range(len(GATHERED)))
def test_products_over_pixels(number: int) -> None:
    assert_exact(GATHERED[number], SHAPE, grid=(2, 2), margin=1, tiled=False)


def test_parameters_get_their_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head = nn.Linear(4, 4), nn.Linear(9, 2)
            self.table = nn.Embedding(6, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.mix(last(x)).permute(0, 3, 1, 2)
            return self.head(y), self.table((x[:, 0].detach().abs() * 2).long().clamp(max=5))

    assert_exact(Net(), SHAPE, grid=(2, 2))
    assert_exact(Net(), SHAPE, cuts=[[0, 1, 8], [0, 1, 9]])


def test_tiles_without_pixels() -> None:
    assert_exact(lambda x: F.linear(last(F.max_pool2d(x, 4)), image((5, 4))), (2, 4, 4, 8), grid=(1, 4))


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    for call in (
        lambda: F.one_hot(x.long()),
        lambda: F.embedding(torch.tensor([0]), x),
        lambda: F.embedding(x.long(), torch.zeros(3, 2), max_norm=1.0),
        lambda: F.bilinear(x, x, torch.zeros(2, 9, 9)),
    ):
        with pytest.raises(UntiledOperation):
            call()


GRIDS: tuple[Any, ...] = ({"grid": (1, 3)}, {"grid": (2, 2), "margin": 1}, {"cuts": ((0, 6, 9), (0, 2, 3, 7))})

CASES: dict[str, Callable[[Tensor], Any]] = {
    "triangles": lambda x: [torch.tril(x), x.triu(2), torch.tril(x, -3), x.permute(0, 2, 3, 1).tril(1)],
    "diagonals of pixels": lambda x: [
        torch.diagonal(x, 1, 2, 3),
        x.diagonal(dim1=-2, dim2=-1),
        torch.linalg.diagonal(x),
    ],
    "diagonals of channels": lambda x: [
        x.unflatten(1, (2, 3)).diagonal(dim1=1, dim2=2),
        x.unflatten(1, (2, 3)).diagonal(1, 2, 1),
        torch.linalg.diagonal(x.unflatten(1, (2, 3)), offset=-1, dim1=1, dim2=2),
    ],
    "cross": lambda x: [
        torch.cross(x[:, :3], x[:, 3:], 1),
        x[:, :3].cross(x[:, 3:]),
        torch.linalg.cross(x[:, :3], image((1, 3, 1, 1)), dim=1),
        torch.linalg.cross(x[..., 1:4], x[..., 4:7]),
    ],
    "renorm": lambda x: [torch.renorm(x, 2, 1, 5.0), x.renorm(1, 0, 3.0), torch.renorm(x, 2, -1, 4.0)],
    "triangles in place": lambda x: [(x * 1).tril_(), (x * 1).triu_(-2)],
    "diagonals made": lambda x: [
        torch.diag_embed(x),
        torch.diag_embed(x.permute(0, 2, 3, 1)),
        x.permute(0, 2, 3, 1).diag_embed(1, 0, -2),
    ],
    "distances": lambda x: [
        torch.linalg.vecdot(x, x * 2, dim=1),
        torch.linalg.vecdot(x, image((7,))),
        torch.dist(x, x * 2),
        x.dist(image((9, 7)), 1),
        F.pairwise_distance(x, image((2, 6, 9, 7), 1)),
        F.pairwise_distance(x.permute(0, 2, 3, 1), image((2, 9, 7, 6), 1), 1.0, keepdim=True),
    ],
    "of a matrix": lambda x: [
        torch.trace(x[0, 0]),
        torch.cov(x[0, 0]),
        torch.corrcoef(x[0, 0]),
        torch.diag(x[0, 0], 1),
        x[0, 0].cov(fweights=torch.arange(7)),
    ],
}


@pytest.mark.filterwarnings("ignore")  # cross without a dim, which torch is about to drop
@pytest.mark.parametrize("kwargs", GRIDS)
@pytest.mark.parametrize("name", CASES)
def test_equals_one_device(name: str, kwargs: Any) -> None:
    assert_exact(lambda x: CASES[name](x), (2, 6, 9, 7), **kwargs)


def test_cov_of_a_plain_tensor_with_weights_that_are_tiles() -> None:
    assert_exact(lambda x, y: torch.cov(y, aweights=x.abs()), (6,), grid=(2,), plain=[image((3, 6), 1)])


def test_cross_of_tiles_that_broadcast() -> None:
    assert_exact(lambda x, y: torch.linalg.cross(x, y), (1, 3), grid=(2,), plain=[image((5, 3), 1)])
