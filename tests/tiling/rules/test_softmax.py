"""Softmax over channels and over pixels equals one device's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import UntiledOperation
from harness.ranks import assert_exact, image, on_threads

FUNCTIONS = [
    F.softmax,
    F.log_softmax,
    F.softmin,
    lambda x, dim: x.softmax(dim),
    lambda x, dim: torch.log_softmax(x, dim=dim),
    lambda x, dim: F.softmax(x, dim, dtype=torch.float64),
    lambda x, dim: F.softmax(100 * x, dim),
]


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("dim", [0, 1, -1, 2])
@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_image(number: int, dim: int, margin: int) -> None:
    assert_exact(lambda x: FUNCTIONS[number](x, dim), (2, 3, 7, 9), cuts=[[0, 7], [0, 2, 5, 9]], margin=margin)


@pytest.mark.parametrize("dim", [2, 3])
def test_on_a_grid(dim: int) -> None:
    assert_exact(lambda x: F.softmax(x, dim), (2, 3, 7, 9), grid=(2, 2), tiled=True)


@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize("dim", [1, -1])
@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_line(number: int, dim: int, margin: int) -> None:
    assert_exact(lambda x: FUNCTIONS[number](x, dim), (2, 3, 11), cuts=[[0, 1, 5, 11]], margin=margin, tiled=True)


def test_modules() -> None:
    assert_exact(nn.Sequential(nn.Softmax(1), nn.LogSoftmax(-3), nn.Softmax2d()), (2, 3, 7, 9), grid=(2, 2))


def test_rows_without_pixels() -> None:
    assert_exact(lambda x: F.softmax(F.max_pool1d(x, 4), -1), (1, 2, 12), grid=(6,))


def test_a_line_needs_no_gather() -> None:
    def run(exchanger: tiling.Exchanger) -> None:
        x = tiling.tile(image((2, 3, 12)), (3,), exchanger)
        exchanger.counter.reset()
        F.softmax(x, -1)
        assert exchanger.counter.exchanges == 0 and exchanger.counter.reductions == 1

    on_threads(3, run)


def test_gumbel_noise_is_one_devices() -> None:
    """Without messages, so that the ranks can run one after the other from the same seed; only logits must be equal."""
    x = torch.zeros(2, 3, 4, 6)
    torch.manual_seed(3)
    expected = F.gumbel_softmax(x, hard=True, dim=1)
    for rank in range(2):
        torch.manual_seed(3)
        part = F.gumbel_softmax(tiling.tile(x, (1, 2), tiling.NoCommunication(rank, 2)), hard=True, dim=1)
        assert torch.equal(part.local, expected[..., 3 * rank : 3 * rank + 3])


def test_a_guessed_dim_is_refused() -> None:
    x = tiling.tile(torch.zeros(2, 3, 4, 6), (1, 2), tiling.NoCommunication(0, 2))
    guess: Callable[[Tensor], Tensor] = nn.Softmax()
    with pytest.raises(UntiledOperation, match="give dim="):
        guess(x)
    with pytest.raises(IndexError, match="out of range"):
        F.softmax(x, 4)
