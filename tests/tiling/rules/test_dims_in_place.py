"""unsqueeze_, squeeze_, transpose_ and their kin change the tile itself, as on one device."""

import pytest
import torch
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image, on_threads

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


def test_what_is_refused() -> None:
    pixels = tiling.tile(torch.zeros(2, 3, 1, 8), (1, 2), NoCommunication(0, 2))
    for call in (lambda: pixels.squeeze_(), lambda: pixels.squeeze_(2), lambda: pixels.squeeze_((0, -2))):
        with pytest.raises(UntiledOperation, match="squeeze"):
            call()
    assert pixels.squeeze_(0).shape == (2, 3, 1, 8)
    leaf = tiling.tile(torch.zeros(2, 3, 4, 8), (1, 2), NoCommunication(0, 2)).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.unsqueeze_(0)
