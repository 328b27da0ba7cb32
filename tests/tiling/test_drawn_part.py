"""A rank's part of random numbers is what torch draws for the whole, however many numbers are drawn at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication, drawn_part
from halocline.tiling.strides import noted, strides_in
from harness.ranks import in_turns

FILLS: dict[str, tuple[Any, ...]] = {
    "bernoulli_": (0.3,),
    "cauchy_": (),
    "exponential_": (2.0,),
    "geometric_": (0.2,),
    "log_normal_": (1.0, 0.5),
    "normal_": (1.0, 2.0),
    "random_": (3, 100),
    "uniform_": (-1.0, 1.0),
}
Ints = tuple[int, ...]


def same_as_whole(name: str, size: Ints, order: Ints, cuts: tuple[Ints, ...], dtype: torch.dtype, block: int) -> None:
    draw, args = getattr(Tensor, name), FILLS[name]
    torch.manual_seed(3)
    expected = draw(torch.empty_strided(size, strides_in(order, size), dtype=dtype), *args)
    following = torch.get_rng_state()

    def on_rank(exchanger: Any) -> None:
        spec = tiling.TileSpec(cuts, exchanger)
        part = expected[..., slice(*spec.held[0]), slice(*spec.held[1])]
        x = torch.empty_strided(part.shape, strides_in(order, tuple(part.shape)), dtype=dtype)
        drawn = drawn_part.drawn_part(draw, 0.0, tiling.TileTensor.wrap(noted(x, order), spec), *args)
        assert torch.equal(drawn, part)
        assert torch.equal(torch.get_rng_state(), following)

    usual, drawn_part.BLOCK = drawn_part.BLOCK, block
    try:
        in_turns((len(cuts[0]) - 1) * (len(cuts[1]) - 1), 3, on_rank)
    finally:
        drawn_part.BLOCK = usual


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(sorted(FILLS)), st.sampled_from([torch.float64, torch.float32]))
def test_any_part_in_any_order_of_memory(data: st.DataObject, name: str, dtype: torch.dtype) -> None:
    size = tuple(data.draw(st.integers(1, n)) for n in (3, 5, 9, 9))
    cuts = [(0, *sorted(data.draw(st.lists(st.integers(0, n), max_size=2))), n) for n in size[2:]]
    order = tuple(data.draw(st.permutations(range(4))))
    same_as_whole(name, size, order, tuple(cuts), dtype, data.draw(st.integers(1, 200)))


@pytest.mark.parametrize("name", FILLS)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_many_blocks_of_the_usual_size(name: str, order: Ints) -> None:
    same_as_whole(name, (2, 3, 200, 250), order, ((0, 77, 200), (0, 250)), torch.float32, drawn_part.BLOCK)


def test_torch_is_asked_which_numbers_come_in_runs() -> None:
    """normal_ fills a large tensor by sixteens; it is drawn whole. What torch is asked leaves its generator alone."""
    before = torch.get_rng_state()
    runs = {
        name: drawn_part._in_runs(getattr(Tensor, name), 0.0, torch.float32, args, ()) for name, args in FILLS.items()
    }
    assert torch.equal(torch.get_rng_state(), before)
    assert not runs.pop("normal_") and all(runs.values()), runs


@pytest.mark.parametrize("like", [torch.rand_like, lambda x: torch.randint_like(x, 2, 99)])
def test_new_tensors_in_the_likeness_of_a_large_tile(like: Callable[[Tensor], Tensor]) -> None:
    for memory_format in (torch.contiguous_format, torch.channels_last):
        whole = torch.zeros(1, 3, 256, 256).contiguous(memory_format=memory_format)
        torch.manual_seed(3)
        expected, following = like(whole), torch.rand(1)
        torch.manual_seed(3)
        found = like(tiling.tile(whole, (2, 2), NoCommunication(2, 4)))
        assert torch.equal(found.local, expected[..., 128:, :128]) and torch.equal(torch.rand(1), following)


def test_a_generator_of_ones_own() -> None:
    x = tiling.tile(torch.zeros(1, 1, 512, 512), (2, 2), NoCommunication(3, 4))
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    before = torch.get_rng_state()
    found = torch.empty_like(x).bernoulli_(0.3, generator=mine)
    expected = torch.empty(1, 1, 512, 512).bernoulli_(0.3, generator=theirs)
    assert torch.equal(found.local, expected[..., 256:, 256:])
    assert torch.equal(mine.get_state(), theirs.get_state()) and torch.equal(torch.get_rng_state(), before)
