"""Values chosen by indices and masks, plain or tiles, are those that one device chooses, with their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image

SHAPE = (2, 4, 7, 9)
CUTS = [[[0, 3, 7], [0, 2, 9]], [[0, 7], [0, 4, 9]], [[0, 1, 1, 7], [0, 9]]]
CLASSES = (image((2, 7, 9), 3).abs() * 7).long() % 4
FEWER = (image((1, 3, 5, 9), 4).abs() * 7).long() % 2
MARKED = image((2, 4, 7, 9), 5) > 0.3
PIXELS = image((7, 9), 6) > 0.2
FIRST = torch.tensor([6, 0, 6, 3])
SECOND = torch.tensor([[1], [8]])

Call = Callable[[Tensor], Any]


def classes(x: Tensor) -> Tensor:
    return x.argmax(1)


WITHIN_PIXELS: dict[str, Call] = {
    "gather by a plain target": lambda x: x.gather(1, CLASSES.unsqueeze(1)),
    "gather by keywords": lambda x: x.gather(dim=1, index=CLASSES[:, None]),
    "torch.gather by keywords": lambda x: torch.gather(input=x, dim=-3, index=CLASSES[:, None], sparse_grad=False),
    "gather by a tile": lambda x: x.gather(1, classes(x).unsqueeze(1)),
    "gather more than there is": lambda x: x.gather(1, CLASSES[:, None].repeat(1, 6, 1, 1)),
    "gather of fewer samples": lambda x: x.gather(1, CLASSES[:1, None]),
    "gather of a plain tensor": lambda x: image(SHAPE, 2).gather(1, classes(x).unsqueeze(1)) * x,
    "gather samples": lambda x: x.gather(0, CLASSES[:, None] % 2),
    "take_along_dim": lambda x: torch.take_along_dim(x, CLASSES[:, None], dim=1),
    "take_along_dim, broadcast": lambda x: x.take_along_dim(CLASSES[:1, None, :1], 1),
    "take_along_dim, a sorted order": lambda x: torch.take_along_dim(x, x.flatten(2).argsort(1).view(SHAPE), 1),
    "index_select": lambda x: x.index_select(dim=1, index=FIRST % 4),
    "channels last": lambda x: x.permute(0, 2, 3, 1)[..., FIRST % 4],
    "channels last, two dims": lambda x: x.permute(0, 2, 3, 1)[..., SECOND % 4],
    "samples and channels apart": lambda x: x.permute(0, 2, 3, 1)[torch.tensor([1, 0]), 1:, :, torch.tensor([3, 2])],
    "channels by a mask": lambda x: x[:, torch.tensor([True, False, True, True])],
    "samples and channels by a mask": lambda x: x[image((2, 4)) > 0],
    "no sample": lambda x: x[torch.zeros(2, dtype=torch.bool)],
    "a table of colours": lambda x: image((4, 3, 4))[classes(x), 1:, classes(-x)].movedim(-1, 1) * x[:, :2],
    "columns of a table": lambda x: image((3, 4))[:, classes(x)].transpose(0, 1) * x[:, :3],
}


@pytest.mark.parametrize("name", WITHIN_PIXELS)
def test_chosen_within_pixels(name: str) -> None:
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(WITHIN_PIXELS[name], SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, tiled=True)


AMONG_PIXELS: dict[str, Call] = {
    "a plain mask": lambda x: x[MARKED],
    "a tile mask": lambda x: x[x > 0.5],
    "a mask of samples and rows": lambda x: x.transpose(1, 2)[image((2, 7)) > 0],
    "a mask of pixels": lambda x: x[:, :, PIXELS],
    "a mask of pixels behind a number": lambda x: x[1, :, PIXELS],
    "a mask of pixels as a tile": lambda x: x[:, 1, (x > 0)[0, 0]],
    "a mask of nothing": lambda x: x[x > 1e9],
    "a mask of a plain tensor": lambda x: image(SHAPE, 8)[x > 0].sum() * x,
    "masked_select": lambda x: x.masked_select(MARKED),
    "masked_select by a smaller mask": lambda x: torch.masked_select(x, mask=PIXELS),
    "masked_select by a tile": lambda x: torch.masked_select(x, x > 0),
    "rows": lambda x: x[:, :, FIRST],
    "columns, repeated": lambda x: x[..., [1, 1, 8]],
    "points": lambda x: x[:, :, FIRST, SECOND],
    "points of samples": lambda x: x[torch.tensor([1, 0]), :, FIRST[:2], 4],
    "rows of a sample": lambda x: x[1, ..., SECOND % 7, :],
    "no pixels": lambda x: x[:, :, 3:3],
    "a row of no pixels": lambda x: x[..., 2, 9:],
    "narrow to no pixels": lambda x: x.narrow(3, 9, 0),
    "a split with an empty part": lambda x: torch.tensor_split(x, (0, 3), 2),
    "index_select of rows": lambda x: x.index_select(2, FIRST),
    "gather of rows": lambda x: x.gather(2, CLASSES[:, None]),
    "gather by a smaller index": lambda x: x.gather(1, FEWER),
    "gather by one pixel": lambda x: x.gather(1, FEWER[:, :, :1, :1]),
    "take": lambda x: x.take(FIRST * 20),
    "take_along_dim of all": lambda x: torch.take_along_dim(x, FIRST),
    "pixels that are not zero": lambda x: x[torch.where(x > 0)],
    "nonzero": lambda x: (torch.nonzero(x > 0), x.sum()),
    "nonzero as a tuple": lambda x: (*(x > 0).nonzero(as_tuple=True), x.sum()),
    "argwhere": lambda x: (torch.argwhere(x > 0), x.sum()),
    "unique": lambda x: (*torch.unique(classes(x), return_inverse=True, return_counts=True), x.sum()),
    "unique_consecutive": lambda x: (classes(x).unique_consecutive(), x.sum()),
    "the best pixels": lambda x: x.flatten(1).topk(5, 1),
}


@pytest.mark.parametrize("name", AMONG_PIXELS)
def test_chosen_among_pixels(name: str) -> None:
    tiled = None if name == "a mask of a plain tensor" else False
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(AMONG_PIXELS[name], SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, tiled=tiled)


def test_a_table_of_parameters_gets_its_gradient() -> None:
    tables = [image((4, 4), 1).requires_grad_(), image((2, 4, 7, 9), 2).requires_grad_()]

    def run(x: Tensor, table: Tensor, picture: Tensor) -> Tensor:
        found = table[classes(x), :2].movedim(-1, 1) + picture.gather(1, classes(x).unsqueeze(1))
        return (found * x[:, :2]).sum() + picture[x > 0].square().sum() + x[MARKED].dot(picture[MARKED])

    for cuts in CUTS:
        assert_exact(run, SHAPE, cuts=cuts, dims=(-2, -1), plain=tables)


def test_one_pixel_chosen_in_an_image_of_one_row() -> None:
    target = torch.ones(1, 1, 1, 5, dtype=torch.long)
    assert_exact(lambda x: x.gather(1, target), (1, 3, 1, 5), grid=(1, 2), tiled=True)
    assert_exact(lambda x: x[:, target[0, 0, 0]], (1, 3, 1, 5), grid=(1, 2), tiled=True)


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    with pytest.raises(UntiledOperation, match="out="):
        torch.gather(x, 1, CLASSES[:, None], out=torch.zeros(1))


def test_take_along_dim_counts_from_the_end() -> None:
    chosen = (CLASSES - 4).unsqueeze(1)
    assert_exact(lambda x: torch.take_along_dim(x, chosen, 1), SHAPE, cuts=CUTS[0])
    assert_exact(lambda x: torch.take_along_dim(x, torch.tensor([[[[-1, 0, -9]]]]), 3), SHAPE, cuts=CUTS[0])
