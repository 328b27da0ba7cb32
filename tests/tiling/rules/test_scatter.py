"""What is written by indices and masks, plain or tiles, in place or not, is what one device writes, with gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")

SHAPE = (2, 4, 7, 9)
CUTS = [[[0, 3, 7], [0, 2, 9]], [[0, 7], [0, 4, 9]], [[0, 1, 1, 7], [0, 9]]]
TARGET = (image((2, 7, 9), 3).abs() * 7).long() % 4
INDEX = TARGET.unsqueeze(1)
FEWER = (image((1, 3, 5, 9), 4).abs() * 7).long() % 2
MARKED = image(SHAPE, 5) > 0.3
PIXELS = image((7, 9), 6) > 0.2
WHOLE = image(SHAPE, 7)
ROWS = torch.tensor([6, 0, 3])
PAIR = torch.tensor([3, 1])

Call = Callable[[Tensor], Any]


def write(key: Any, value: Any) -> Call:
    def run(x: Tensor) -> Tensor:
        y = x * 2
        y[key(x) if callable(key) else key] = value(x) if callable(value) else value
        return F.avg_pool2d(y, 3, 1, 1) if y.shape == SHAPE else y  # which reads margins

    return run


WITHIN_PIXELS: dict[str, Call] = {
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
    "a number under a plain mask": write(MARKED, 0.5),
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
AMONG_PIXELS: dict[str, Call] = {
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
    "values under a plain mask": write(MARKED, lambda x: image((int(MARKED.sum()),))),
    "values under a tile mask": write(lambda x: x > 0, lambda x: x[x > 0] * 3),
    "a vector under a mask of pixels": lambda x: write(MARKED[:, 0], image((4,)))(x.permute(0, 2, 3, 1)),
    "rows by a tensor": write((slice(None), slice(None), ROWS), lambda x: image((3, 9))),
    "rows of a tile by a tensor": write((..., ROWS, slice(None)), lambda x: x[:, :, 1:4]),
    "points": write((slice(None), slice(None), ROWS, ROWS), 0.0),
    "no pixels": write((..., slice(3, 3)), 1.0),
}


@pytest.mark.parametrize("name", WITHIN_PIXELS)
def test_written_within_pixels(name: str) -> None:
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(WITHIN_PIXELS[name], SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, tiled=True)


@pytest.mark.parametrize("name", AMONG_PIXELS)
def test_written_among_pixels(name: str) -> None:
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(AMONG_PIXELS[name], SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, tiled=True)


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
        y[MARKED] = value
        y[:, :, 2] = some[:9]
        y[:, :, ROWS, ROWS] = some[:3]
        y[:, 0][PIXELS.expand(2, 7, 9)] = some[:1]
        return y

    plain = [t.requires_grad_() for t in (image(SHAPE, 2), image((), 3), image((9,), 4))]
    for margin, cuts in zip((0, 2, 0), CUTS):
        assert_exact(run, SHAPE, cuts=cuts, dims=(-2, -1), margin=margin, plain=plain)


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    with pytest.raises(UntiledOperation, match="out="):
        torch.scatter(x, 1, INDEX, 1.0, out=torch.zeros(1))


def test_views_written_in_a_copy() -> None:
    given = image((2, 4, 3), 1).requires_grad_()
    tiles: dict[str, Any] = {"cuts": [[0, 1, 3], [0, 2, 3]], "plain": [given]}
    assert_exact(lambda x, y: torch.slice_scatter(x, y.unsqueeze(3), 3, 1, 2), (2, 4, 3, 3), **tiles)
    assert_exact(lambda x, y: x.select_scatter(y, 2, 1), (2, 4, 3, 3), **tiles)
    assert_exact(lambda x, y: x.diagonal_scatter(src=y, dim1=2, dim2=3), (2, 4, 3, 3), **tiles)
