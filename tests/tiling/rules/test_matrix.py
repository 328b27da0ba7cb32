"""Triangles, diagonals, cross products, renorm and covariance of tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import assert_exact, image

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
