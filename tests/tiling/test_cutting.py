"""Cutting images into tiles, gathering them and cutting them anew."""

import pytest
import torch
from torch import nn

from halocline import tiling
from halocline.tiling.exchanger import ThreadExchanger
from halocline.tiling.route import move
from harness.ranks import assert_close, assert_exact, image, on_threads


def test_one_rank_needs_no_group() -> None:
    x = tiling.tile(image((1, 3, 5, 5)), (1, 1))
    assert x.full().shape == (1, 3, 5, 5)
    assert torch.equal(nn.Identity()(x).full(), image((1, 3, 5, 5)))


def test_an_own_tile_is_taken_as_it_is() -> None:
    whole = image((1, 2, 7, 9))

    def run(exchanger: ThreadExchanger) -> None:
        box = tiling.tile(whole, (2, 2), exchanger).spec.box
        piece = whole[..., box[0][0] : box[0][1], box[1][0] : box[1][1]].clone().requires_grad_()
        x = tiling.tile(piece, (2, 2), exchanger, size=(7, 9))
        full = (x * x).full()
        assert torch.equal(full, whole * whole)
        tiling.backward(full.sum(), [], exchanger)
        assert_close(piece.grad, 2 * piece.detach(), 1e-15, "gradient of the piece")
        with pytest.raises(ValueError, match="passed a tile"):
            tiling.tile(whole, (2, 2), exchanger, size=(7, 9))

    on_threads(4, run)


def test_grids_that_do_not_fit_are_refused() -> None:
    exchanger = ThreadExchanger.connect(3)[0]
    whole = image((1, 2, 7, 9))
    with pytest.raises(ValueError, match=r"2 x 2 = 4 tiles needs 4 ranks but the group has 3"):
        tiling.tile(whole, (2, 2), exchanger)
    with pytest.raises(ValueError, match="cannot cut 2 pixels into 3"):
        tiling.tile(image((1, 1, 2)), (3,), exchanger)
    with pytest.raises(ValueError, match="give one of grid"):
        tiling.tile(whole, group=exchanger)
    with pytest.raises(ValueError, match="must rise"):
        tiling.tile(whole, group=exchanger, cuts=[[0, 7], [0, 5, 5, 9]])


@pytest.mark.parametrize("grid", [(4, 1), (1, 4), (1, 2), (2, 1), (1, 1), (1, 3)])
def test_cut_anew(grid: tuple[int, int]) -> None:
    conv = nn.Conv2d(3, 2, 3, 2, 1)

    def function(x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, tiling.TileTensor):
            x = tiling.redistribute(x, grid)
            assert x.spec.grid == grid
        return conv_of_this_thread(x)

    weight = conv.weight.detach().double()

    def conv_of_this_thread(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.conv2d(x, weight, None, 2, 1))

    assert_exact(function, (2, 3, 9, 11), grid=(2, 2))
    assert_exact(function, (2, 3, 9, 11), grid=(2, 2), margin=2)


def test_pixels_move_between_different_ranks() -> None:
    """From two ranks that have an image to two others that need overlapping parts of it, and its gradient back."""
    whole = image((1, 2, 10))
    have = [((0, 4),), ((4, 10),), None, None]
    need = [None, None, ((0, 7),), ((3, 12),)]
    weight = image((1, 2, 12), salt=1)

    def run(exchanger: ThreadExchanger) -> torch.Tensor:
        box = have[exchanger.rank] or ((0, 0),)
        piece = whole[..., box[0][0] : box[0][1]].clone().requires_grad_()
        out = move(piece, have, need, exchanger, (-1,))
        wanted = need[exchanger.rank] or ((0, 0),)
        padded = torch.nn.functional.pad(whole, (0, 2))
        assert torch.equal(out, padded[..., wanted[0][0] : wanted[0][1]])
        (out * weight[..., wanted[0][0] : wanted[0][1]]).sum().backward()
        assert piece.grad is not None
        return piece.grad

    grads = torch.cat(on_threads(4, run), -1)
    counts = torch.zeros(10, dtype=torch.float64)
    counts[0:7] += 1
    counts[3:10] += 1
    assert torch.equal(grads, weight[..., :10] * counts)


def test_nothing_travels_when_nothing_is_needed() -> None:
    exchanger = ThreadExchanger.connect(2)[0]
    x = tiling.tile(image((1, 2, 8)), (2,), exchanger)
    assert tiling.redistribute(x, (2,)) is x
    assert x.fetched(x.spec.have) is x and tiling.traffic(exchanger).exchanges == 0
