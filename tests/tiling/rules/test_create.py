"""New tensors in the likeness of a tile."""

import torch
from ranks import assert_exact
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, TileTensor

SHAPE = (2, 4, 7, 9)


def test_a_given_shape_gives_a_plain_tensor() -> None:
    for function in (
        lambda x: x + x.new_zeros(4, 1, 1) + x.new_ones((7, 9)) * x.new_full((1,), 3.0),
        lambda x: x * x.new_empty(x.shape[0], 1, 1, 1).fill_(2.0),
        lambda x: torch.cat([x, x.new_ones(2, 1, *x.shape[2:])], 1),
        lambda x: x * x.new_tensor([1, 2, 3, 4]).view(-1, 1, 1),
    ):
        assert_exact(function, SHAPE, grid=(2, 2), tiled=True)


def test_likenesses_are_tiles() -> None:
    for function in (torch.zeros_like, torch.ones_like, lambda x: torch.full_like(x, 2.0)):
        assert_exact(lambda x, function=function: function(x) * x, SHAPE, grid=(2, 2), margin=1, tiled=True)


def test_random_numbers_are_those_of_one_device() -> None:
    for function in (torch.rand_like, torch.randn_like, lambda x: torch.randint_like(x, 2, 9)):
        torch.manual_seed(0)
        expected = function(torch.ones(SHAPE)) + function(torch.ones(SHAPE))
        for rank in range(4):  # one after the other, as threads would draw from one generator
            torch.manual_seed(0)
            x = tiling.tile(torch.ones(SHAPE), (2, 2), NoCommunication(rank, 4))
            noise = function(x) + function(x)
            (a, b), (c, d) = x.spec.box
            assert isinstance(noise, TileTensor) and torch.equal(noise.local, expected[..., a:b, c:d])


def test_broadcast_tensors() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        return torch.broadcast_tensors(x, torch.ones(4, 1, 1, dtype=x.dtype))

    assert_exact(run, SHAPE, grid=(2, 2), tiled=True)
