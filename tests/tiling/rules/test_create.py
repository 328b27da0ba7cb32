"""New tensors in the likeness of a tile."""

import pytest
import torch
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, TileTensor
from harness.ranks import assert_exact, on_processes

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


RANDOM = {
    "rand": torch.rand_like,
    "randn": torch.randn_like,
    "randint": lambda x: torch.randint_like(x, 2, 9),
    "randn, contiguous": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format),
    "randn, channels_last": lambda x: torch.randn_like(x, memory_format=torch.channels_last),
    "permuted": lambda x: torch.randn_like(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "a channel": lambda x: torch.randn_like(x[:, :1]),
    "repeated": lambda x: torch.randn_like(x[:, :1].expand(-1, 3, -1, -1)),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_fill_memory_in_the_order_of_one_device(name: str, memory_format: torch.memory_format) -> None:
    for shape, grid in ((SHAPE, (2, 2)), ((1, 4, 2, 2), (2, 2)), ((2, 4, 1, 5), (1, 5)), ((1, 3, 8, 6), (2, 1))):
        whole = torch.ones(shape).contiguous(memory_format=memory_format)
        torch.manual_seed(0)
        expected = RANDOM[name](whole)
        size = grid[0] * grid[1]
        for rank in range(size):
            torch.manual_seed(0)
            x = tiling.tile(whole, grid, NoCommunication(rank, size))
            (a, b), (c, d) = x.spec.box
            assert torch.equal(RANDOM[name](x).local, expected[..., a:b, c:d]), (shape, rank)


def flips_on_a_process() -> None:
    """Numbers that depend on the pixels' values: coins and random slopes."""
    x = torch.rand(2, 4, 6, 8).contiguous(memory_format=torch.channels_last)
    for function in (
        torch.bernoulli,
        lambda t: t.bernoulli(),
        lambda t: torch.bernoulli(t, 0.3),
        lambda t: torch.rrelu(t - 0.5, training=True),
    ):
        torch.manual_seed(1)
        expected, following = function(x), torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(function(tiling.tile(x, (1, 2))).full(), expected)
        assert torch.equal(torch.rand(1), following), "out of step"


def test_coins_are_those_of_one_device() -> None:
    on_processes(2, flips_on_a_process)


def test_broadcast_tensors() -> None:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        return torch.broadcast_tensors(x, torch.ones(4, 1, 1, dtype=x.dtype))

    assert_exact(run, SHAPE, grid=(2, 2), tiled=True)
