"""A U-Net (Ronneberger et al., arXiv:1505.04597) as a sequence of layers: a class for every pixel of any image.

    image ──> down ──────────────── skip ────────────────> up ──> head ──> scores
                └─> down ────────── skip ──────────> up ──┘
                      └─> ...      bottom      ... ──┘

What a layer hands on is a tuple: the tensor at work, then the skips that are still to be joined, newest first. So a cut
between any two layers carries all that the rest needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.losses import SegmentationLoss
from halocline.models.model import SEGMENTATION, Model

Norm = Callable[[int], nn.Module]
Handed = Tensor | tuple[Tensor, ...]

NORMS: dict[str, Norm] = {
    "batch": nn.BatchNorm2d,
    "instance": partial(nn.InstanceNorm2d, affine=True),
    "group": lambda channels: nn.GroupNorm(_groups(channels), channels),
    "none": lambda channels: nn.Identity(),
}
RISES = ("transposed", "bilinear")


def _groups(channels: int) -> int:
    """Up to 32 groups, as many as divide the channels."""
    return next(n for n in (32, 16, 8, 4, 2, 1) if channels % n == 0)


def _block(given: int, out: int, norm: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (given, out):
        conv = nn.Conv2d(channels, out, 3, padding=1, bias=norm == "none")
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, NORMS[norm](out), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Bottom(nn.Module):
    """(x, ...) -> (x worked on, ...)."""

    def __init__(self, given: int, out: int, norm: str) -> None:
        super().__init__()
        self.block = _block(given, out, norm)

    def forward(self, handed: Handed) -> Handed:
        x, *skips = _parts(handed)
        return self.block(x), *skips


class Down(Bottom):
    """(x, ...) -> (half the size, x worked on, ...)."""

    def forward(self, handed: Handed) -> Handed:
        skip, *skips = super().forward(handed)
        # An odd size is rounded up, so that no pixel is left out; on the way back up it is cropped.
        return F.max_pool2d(skip, 2, ceil_mode=True), skip, *skips


class Up(nn.Module):
    """(x, skip, ...) -> (twice the size, joined with the skip, ...)."""

    def __init__(self, given: int, out: int, norm: str, rise: str) -> None:
        super().__init__()
        self.transposed = rise == "transposed"
        self.rise: nn.Module = nn.ConvTranspose2d(given, out, 2, 2) if self.transposed else nn.Conv2d(given, out, 1)
        self.block = _block(2 * out, out, norm)

    def forward(self, handed: Handed) -> Handed:
        x, skip, *skips = _parts(handed)
        height, width = skip.shape[-2:]
        x = self.rise(x)
        if not self.transposed:
            # The 1x1 convolution came first: it may change places with the resizing, and so it works on fewer pixels.
            x = F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
        elif tuple(x.shape[-2:]) != (height, width):
            x = x[..., :height, :width]
        joined = self.block(torch.cat([skip, x], dim=1))
        return (joined, *skips) if skips else joined


def _parts(handed: Handed) -> tuple[Tensor, ...]:
    return (handed,) if isinstance(handed, Tensor) else handed


def unet(
    *,
    depth: int = 4,
    base_width: int = 64,
    num_classes: int = 2,
    norm: str = "batch",
    rise: str = "transposed",
    dice: float = 0.0,
    channels: int = 3,
) -> Model:
    """A U-Net that halves the image `depth` times, doubling its `base_width` channels: 2 x depth + 2 layers.

    `norm` is batch, instance, group or none; `rise` (how an image grows) is transposed or bilinear; `dice` is the
    weight of the soft Dice loss beside cross-entropy. Pixels of class -100 do not count.
    """
    if depth < 1:
        raise ValueError(f"depth = {depth}: a U-Net halves the image at least once: use 1 or more")
    if norm not in NORMS:
        raise ValueError(f"norm = {norm!r} is not known: use one of {', '.join(NORMS)}")
    if rise not in RISES:
        raise ValueError(f"rise = {rise!r} is not known: use {' or '.join(RISES)}")
    widths = [base_width * 2**level for level in range(depth + 1)]
    layers: list[Callable[[], nn.Module]] = [
        *(partial(Down, given, out, norm) for given, out in zip([channels, *widths], widths[:-1])),
        partial(Bottom, widths[-2], widths[-1], norm),
        *(partial(Up, given, out, norm, rise) for given, out in zip(widths[:0:-1], widths[-2::-1])),
        partial(nn.Conv2d, base_width, num_classes, 1),
    ]
    return Model("unet", layers, SEGMENTATION, SegmentationLoss(dice), num_classes, channels, image=(256, 256))
