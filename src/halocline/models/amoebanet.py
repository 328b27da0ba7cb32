"""AmoebaNet-D, a network of cells that evolution found (Real et al., arXiv:1802.01548), for images of any size.

    layer  0    1    2    3 ..           ..           ..           last
           stem red. red. L/3 normal, reduction, L/3 normal, reduction, L/3 normal, classifier
    size   1/2  1/4  1/8               1/16                   1/32

A cell takes the outputs of the two cells before it, `now` and `before`, and returns the pair that the next one takes.
Each of its five new states is the sum of two operations on earlier states; its output joins some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.model import Model
from halocline.models.resnet import classifier, convolution

Edge = tuple[int, str]
"""A state and the operation on it. State 0 is `now`, state 1 `before`, state 2 the first new one, and so on."""


class Genotype(NamedTuple):
    """What evolution decided about a kind of cell."""

    sums: tuple[tuple[Edge, Edge], ...]
    """Each new state, as the sum of two."""
    output: tuple[int, ...]
    """The states that are joined."""
    stride: int
    """Of operations on states 0 and 1."""


# The states that a normal cell joins are those of the TensorFlow original, not of the paper's figure: with them come
# out the sizes that the GPipe paper lists for AmoebaNet-D (arXiv:1811.06965, table 1).
NORMAL = Genotype(
    (
        ((1, "conv_1x1"), (1, "max_pool_3x3")),
        ((1, "none"), (0, "conv_1x7_7x1")),
        ((0, "conv_1x1"), (0, "conv_1x7_7x1")),
        ((2, "max_pool_3x3"), (2, "none")),
        ((1, "avg_pool_3x3"), (5, "conv_1x1")),
    ),
    output=(0, 3, 4, 6),
    stride=1,
)
REDUCTION = Genotype(
    (
        ((0, "max_pool_2x2"), (0, "max_pool_3x3")),
        ((2, "none"), (1, "conv_3x3")),
        ((2, "conv_1x7_7x1"), (2, "max_pool_3x3")),
        ((3, "none"), (1, "max_pool_2x2")),
        ((2, "avg_pool_3x3"), (3, "conv_1x1")),
    ),
    output=(4, 5, 6),
    stride=2,
)


class Convolutions(nn.Sequential):
    """Convolutions with BatchNorm behind each and ReLU between them, for a state that has been through a ReLU."""

    def __init__(self, *convolutions: nn.Conv2d) -> None:
        layers: list[nn.Module] = []
        for conv in convolutions:
            layers += [nn.ReLU(inplace=True)] if layers else []
            layers += [conv, nn.BatchNorm2d(conv.out_channels)]
        super().__init__(*layers)


def _bottleneck(channels: int, *between: tuple[tuple[int, int], tuple[int, int]]) -> Convolutions:
    inner = channels // 4
    return Convolutions(
        convolution(channels, inner),
        *(convolution(inner, inner, kernel, stride) for kernel, stride in between),
        convolution(inner, channels),
    )


OPERATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "none": lambda c, s: nn.Identity(),  # asked of states of the cell's own size only
    "avg_pool_3x3": lambda c, s: nn.AvgPool2d(3, s, 1, count_include_pad=False),
    "max_pool_3x3": lambda c, s: nn.MaxPool2d(3, s, 1),
    "max_pool_2x2": lambda c, s: nn.MaxPool2d(2, s, ceil_mode=True),
    "conv_1x1": lambda c, s: Convolutions(convolution(c, c, 1, s)),
    "conv_3x3": lambda c, s: _bottleneck(c, ((3, 3), (s, s))),
    "conv_1x7_7x1": lambda c, s: _bottleneck(c, ((1, 7), (1, s)), ((7, 1), (s, 1))),
}
"""(channels, stride) -> the operation. Stride 2 halves an image, rounding up, whichever the operation."""


class FactorizedReduce(nn.Module):
    """Half the size without dropping what a stride would: every second pixel, and those one further down and right."""

    def __init__(self, given: int, out: int) -> None:
        super().__init__()
        self.even, self.odd = convolution(given, out // 2, 1, 2), convolution(given, out - out // 2, 1, 2)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        # The pixels beyond the border are zero. Only an odd size has any: an even one is spared the copy.
        padded = F.pad(x, (0, width % 2, 0, height % 2)) if height % 2 or width % 2 else x
        return self.norm(torch.cat([self.even(x), self.odd(padded[:, :, 1:, 1:])], dim=1))


class Cell(nn.Module):
    """From the pair (now, before) to the pair (output, now)."""

    def __init__(self, genotype: Genotype, channels: int, now: int, before: int, before_is_larger: bool) -> None:
        """`now` and `before` are the channels of what comes in, `channels` those of every state."""
        super().__init__()
        self.genotype = genotype
        self.now = Convolutions(convolution(now, channels))
        self.before: nn.Module | None = None
        if before_is_larger:
            self.before = FactorizedReduce(before, channels)
        elif before != channels:
            self.before = Convolutions(convolution(before, channels))
        self.operations = nn.ModuleList(
            OPERATIONS[name](channels, genotype.stride if state < 2 else 1)
            for pair in genotype.sums
            for state, name in pair
        )

    def forward(self, pair: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        now, before = (pair, pair) if isinstance(pair, Tensor) else pair
        states = [self.now(F.relu(now)), before if self.before is None else self.before(F.relu(before))]
        rectified: dict[int, Tensor] = {}
        steps = zip((step for pair in self.genotype.sums for step in pair), self.operations)
        for (first, one), (second, other) in zip(steps, steps):
            left = one(self._given(one, first[0], states, rectified))
            states.append(left + other(self._given(other, second[0], states, rectified)))
        return torch.cat([states[i] for i in self.genotype.output], dim=1), now

    @staticmethod
    def _given(operation: nn.Module, state: int, states: list[Tensor], rectified: dict[int, Tensor]) -> Tensor:
        """What an operation takes. Convolutions of one state share its ReLU, which is so kept once, not three times."""
        if not isinstance(operation, Convolutions):
            return states[state]
        if state not in rectified:
            rectified[state] = F.relu(states[state])
        return rectified[state]


class AmoebaHead(nn.Module):
    """From the last pair to logits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.classify = classifier(channels, classes)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.classify(pair[0])


