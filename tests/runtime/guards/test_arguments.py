"""What an engine is given: ranks that share a stage and begin apart are found before the first step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halocline.plan import Layout, Plan
from halocline.runtime.guards.arguments import fingerprints, require_equal


def summed(seeds: tuple[int, int]) -> torch.Tensor:
    """What two replicas of two stages say together, each built from a seed of its own."""
    layout = Layout(Plan.uniform(2, replicas=2))
    marks = []
    for rank in range(4):
        torch.manual_seed(seeds[rank // 2])
        layers = [nn.Linear(8, 8), nn.BatchNorm1d(8)]
        marks.append(fingerprints(layout, rank, {rank % 2: [("0", layers[rank % 2])]}, torch.device("cpu")))
    return torch.stack(marks).sum(0)


def test_the_same_beginning() -> None:
    require_equal(summed((3, 3)))


def test_different_beginnings() -> None:
    with pytest.raises(ValueError, match="the 2 ranks that share stage 0 begin with different weights: pass functions"):
        require_equal(summed((3, 4)))
