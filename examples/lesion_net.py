"""A small network of one's own that finds lesions: two strides, then the strongest answer anywhere in the image.

halocline train examples.lesion_net:layers --lesions --image-size 512 --samples 480 --epochs 4
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def _block(given: int, made: int, kernel: int, stride: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made), nn.ReLU()
    )


def layers() -> list[Callable[[], nn.Module]]:
    """Five layers; the last one answers with two classes."""
    return [
        _block(3, 8, 7, 2),
        _block(8, 16, 3, 2),
        _block(16, 16, 3, 1),
        _block(16, 16, 3, 2),
        lambda: nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2)),
    ]


def downsampled() -> list[Callable[[], nn.Module]]:
    """The same after the image was made four times smaller, as one does when it does not fit: the stripes are gone."""
    return [lambda: nn.Sequential(nn.AvgPool2d(4), _block(3, 8, 7, 2)()), *layers()[1:]]