def _stem(channels: int, out: int) -> nn.Module:
    return Convolutions(convolution(channels, out, 3, 2))


def amoebanet_d(*, num_layers: int = 18, num_filters: int = 416, num_classes: int = 10, channels: int = 3) -> Model:
    """AmoebaNet-D of `num_layers` normal cells (a multiple of three) and `num_filters` filters: num_layers + 6 layers.

    An image may have any size. BatchNorm wants more than one value per channel: to train on one sample at a time, an
    image must be larger than 32 in one dim.
    """
    if num_layers < 3 or num_layers % 3:
        below = max(3, num_layers // 3 * 3)
        raise ValueError(
            f"num_layers = {num_layers}: AmoebaNet-D has three equal runs of normal cells, which takes a multiple of "
            f"3: use {below}{f' or {below + 3}' if num_layers > 3 else ''}"
        )
    if num_filters < 8:
        raise ValueError(f"num_filters = {num_filters} leaves cells without filters: use 8 or more")
    width = num_filters // 4
    layers: list[Callable[[], nn.Module]] = [partial(_stem, channels, width)]
    now = before = width
    was_reduction = False
    normal = [NORMAL] * (num_layers // 3)
    for genotype in (REDUCTION, REDUCTION, *normal, REDUCTION, *normal, REDUCTION, *normal):
        width *= genotype.stride
        layers.append(partial(Cell, genotype, width, now, before, was_reduction))
        now, before, was_reduction = width * len(genotype.output), now, genotype is REDUCTION
    layers.append(partial(AmoebaHead, now, num_classes))
    return Model("amoebanet-d", layers, classes=num_classes, channels=channels, image=(224, 224))
