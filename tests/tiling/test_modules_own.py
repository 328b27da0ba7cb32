"""Residual networks and U-Nets of every kind, in training: outputs, all gradients and running statistics are those of
one device, with or without fused halos.
"""

import pytest
import torch
from torch import Tensor, nn

from halocline import tiling
from halocline.runtime.proof.norms import WrittenNorms
from halocline.tiling.strides import CHANNELS_LAST
from harness.networks import NETWORKS, UNet
from harness.ranks import assert_exact

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


class ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=CHANNELS_LAST[x.ndim])


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


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", [name for name, (_, dims) in NETWORKS.items() if dims > 1])
def test_equals_one_device_in_channels_last(name: str, batch: int) -> None:
    """One sample, tiles down to one pixel, channels last: strides that fit several memory formats."""
    build, dims = NETWORKS[name]
    torch.manual_seed(0)
    net = build().to(memory_format=CHANNELS_LAST[dims + 2])
    cuts = [[0, 17, 20], [0, 7, 24]] if dims == 2 else [[0, 8], [0, 3, 8], [0, 5, 8]]
    with WrittenNorms():  # torch misreads some of its own gradients
        assert_exact(nn.Sequential(ChannelsLast(), net), (batch, 3, *[c[-1] for c in cuts]), cuts=cuts, tolerance=1e-10)
