"""Two small models for checking plans: quick on one core, and with what makes plans hard to get right (strides,
padding, BatchNorm before and after, a shortcut, pooling, dropout). Eight layers each, for images of any size from 8x8.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.model import Model


class Shortcut(nn.Module):
    """Two convolutions with BatchNorm and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.second_norm(self.second(y)))


def small_cnn(*, num_classes: int = 10, channels: int = 3) -> Model:
    """A residual network in miniature."""
    layers = [
        lambda: nn.Sequential(nn.Conv2d(channels, 8, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        lambda: Shortcut(8),
        lambda: nn.MaxPool2d(3, stride=2, padding=1),
        lambda: nn.Sequential(nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        lambda: Shortcut(12),
        lambda: nn.Conv2d(12, 16, 3, stride=2, padding=1),
        lambda: nn.Sequential(nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(16, num_classes),
    ]
    return Model("small-cnn", layers, classes=num_classes, channels=channels)


def small_mlp(*, num_classes: int = 10, channels: int = 3) -> Model:
    """A perceptron with dropout on a coarse view of the image."""
    width = 16 * channels

    def hidden() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1))

    layers = [
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        *([hidden] * 6),
        lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_classes)),
    ]
    return Model("small-mlp", layers, classes=num_classes, channels=channels)
