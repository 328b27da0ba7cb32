"""Slices of pixels stay tiles where their pixels live; writing into them reaches the same pixels as on one device."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication
from harness.ranks import assert_exact, image

SHAPE = (2, 4, 7, 9)
READ = [
    lambda x: x[:, :, 1:, 1:],
    lambda x: x[..., ::2, 1::3],
    lambda x: x[..., -3:, :-2],
    lambda x: x[0],
    lambda x: x[:, -1],
    lambda x: x[None, :, 1, None],
    lambda x: x[:, [0, 2]],
    lambda x: x[torch.tensor([1, 0]), torch.tensor([[1], [2]])],
    lambda x: x[1, torch.tensor([0, 3])],
    lambda x: x[torch.tensor([True, False])],
    lambda x: x.permute(0, 2, 3, 1)[..., 1],
    lambda x: x.permute(0, 2, 3, 1)[:, 2:, ::2, 1:3],
    lambda x: x.narrow(2, 1, 3),
    lambda x: torch.narrow(x, 1, -3, 2),
    lambda x: x.select(1, 2),
    lambda x: x.index_select(1, torch.tensor([3, 0])),
    lambda x: torch.gather(x, 1, (x > 0).long()),
    lambda x: x.unbind(1),
    lambda x: list(x),
    lambda x: x.split(3, 1),
    lambda x: torch.split(x, [3, 4], dim=2),
    lambda x: x.split_with_sizes([1, 3], 1),
    lambda x: x.chunk(3, 1),
    lambda x: x.chunk(2, -1),
    lambda x: torch.tensor_split(x, 3, 1),
    lambda x: torch.tensor_split(x, (2, 4), 3),
    # The four phases of a space-to-depth stem, and the shifted slice of a factorized reduction.
    lambda x: torch.cat([x[..., :6:2, :8:2], x[..., 1:6:2, :8:2], x[..., :6:2, 1::2], x[..., 1:6:2, 1::2]], 1),
    lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:], image((2, 4, 1, 1)), stride=2),
]
GATHERED = [
    lambda x: x[:, :, 3],
    lambda x: x[:, :, :, -1],
    lambda x: x[:, 1, 2, 5],
    lambda x: x.select(3, 0),
    lambda x: x.unbind(-1),
    lambda x: x[None, ..., 2, 1:4],
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(READ)))
def test_reading(number: int, margin: int) -> None:
    assert_exact(READ[number], SHAPE, grid=(2, 2), margin=margin, tiled=True)
    assert_exact(READ[number], SHAPE, cuts=[[0, 1, 2, 7], [0, 9]], tiled=True)


@pytest.mark.parametrize("number", range(len(GATHERED)))
def test_a_single_row_or_pixel_is_gathered(number: int) -> None:
    assert_exact(GATHERED[number], SHAPE, grid=(2, 2), margin=1, tiled=False)
    assert_exact(GATHERED[number], SHAPE, grid=(1, 4), tiled=False)


@settings(max_examples=60, deadline=None)
@given(st.slices(11), st.slices(5), st.integers(1, 3), st.integers(0, 3))
def test_any_slices(across: slice, down: slice, tiles: int, margin: int) -> None:
    if (across.step or 1) < 1 or (down.step or 1) < 1 or not range(11)[across] or not range(5)[down]:
        return
    assert_exact(lambda x: F.relu(x)[..., down, across], (1, 2, 5, 11), grid=(2, tiles), margin=margin)


def write(index: object, value: object) -> object:
    def run(x: Tensor) -> Tensor:
        x[index] = value(x) if callable(value) else value  # type: ignore[index]
        return x

    return run


WRITE = [
    write((slice(None), 0), 0.0),
    write((..., slice(1, 3), slice(None, None, 2)), 5.0),
    write((slice(None), slice(0, 2)), lambda x: x[:, 2:] * 2),
    write((..., slice(1, None), slice(None)), lambda x: x[..., :-1, :].clone()),
    write((slice(None), slice(None), 0), 1.0),
    write((..., slice(2, 5)), lambda x: image((7, 3))),
    write((..., slice(2, 5)), lambda x: image((4, 1, 3))),
    write((slice(None), slice(None), slice(2, 4)), lambda x: x[:, :, :1].clone()),
    write((0, [1, 3]), lambda x: x[1, :2].clone()),
]


@pytest.mark.parametrize("margin", [0, 2])
@pytest.mark.parametrize("number", range(len(WRITE)))
def test_writing(number: int, margin: int) -> None:
    assert_exact(WRITE[number], SHAPE, grid=(2, 2), margin=margin)  # type: ignore[arg-type]
    assert_exact(WRITE[number], SHAPE, cuts=[[0, 1, 2, 7], [0, 9]])  # type: ignore[arg-type]


def test_a_parameter_written_into_a_tile_gets_its_gradient() -> None:
    def run(x: Tensor, value: Tensor) -> Tensor:
        x = x * 2
        x[..., 2:5, 1:8:2] = value
        return x

    assert_exact(run, SHAPE, grid=(2, 2), plain=[image((4, 3, 4)).requires_grad_()])


def test_a_factorized_reduction() -> None:
    class Reduce(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.even, self.odd = nn.Conv2d(4, 3, 1, 2, bias=False), nn.Conv2d(4, 3, 1, 2, bias=False)
            self.pad, self.norm = nn.ConstantPad2d((0, 1, 0, 1), 0), nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(torch.cat([self.even(x), self.odd(self.pad(x)[:, :, 1:, 1:])], 1))

    assert_exact(Reduce(), SHAPE, grid=(2, 2))
    assert_exact(Reduce(), (2, 4, 3, 4), grid=(3, 1))


def square(y: Tensor) -> None:
    y[:, :, 2:5, 3:6] = 0


def rows(y: Tensor) -> None:
    y.narrow(2, 1, 2).mul_(3)


def edges(y: Tensor) -> None:
    y[..., :4] += 1
    y[..., 4:].relu_()


def elsewhere(y: Tensor) -> None:
    y[:, :, 5:7, 4:7] = y[:, :, :2, :3]


@pytest.mark.parametrize("cuts", [[[0, 5, 7], [0, 4, 9]], [[0, 7], [0, 2, 6, 9]], [[0, 1, 3, 7], [0, 9]]])
@pytest.mark.parametrize("write", [square, rows, edges, elsewhere])
def test_what_is_written_reaches_every_margin(write: Callable[[Tensor], None], cuts: list[list[int]]) -> None:
    """Even that of a rank that owns none of the pixels written."""
    weight = image((2, 4, 3, 3))

    def run(x: Tensor) -> Tensor:
        y = x * 2
        write(y)
        return F.conv2d(y, weight, padding=1)

    for margin in (1, 4):
        assert_exact(run, SHAPE, cuts=cuts, margin=margin)
        assert_exact(lambda x: F.conv2d(F.pad(x[:, :, 2:5, 3:6], (1, 2)), weight), SHAPE, cuts=cuts, margin=margin)


def test_a_table_read_by_the_class_of_each_pixel() -> None:
    rows, weights = image((4, 5)).requires_grad_(), image((4,)).requires_grad_()
    for margin in (0, 1):
        assert_exact(
            lambda x, rows, weights: x + (rows[x.argmax(1)] * weights[x.argmax(1)].unsqueeze(-1)).sum(-1).unsqueeze(1),
            SHAPE,
            grid=(2, 2),
            margin=margin,
            plain=[rows, weights],
            tiled=True,
        )


def some_key(chance: Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    """Slices, numbers, new dims, indices and masks, as they come."""
    items: list[object] = []
    lists = 0
    for n in shape:
        kind = chance.randrange(9)
        if kind == 0:
            items.append(None)
        if kind < 3:
            ends = [chance.choice([None, chance.randint(-n, n)]) for _ in range(2)]
            items.append(slice(*ends, chance.choice([None, 2, 3])))
        elif kind < 5:
            items.append(chance.randrange(-n, n))
        elif kind == 5 and not lists:
            items.append(torch.tensor([chance.random() < 0.5 for _ in range(n)]))
            lists = 2
        elif kind == 6 and lists < 2:
            items.append(torch.tensor([chance.randrange(-n, n) for _ in range(2)]).view(chance.choice([(2,), (2, 1)])))
            lists = 1
        else:
            items.append(slice(None))
    return tuple(items)


@pytest.mark.parametrize("seed", range(30))
def test_any_key_reads_and_writes_as_on_one_device(seed: int) -> None:
    chance = Random(seed)
    for _ in range(3):
        key = some_key(chance, SHAPE)
        margin = chance.choice([0, 2])
        value = image(torch.zeros(SHAPE)[key].shape[chance.randint(0, 2) :], 3)
        assert_exact(lambda x, key=key: x[key], SHAPE, grid=(2, 2), margin=margin)
        assert_exact(write(key, value), SHAPE, cuts=[[0, 1, 7], [0, 9]], margin=margin)  # type: ignore[arg-type]


def test_what_is_refused() -> None:
    x = tiling.tile(torch.zeros(SHAPE), (2, 2), NoCommunication(0, 4))
    with pytest.raises(IndexError, match="pixel 7 is out of range for 7 pixels"):
        x[:, :, 7]
    with pytest.raises(IndexError, match="5 dims"):
        x[0, 0, 0, 0, 0]


@pytest.mark.parametrize("split", [torch.hsplit, torch.vsplit, torch.dsplit])
@pytest.mark.parametrize("where", [2, (1,), [1, 3]])
def test_splits_that_name_their_dim(split: Any, where: Any) -> None:
    shape = (4, 4, 6, 8)
    assert_exact(lambda x: [part * 2 for part in split(x, where)], shape, (2, 2))
    assert_exact(lambda x: [part * 2 for part in split(x[0], where)], shape, (1, 3))
    assert_exact(lambda x: [part * 2 for part in getattr(x, split.__name__)(where)], shape, (2, 1))


pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")

SHAPE_KEY = (2, 4, 6, 5)
KEYS: dict[str, Any] = {
    "list of slices": [slice(None), slice(None), slice(1, -1)],
    "list of slices and a row": [slice(None), slice(None), np.int64(-2), slice(1, None)],
    "list with None": [None, 0],
    "list with ...": [Ellipsis, slice(1, 4)],
    "list with a tensor": [torch.tensor(0), torch.tensor([1, 0])],
    "list of tensors without dims": [torch.tensor(1), torch.tensor(0)],
    "list of lists": [[0, 1], [1, 2]],
    "list of a list and a number": [[0, 1], 0],
    "list of arrays": [np.array([0, 1]), np.array([1, 2])],
    "list of ranges": [range(2), range(2)],
    "list of a list without numbers": [[]],
    "list of numbers": [0, 1],
    "list of numpy's numbers": [np.int64(1), np.int64(0)],
    "list of bools": [True, False],
    "list without numbers": [],
    "a long list of numbers": [0, 1] * 17,
    "numpy's number": np.int64(1),
    "array": np.array([0, 1]),
    "array of bools": np.array([True, False]),
    "array without dims": np.array(1),
    "matrix": np.array([[0, 1], [1, 0]]),
    "numpy's numbers of channels and pixels": (slice(None), np.array([1, 2]), np.int64(3), slice(np.int64(1), None)),
    "range": range(1, 2),
    "number and range": (0, range(2)),
    "number and tuple": (0, (1, 2)),
    "number and bools": (slice(None), [True, False, True, False]),
    "size": torch.Size([0, 1]),
    "True": True,
    "False": False,
    "True and a number": (True, 0),
    "None and True": (None, True, slice(None)),
    "mask without dims": torch.tensor(True),
    "byte without dims": torch.tensor(1, dtype=torch.uint8),
    "number without dims": torch.tensor(1),
    "slice of tensors": (Ellipsis, slice(torch.tensor(1), torch.tensor(3)), slice(None)),
    "nothing": (),
}


@pytest.mark.parametrize("name", KEYS)
def test_is_read_and_written_as_on_one_device(name: str) -> None:
    def written(x: Tensor) -> Tensor:
        out = 2 * x
        out[KEYS[name]] = 7.0
        return out

    assert_exact(lambda x: x[KEYS[name]] * 3, SHAPE_KEY, cuts=[[0, 6], [0, 2, 5]])
    assert_exact(written, SHAPE_KEY, cuts=[[0, 6], [0, 2, 5]])


def test_a_long_list_of_slices_is_no_tuple() -> None:
    tile = tiling.tile(image(SHAPE_KEY), (1, 1), NoCommunication(0, 1))
    for x in (image(SHAPE_KEY), tile):
        with pytest.raises(RuntimeError, match="dtype of slice"):
            x[[slice(None)] * 33]


def test_differences_along_dims_by_lists_of_slices() -> None:
    """As losses of a field's smoothness take them."""

    def bending(x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for dim in (2, 3):
            after, before = [slice(None), slice(None), slice(1, -1), slice(1, -1)], [slice(None), slice(None)]
            after[dim] = slice(2, None)
            before += [slice(1, -1), slice(1, -1)]
            before[dim] = slice(0, -2)
            total = total + ((x[after] - x[before]) / 2).square().mean()
        return total

    assert_exact(bending, SHAPE_KEY, grid=(2, 2))
