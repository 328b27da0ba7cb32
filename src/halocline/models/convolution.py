"""A convolution as the image models use it: no bias, since a norm follows, and He's initial values."""

from __future__ import annotations

from torch import nn


def convolution(
    given: int, out: int, kernel: int | tuple[int, int] = 1, stride: int | tuple[int, int] = 1
) -> nn.Conv2d:
    """Padded so that stride 1 keeps the size and stride 2 halves it, rounding up."""
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    conv = nn.Conv2d(given, out, sizes, stride, (sizes[0] // 2, sizes[1] // 2), bias=False)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return conv
