"""Whole models of Hugging Face transformers, unmodified, in training: outputs, all gradients and running statistics are
those of one device.
"""

import pytest
import torch

from harness.model_zoo import ENTRIES
from harness.ranks import assert_exact

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' and torch's own; this is about their numbers


def cuts(size: tuple[int, int], grid: str) -> list[list[int]]:
    """Uneven tiles, as many as `grid` says: cuts at 0.6 of the height and 0.4 of the width."""
    rows, columns = (int(n) for n in grid.split("x"))
    height, width = size
    return [
        [0, height] if rows == 1 else [0, int(height * 0.6), height],
        [0, width] if columns == 1 else [0, int(width * 0.4), width],
    ]


@pytest.mark.parametrize("name", ENTRIES)
def test_equals_one_device(name: str) -> None:
    entry = ENTRIES[name]
    torch.manual_seed(0)
    model = entry.build()
    shape = (2, entry.channels, *entry.size)
    assert_exact(model, shape, cuts=cuts(entry.size, "2x2"), tolerance=1e-10)


@pytest.mark.parametrize("name", ["ResNet (basic)", "ConvNeXt", "EfficientNet", "SegFormer"])
def test_equals_one_device_on_two_tiles(name: str) -> None:
    entry = ENTRIES[name]
    torch.manual_seed(1)
    assert_exact(entry.build(), (2, 3, *entry.size), cuts=cuts(entry.size, "1x2"), tolerance=1e-10)
