"""An index of any kind that torch takes is read as torch reads it: lists as tuples, numpy's numbers, ranges, bools."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from halocline import tiling
from halocline.tiling import NoCommunication
from harness.ranks import assert_exact, image

pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")

SHAPE = (2, 4, 6, 5)
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

    assert_exact(lambda x: x[KEYS[name]] * 3, SHAPE, cuts=[[0, 6], [0, 2, 5]])
    assert_exact(written, SHAPE, cuts=[[0, 6], [0, 2, 5]])


def test_a_long_list_of_slices_is_no_tuple() -> None:
    tile = tiling.tile(image(SHAPE), (1, 1), NoCommunication(0, 1))
    for x in (image(SHAPE), tile):
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

    assert_exact(bending, SHAPE, grid=(2, 2))
