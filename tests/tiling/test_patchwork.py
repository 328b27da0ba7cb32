"""A patchwork: pixels of the pieces that are here, and a plain word about those that are not."""

from __future__ import annotations

import pytest
import torch

from halocline.tiling.patchwork import Patchwork


def test_a_patchwork_names_what_it_lacks() -> None:
    patchwork = Patchwork((4, 6), torch.float32, [(((0, 2), (0, 3)), torch.arange(6.0).view(2, 3))])
    assert patchwork[1:2][0:1, 1:3].tolist() == [[4, 5]]
    with pytest.raises(ValueError, match=r"needs box \(\(1, 3\), \(0, 3\)\) .* given \(\(0, 2\), \(0, 3\)\)"):
        patchwork[1:3, 0:3]


def test_a_lane_without_samples_reads_nothing() -> None:
    """Evaluating one sample on two lanes failed: the lane that has none of it asked for a box that nobody had read."""
    images = Patchwork((1, 3, 4, 5), torch.float64, [])
    assert images[0:0, 0:3, 0:4, 0:5].shape == (0, 3, 4, 5)
    assert images[0:0].whole().dtype == torch.float64
    with pytest.raises(ValueError, match="was given nothing"):
        images.whole()
