"""The head of an image classifier: the mean over all pixels, so that any image size will do, then logits."""

from __future__ import annotations

from torch import nn


def classifier(channels: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
