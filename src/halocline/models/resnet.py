"""ResNets in the CIFAR style, with three groups of n blocks at full, half and quarter size, for images of any size.

v1 (He et al., arXiv:1512.03385): blocks of two convolutions, depth 6n+2. v2 (arXiv:1603.05027): bottlenecks whose norm
and ReLU stand in front of each convolution, depth 9n+2. Both are 3n+2 layers: a stem, the blocks, the head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.classifier import classifier
from halocline.models.convolution import convolution
from halocline.models.depth import blocks_of
from halocline.models.model import Model


class Basic(nn.Module):
    """v1: two 3x3 convolutions with norms, added to what came in."""

    def __init__(self, given: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = convolution(given, out, 3, stride), nn.BatchNorm2d(out)
        self.second, self.second_norm = convolution(out, out, 3), nn.BatchNorm2d(out)
        self.shortcut = convolution(given, out, 1, stride) if stride > 1 or given != out else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)), inplace=True)
        y = self.second_norm(self.second(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)


class PreActivation(nn.Module):
    """v2: a norm and a ReLU, then a convolution, three times (1x1, 3x3, 1x1), added to what came in."""

    def __init__(self, given: int, inner: int, out: int, stride: int, activated: bool) -> None:
        """`activated`: what comes in has been through a norm and a ReLU, so the block does without its first ones."""
        super().__init__()
        body: list[nn.Module] = []
        for a, b, kernel, step in ((given, inner, 1, stride), (inner, inner, 3, 1), (inner, out, 1, 1)):
            if body or not activated:
                body += [nn.BatchNorm2d(a), nn.ReLU(inplace=True)]
            body.append(convolution(a, b, kernel, step))
        self.body = nn.Sequential(*body)
        self.shortcut = convolution(given, out, 1, stride) if stride > 1 or given != out else None

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + (x if self.shortcut is None else self.shortcut(x))


def _stem(channels: int, out: int) -> nn.Module:
    return nn.Sequential(convolution(channels, out, 3), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


def _activated_head(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(inplace=True), *classifier(channels, classes))


def resnet_v1(*, depth: int = 20, num_classes: int = 10, base_width: int = 16, channels: int = 3) -> Model:
    """ResNet v1 of depth 6n+2: widths of base_width x 1, 2 and 4."""
    n = blocks_of(1, depth)
    layers: list[Callable[[], nn.Module]] = [partial(_stem, channels, base_width)]
    given = base_width
    for group in range(3):
        for block in range(n):
            out = base_width * 2**group
            layers.append(partial(Basic, given, out, 2 if group and not block else 1))
            given = out
    layers.append(partial(classifier, given, num_classes))
    return Model(f"resnet-v1-{depth}", layers, classes=num_classes, channels=channels, image=(32, 32))


def resnet_v2(*, depth: int = 110, num_classes: int = 10, base_width: int = 16, channels: int = 3) -> Model:
    """ResNet v2 of depth 9n+2: bottlenecks of base_width x 1, 4 and 8 that put out base_width x 4, 8 and 16."""
    n = blocks_of(2, depth)
    layers: list[Callable[[], nn.Module]] = [partial(_stem, channels, base_width)]
    given = base_width
    for group, (inner, out) in enumerate(((1, 4), (4, 8), (8, 16))):
        for block in range(n):
            stride = 2 if group and not block else 1
            activated = not group and not block
            layers.append(partial(PreActivation, given, base_width * inner, base_width * out, stride, activated))
            given = base_width * out
    layers.append(partial(_activated_head, given, num_classes))
    return Model(f"resnet-v2-{depth}", layers, classes=num_classes, channels=channels, image=(32, 32))
