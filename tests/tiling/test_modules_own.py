"""Residual networks and U-Nets of every kind, in training: outputs, all gradients and running statistics are those of
one device, with or without fused halos.
"""

import pytest
import torch
from networks import NETWORKS, UNet
from ranks import assert_exact
from torch import Tensor, nn

from halocline import tiling

SIZES = {1: (2, 3, 39), 2: (2, 3, 37, 29), 3: (1, 3, 9, 14, 11)}
CUTS = {
    1: {"2": [[0, 23, 39]], "4": [[0, 11, 18, 31, 39]]},
    2: {"1x2": [[0, 37], [0, 11, 29]], "2x2": [[0, 21, 37], [0, 12, 29]]},
    3: {"1x1x2": [[0, 9], [0, 14], [0, 4, 11]], "1x2x2": [[0, 9], [0, 8, 14], [0, 5, 11]]},
}
CASES = [(name, grid) for name, (_, dims) in NETWORKS.items() for grid in CUTS[dims]]


@pytest.mark.parametrize(("name", "grid"), CASES)
def test_equals_one_device(name: str, grid: str) -> None:
    build, dims = NETWORKS[name]
    torch.manual_seed(0)
    assert_exact(build(), SIZES[dims], cuts=CUTS[dims][grid], tolerance=1e-10)


class Fused(nn.Module):
    """A network whose sequences fetch the halos of three layers at once."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        with tiling.fused(3):
            return self.network(x)


@pytest.mark.parametrize("name", ["BatchNorm ResNet, basic blocks", "U-Net, transposed convolutions, BatchNorm"])
def test_equals_one_device_with_fused_halos(name: str) -> None:
    torch.manual_seed(0)
    assert_exact(Fused(NETWORKS[name][0]()), SIZES[2], cuts=CUTS[2]["2x2"], tolerance=1e-10)


def test_a_deep_network_on_a_small_image_runs_on_empty_tiles() -> None:
    torch.manual_seed(0)
    assert_exact(UNet(nn.BatchNorm2d, depth=3), (2, 3, 13, 11), cuts=[[0, 12, 13], [0, 2, 11]], tolerance=1e-10)
