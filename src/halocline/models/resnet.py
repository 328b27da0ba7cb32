"""ResNets as sequences of layers, for images of any size, in the CIFAR style and in ImageNet's.

CIFAR: three groups of n blocks at full, half and quarter size, with a layer for the stem, for each block and for the
head. v1 (He et al., arXiv:1512.03385): blocks of two convolutions, depth 6n+2. v2 (arXiv:1603.05027): bottlenecks whose
norm and ReLU stand in front of each convolution, depth 9n+2.

ImageNet: ResNet-18 to 152 (arXiv:1512.03385) and the wide ones (Zagoruyko and Komodakis, arXiv:1605.07146), as
torchvision builds them: the 3x3 convolution of a bottleneck strides. A layer for each block and one for the head; the
first layer also holds the stem. Names inside a layer are torchvision's, and `torchvision_names` says which of its
blocks a layer is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.model import Model
from halocline.models.zoo import blocks_of


def convolution(
    given: int, out: int, kernel: int | tuple[int, int] = 1, stride: int | tuple[int, int] = 1
) -> nn.Conv2d:
    """As image models use it: no bias, since a norm follows, and He's initial values. Padded so that stride 1 keeps the
    size and stride 2 halves it, rounding up."""
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    conv = nn.Conv2d(given, out, sizes, stride, (sizes[0] // 2, sizes[1] // 2), bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv


def classifier(channels: int, classes: int) -> nn.Sequential:
    """The head of an image model: the mean over all pixels, so that any image size will do, then logits."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


# -- CIFAR ---------------------------------------------------------------------------------------------------------


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


# -- ImageNet ------------------------------------------------------------------------------------------------------

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Depth -> blocks in each group. From 50 on they are bottlenecks."""
EXPANSION = 4
"""A bottleneck puts out this many times the group's width."""


class ResidualBlock(nn.Module):
    """Convolutions with norms, added to what came in."""

    def __init__(self, given: int, shapes: tuple[tuple[int, int], ...], stride: int, share: float) -> None:
        """`shapes`: kernel and output channels of each convolution. The first 3x3 one strides. `share`: how much of
        what comes out is the block's own at the start, the rest being what came in."""
        super().__init__()
        self.count = len(shapes)
        channels, step = given, stride
        for number, (kernel, out) in enumerate(shapes, 1):
            setattr(self, f"conv{number}", convolution(channels, out, kernel, step if kernel > 1 else 1))
            setattr(self, f"bn{number}", nn.BatchNorm2d(out))
            channels, step = out, 1 if kernel > 1 else step
        nn.init.constant_(getattr(self, f"bn{self.count}").weight, share)
        self.downsample: nn.Module | None = None
        if stride > 1 or given != channels:
            self.downsample = nn.Sequential(convolution(given, channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(1, self.count + 1):
            if number > 1:
                y = F.relu(y, inplace=True)
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class First(nn.Module):
    """The stem, to a quarter of the size, and the first block."""

    def __init__(self, channels: int, out: int, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(channels, out, 7, 2), nn.BatchNorm2d(out)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.block = block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True)))


def imagenet_resnet(
    *,
    depth: int = 50,
    width: int = 1,
    num_classes: int = 1000,
    base_width: int = 64,
    blocks: int | None = None,
    channels: int = 3,
) -> Model:
    """ResNet-`depth`, with bottlenecks `width` times as wide inside; for a trial with fewer `blocks`, in the same
    proportions."""
    if depth not in BLOCKS:
        raise ValueError(f"there is no ImageNet ResNet of depth {depth}: use one of {', '.join(map(str, BLOCKS))}")
    bottleneck = depth >= 50
    if width < 1 or (width > 1 and not bottleneck):
        raise ValueError(f"width = {width} does not go with depth {depth}: only bottlenecks (50, 101, 152) are widened")
    # Blocks that each add their full share let values and gradients grow with depth: 33 of them multiply rounding
    # errors by millions. With 1/sqrt(blocks) they stay, and unlike with zeros all convolutions learn from the start.
    share = sum(BLOCKS[depth]) ** -0.5
    layers: list[Callable[[], nn.Module]] = []
    given = base_width
    for group, count in enumerate(BLOCKS[depth] if blocks is None else _fewer(BLOCKS[depth], blocks)):
        size = base_width * 2**group
        inner = size * width
        shapes = ((1, inner), (3, inner), (1, size * EXPANSION)) if bottleneck else ((3, size), (3, size))
        for number in range(count):
            layers.append(partial(ResidualBlock, given, shapes, 2 if group and not number else 1, share))
            given = shapes[-1][1]
    layers[0] = partial(First, channels, base_width, layers[0])
    layers.append(partial(classifier, given, num_classes))
    name = f"resnet{depth}" if width == 1 else f"wide-resnet{depth}_{width}"
    return Model(name, layers, classes=num_classes, channels=channels, image=(224, 224))


def _fewer(groups: tuple[int, ...], blocks: int) -> list[int]:
    """At least a block in each group; what is left goes one by one to the group that lacks the most of its share."""
    if blocks < len(groups):
        raise ValueError(f"blocks = {blocks} cannot fill {len(groups)} groups: use {len(groups)} or more")
    counts = [1] * len(groups)
    while sum(counts) < blocks:
        counts[max(range(len(groups)), key=lambda g: groups[g] / sum(groups) * blocks - counts[g])] += 1
    return counts


def torchvision_names(depth: int) -> dict[str, str]:
    """Our name -> torchvision's, up to the name inside the block: {"0.": "", "0.block.": "layer1.0.", ...}."""
    names = {"0.": "", "0.block.": "layer1.0."}
    layer = 0
    for group, count in enumerate(BLOCKS[depth], 1):
        for number in range(count):
            if layer:
                names[f"{layer}."] = f"layer{group}.{number}."
            layer += 1
    names[f"{layer}.2."] = "fc."
    return names
