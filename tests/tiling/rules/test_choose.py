"""Values chosen by other values, read and written, within pixels and among them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
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


pytestmark = pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")

TARGET = (image((2, 7, 9), 3).abs() * 7).long() % 4
INDEX = TARGET.unsqueeze(1)
MARKED_WRITTEN = image(SHAPE, 5) > 0.3
WHOLE = image(SHAPE, 7)
ROWS = torch.tensor([6, 0, 3])
PAIR = torch.tensor([3, 1])


def write(key: Any, value: Any) -> Call:
    def run(x: Tensor) -> Tensor:
        y = x * 2
        y[key(x) if callable(key) else key] = value(x) if callable(value) else value
        return F.avg_pool2d(y, 3, 1, 1) if y.shape == SHAPE else y  # which reads margins

    return run


WITHIN_PIXELS_WRITTEN: dict[str, Call] = {
    "one-hot classes": lambda x: torch.zeros_like(x).scatter_(1, INDEX, 1) * x,
    "one-hot classes by keywords": lambda x: torch.zeros_like(x).scatter_(dim=1, index=INDEX, value=1.0) * x,
    "one-hot classes of a tile": lambda x: torch.zeros_like(x).scatter_(1, x.argmax(1, keepdim=True), 1.0) * x,
    "one-hot classes, not in place": lambda x: torch.scatter(torch.zeros_like(x), 1, INDEX, 1.0) * x,
    "label smoothing": lambda x: -(F.log_softmax(x, 1) * torch.full_like(x, 0.1).scatter_(1, INDEX, 0.7)).sum(1),
    "scatter into a plain tensor": lambda x: WHOLE.scatter(1, x.argmax(1, keepdim=True), 3.0) * x,
    "scatter a tile": lambda x: x.scatter(1, INDEX, x[:, 1:2] * x[:, :1]),
    "scatter a plain tensor": lambda x: (2 * x).scatter_(1, INDEX, src=WHOLE),
    "scatter and add": lambda x: x.detach().scatter(1, INDEX, 2.0, reduce="add") * x,
    "scatter_add": lambda x: x.scatter_add(1, INDEX.repeat(1, 4, 1, 1), x),
    "scatter_add_": lambda x: (x * 3).scatter_add_(dim=1, index=INDEX.repeat(1, 3, 1, 1), src=x[:, 1:]),
    "scatter_add of samples": lambda x: torch.scatter_add(x, 0, INDEX.repeat(1, 4, 1, 1) % 2, WHOLE),
    "scatter_reduce": lambda x: x.scatter_reduce(1, INDEX.repeat(1, 4, 1, 1), WHOLE, "amax"),
    "scatter_reduce_": lambda x: (2 * x).scatter_reduce_(1, INDEX, WHOLE, reduce="mean", include_self=False),
    "index_add": lambda x: x.index_add(1, PAIR, x[:, :2], alpha=2),
    "index_add_ of a plain tensor": lambda x: (2 * x).index_add_(1, PAIR, WHOLE[:, :2]),
    "index_copy": lambda x: torch.index_copy(x, 1, PAIR, x[:, :2]),
    "index_copy_ by keywords": lambda x: (2 * x).index_copy_(dim=-3, index=PAIR, source=WHOLE[:, :2]),
    "index_fill": lambda x: x.index_fill(1, PAIR, 3.0),
    "index_fill_ by keywords": lambda x: (2 * x).index_fill_(dim=1, index=PAIR, value=3),
    "index_reduce": lambda x: x.index_reduce(1, PAIR, x[:, :2], "amin"),
    "a number under a plain mask": write(MARKED_WRITTEN, 0.5),
    "a number under a tile mask": write(lambda x: x > 0, 0.5),
    "a number under a mask of rows": lambda x: write(image((2, 7)) > 0, 0.0)(x.transpose(1, 2)),
    "a number under a mask of samples": write(torch.tensor([False, True]), -1.0),
    "a number under a mask of nothing": write(torch.zeros(SHAPE, dtype=torch.bool), -1.0),
    "masked_fill by a smaller mask": lambda x: x.masked_fill(PIXELS, 2.0),
    "channels apart": lambda x: write((..., [3, 0]), lambda y: y[..., :2].detach())(x.permute(0, 2, 3, 1)),
    "a row": write((slice(None), slice(None), 3), image((4, 9))),
    "a row and a column": write((..., 3, 5), lambda x: image((2, 4))),
    "a row of a tile": write((slice(None), slice(None), -1), lambda x: x[:, :, 0] * 2),
    "a row of what is a tile": write((slice(None), slice(None), -1), lambda x: x[:, :, 0:1].squeeze(2)),
}
AMONG_PIXELS_WRITTEN: dict[str, Call] = {
    "scatter rows": lambda x: x.scatter(2, INDEX, WHOLE),
    "scatter by a smaller index": lambda x: x.scatter(1, FEWER, 9.0),
    "scatter_ by a smaller index": lambda x: (2 * x).scatter_(1, FEWER, WHOLE),
    "scatter_add over rows": lambda x: (2 * x).scatter_add_(2, INDEX.repeat(1, 4, 1, 1), x),
    "index_add of rows": lambda x: x.index_add(2, ROWS, x[:, :, 2:5]),
    "index_fill_ of columns": lambda x: (2 * x).index_fill_(3, ROWS, 1.0),
    "index_put": lambda x: x.index_put((PAIR % 2, PAIR), image((2, 7, 9))),
    "index_put_ of pixels": lambda x: (2 * x).index_put_((PAIR % 2, PAIR, PAIR), x[:, 1, 2], accumulate=True),
    "put_": lambda x: (2 * x).put_(ROWS * 50, image((3,))),
    "masked_scatter": lambda x: x.masked_scatter(PIXELS, WHOLE),
    "masked_scatter_ of a tile": lambda x: (2 * x).masked_scatter_(x > 0, x),
    "values under a plain mask": write(MARKED_WRITTEN, lambda x: image((int(MARKED_WRITTEN.sum()),))),
    "values under a tile mask": write(lambda x: x > 0, lambda x: x[x > 0] * 3),
    "a vector under a mask of pixels": lambda x: write(MARKED_WRITTEN[:, 0], image((4,)))(x.permute(0, 2, 3, 1)),
    "rows by a tensor": write((slice(None), slice(None), ROWS), lambda x: image((3, 9))),
    "rows of a tile by a tensor": write((..., ROWS, slice(None)), lambda x: x[:, :, 1:4]),
    "points": write((slice(None), slice(None), ROWS, ROWS), 0.0),
    "no pixels": write((..., slice(3, 3)), 1.0),
}


@pytest.mark.parametrize("name", WITHIN_PIXELS_WRITTEN)
def test_written_within_pixels(name: str) -> None:
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(WITHIN_PIXELS_WRITTEN[name], SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, tiled=True)


@pytest.mark.parametrize("name", AMONG_PIXELS_WRITTEN)
def test_written_among_pixels(name: str) -> None:
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(AMONG_PIXELS_WRITTEN[name], SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, tiled=True)


def test_a_plain_tensor_is_written_as_on_one_device() -> None:
    def run(x: Tensor) -> list[Tensor]:
        hot, kept, masked = torch.zeros(SHAPE, dtype=x.dtype), WHOLE.clone(), WHOLE.clone()
        hot.scatter_(1, x.argmax(1, keepdim=True), 1.0)
        kept[:, 1:3] = x[:, :2]
        masked[x > 0] = 0.0
        return [hot * x, kept, masked * x]

    assert_exact(run, SHAPE, grid=(2, 2), margin=1)


def test_parameters_that_are_written_get_their_gradients() -> None:
    def run(x: Tensor, source: Tensor, value: Tensor, some: Tensor) -> Tensor:
        y = x.scatter_add(1, INDEX, source[:, :1]).index_add(1, PAIR, source[:, :2]).index_fill(0, PAIR[:1] % 2, value)
        y[MARKED_WRITTEN] = value
        y[:, :, 2] = some[:9]
        y[:, :, ROWS, ROWS] = some[:3]
        y[:, 0][PIXELS.expand(2, 7, 9)] = some[:1]
        return y

    plain = [t.requires_grad_() for t in (image(SHAPE, 2), image((), 3), image((9,), 4))]
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(run, SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, plain=plain)


def test_what_is_refused_written() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    with pytest.raises(UntiledOperation, match="out="):
        torch.scatter(x, 1, INDEX, 1.0, out=torch.zeros(1))


def test_views_written_in_a_copy() -> None:
    given = image((2, 4, 3), 1).requires_grad_()
    tiles: dict[str, Any] = {"cuts": [[0, 1, 3], [0, 2, 3]], "plain": [given]}
    assert_exact(lambda x, y: torch.slice_scatter(x, y.unsqueeze(3), 3, 1, 2), (2, 4, 3, 3), **tiles)
    assert_exact(lambda x, y: x.select_scatter(y, 2, 1), (2, 4, 3, 3), **tiles)
    assert_exact(lambda x, y: x.diagonal_scatter(src=y, dim1=2, dim2=3), (2, 4, 3, 3), **tiles)
