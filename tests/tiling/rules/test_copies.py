"""A result that is a copy on one device is one on tiles, even if no pixel has changed; and a view is a view."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from ranks import image, on_threads
from torch import Tensor

from halocline import tiling

SHAPE = (2, 4, 8, 6)
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "constant pad": lambda x: F.pad(x, (0, 0, 0, 0)),
    "reflect pad": lambda x: F.pad(x, (0, 0, 0, 0), mode="reflect"),
    "replicate pad": lambda x: F.pad(x, (0, 0, 0, 0), mode="replicate"),
    "circular pad": lambda x: F.pad(x, (0, 0, 0, 0), mode="circular"),
    "roll by 0": lambda x: x.roll(0, 3),
    "roll by the size": lambda x: x.roll((8, 4), (2, 1)),
    "rot90 by 0": lambda x: x.rot90(0, (2, 3)),
    "flip of nothing": lambda x: x.flip([]),
    "cat of one": lambda x: torch.cat([x], 1),
    "cat of one along pixels": lambda x: torch.cat([x], 3),
    "cat with nothing along pixels": lambda x: torch.cat([x, x[..., :0]], 3),
    "pixel shuffle by 1": lambda x: F.pixel_shuffle(x, 1),
    "pixel unshuffle by 1": lambda x: F.pixel_unshuffle(x, 1),
    "channel shuffle by 1": lambda x: F.channel_shuffle(x, 1),
    "interpolate to its size": lambda x: F.interpolate(x, size=(8, 6), mode="bilinear"),
    "pool by 1": lambda x: F.avg_pool2d(x, 1),
    "repeat once": lambda x: x.repeat(1, 1, 1, 1),
    "positive": lambda x: +x,
    "dropout of nothing": lambda x: F.dropout(x, 0.0, True),
    "alpha dropout of nothing": lambda x: F.alpha_dropout(x, 0.0, True),
    "dropout in evaluation": lambda x: F.dropout2d(x, 0.5, False),
    "contiguous": lambda x: x.contiguous(),
    "slice": lambda x: x[:, :, 0:8],
    "view": lambda x: x.view(x.shape),
    "transpose": lambda x: x.transpose(1, 1),
}


def shared(function: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether what is written to the result is written to `x`, too."""
    before = x.clone()
    function(x).add_(1.0)
    changed = before - x
    return bool((changed.full() if isinstance(changed, tiling.TileTensor) else changed).any())


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("cuts", [[[0, 5, 8], [0, 2, 6]], [[0, 8], [0, 2, 6]]])
def test_a_result_shares_memory_where_one_device_does(name: str, cuts: list[list[int]]) -> None:
    function = FUNCTIONS[name]
    expected = shared(function, image(SHAPE))
    size = (len(cuts[0]) - 1) * (len(cuts[1]) - 1)
    found = on_threads(size, lambda exchanger: shared(function, tiling.tile(image(SHAPE), group=exchanger, cuts=cuts)))
    assert found == [expected] * size
