"""Every image model on tiles: outputs, all gradients and running statistics are those of one device, with a halo for
each operator and with fused ones (D2); the U-Net stays on tiles to its loss.
"""

from __future__ import annotations

import copy

import pytest
from torch import Tensor, nn

from halocline import tiling
from halocline.models.losses import SegmentationLoss
from harness.image_models import SMALL, net, small
from harness.ranks import assert_exact, image, on_threads

CUTS = {
    "2x2": ((40, 36), [[0, 20, 40], [0, 18, 36]]),
    "1x3 uneven, odd": ((41, 37), [[0, 41], [0, 7, 20, 37]]),
    "2x2 uneven, odd": ((39, 43), [[0, 11, 39], [0, 25, 43]]),
}
RESNETS = ("resnet-v1-14", "resnet-v2-11", "resnet18", "resnet50")


@pytest.mark.parametrize("where", ["2x2", "1x3 uneven, odd"])
@pytest.mark.parametrize("name", SMALL)
def test_equals_one_device(name: str, where: str) -> None:
    size, cuts = CUTS[where]
    assert_exact(net(small(name)), (2, 3, *size), cuts=cuts, tolerance=1e-10, tiled=name == "unet")


@pytest.mark.parametrize("norm", ["instance", "group"])
@pytest.mark.parametrize("rise", ["transposed", "bilinear"])
def test_every_unet_equals_one_device(norm: str, rise: str) -> None:
    size, cuts = CUTS["2x2 uneven, odd"]
    assert_exact(net(small("unet", norm=norm, rise=rise)), (2, 3, *size), cuts=cuts, tolerance=1e-10, tiled=True)


class Fused(nn.Module):
    """A model that fetches halos for several of its layers at a time."""

    def __init__(self, layers: nn.Sequential, group: int) -> None:
        super().__init__()
        self.layers, self.group = layers, group

    def forward(self, x: Tensor) -> Tensor:
        with tiling.fused(self.group):
            return self.layers(x)


@pytest.mark.parametrize(
    ("name", "group"),
    [*((name, group) for name in RESNETS for group in (1, 3)), ("amoebanet-d", 2), ("unet", 2)],
)
def test_fused_halos_equal_one_device(name: str, group: int) -> None:
    size, cuts = CUTS["2x2" if group == 1 else "1x3 uneven, odd"]
    assert_exact(Fused(net(small(name)), group), (2, 3, *size), cuts=cuts, tolerance=1e-10)


@pytest.mark.parametrize("dice", [0.0, 0.5])
def test_the_loss_of_the_unet_stays_on_tiles(dice: float) -> None:
    """Each rank has its part of the scores and of the classes; the loss is one device's on every rank."""
    model = net(small("unet"))
    loss, x = SegmentationLoss(dice), image((2, 3, 21, 26))
    classes = (image((2, 21, 26), salt=3) * 3).long().abs() % 5
    classes[0, :7, 3:20] = -100
    copies = [copy.deepcopy(model) for _ in range(4)]
    expected = loss(model(x), classes)

    def run(exchanger: tiling.Exchanger) -> Tensor:
        scores = copies[exchanger.rank](tiling.tile(x, (2, 2), exchanger))
        assert isinstance(scores, tiling.TileTensor)
        target = tiling.tile(classes, group=exchanger, cuts=scores.spec.cuts)
        assert target.local.shape[-2:] == scores.local.shape[-2:]
        return loss(scores, target)

    for found in on_threads(4, run):
        assert not isinstance(found, tiling.TileTensor)
        assert abs(found - expected) < 1e-10
