"""Small networks of the usual kinds, plain torch, that tiles are tried on: residual networks and U-Nets.

`test_modules_own.py` holds each to one device; the table of models in docs/tiling.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """A residual block: two 3x3 convolutions, or a bottleneck of 1x1, 3x3 and 1x1."""

    def __init__(self, given: int, out: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        if bottleneck:
            mid = out // 2
            shapes = [(given, mid, 1, 1), (mid, mid, 3, stride), (mid, out, 1, 1)]
        else:
            shapes = [(given, out, 3, stride), (out, out, 3, 1)]
        layers: list[nn.Module] = []
        for a, b, kernel, step in shapes:
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        self.short = nn.Sequential(nn.Conv2d(given, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.short(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, bottleneck: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(
            *[Residual(a, b, s, bottleneck) for a, b, s in ((8, 8, 1), (8, 12, 2), (12, 16, 2))]
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)))


class UNet(nn.Module):
    """Down by max pooling, up by transposed convolutions or interpolation, with skips; in 1, 2 or 3 dims."""

    def __init__(self, norm: Norm, dims: int = 2, up: str = "transposed", depth: int = 2, width: int = 4) -> None:
        super().__init__()
        self.up_by, self.mode = up, ("linear", "bilinear", "trilinear")[dims - 1]
        self.conv: type[nn.Module] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
        self.pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1](2)
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(self.block(a, b, norm) for a, b in zip([3, *widths], widths))
        self.rise = nn.ModuleList(
            transposed(2 * w, w, 2, 2) if up == "transposed" else self.conv(2 * w, w, 1) for w in widths[:-1]
        )
        self.merge = nn.ModuleList(self.block(2 * w, w, norm) for w in widths[:-1])
        self.head = self.conv(width, 2, 1)

    def block(self, given: int, out: int, norm: Norm) -> nn.Module:
        layers: list[nn.Module] = []
        for a in (given, out):
            layers += [self.conv(a, out, 3, padding=1), norm(out), nn.LeakyReLU(0.1, inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for block in self.down[:-1]:
            skips.append(block(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for rise, merge, skip in zip(self.rise[::-1], self.merge[::-1], skips[::-1]):
            if self.up_by == "transposed":
                x = rise(x)
                # What pooling dropped from an odd size is padded, as U-Nets do.
                missing = [(0, skip.shape[d] - x.shape[d]) for d in range(x.ndim - 1, 1, -1)]
                x = F.pad(x, [n for pair in missing for n in pair])
            else:
                x = rise(F.interpolate(x, size=skip.shape[2:], mode=self.mode, align_corners=False))
            x = merge(torch.cat([skip, x], dim=1))
        return self.head(x)


class Factorized(nn.Module):
    """The factorized reduction of searched cells: every second pixel, and every second one shifted by one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1, 2, bias=False), nn.Conv2d(3, 4, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = nn.ZeroPad2d((0, 1, 0, 1))(x)[:, :, 1:, 1:]
        return self.norm(torch.cat([self.first(x), self.second(shifted)], dim=1))


class SqueezeExcite(nn.Module):
    """Channels weighted by what the whole image says, spatial attention and a pixel shuffle to a larger image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect")
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 4, 1), nn.SiLU(), nn.Conv2d(4, 8, 1), nn.Sigmoid()
        )
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)
        self.grow = nn.Conv2d(8, 12, 3, padding="same", dilation=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        x = x * self.gate(x)
        x = x * torch.sigmoid(self.spatial(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], dim=1)))
        return F.pixel_shuffle(self.grow(x), 2)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "BatchNorm ResNet, basic blocks": (partial(ResNet, bottleneck=False), 2),
    "BatchNorm ResNet, bottlenecks": (partial(ResNet, bottleneck=True), 2),
    "U-Net, transposed convolutions, BatchNorm": (partial(UNet, nn.BatchNorm2d), 2),
    "U-Net, bilinear upsampling, BatchNorm": (partial(UNet, nn.BatchNorm2d, up="interpolated"), 2),
    "U-Net, transposed convolutions, InstanceNorm": (partial(UNet, partial(nn.InstanceNorm2d, affine=True)), 2),
    "U-Net, bilinear upsampling, GroupNorm": (partial(UNet, partial(nn.GroupNorm, 2), up="interpolated"), 2),
    "U-Net, 1-D": (partial(UNet, nn.BatchNorm1d, dims=1), 1),
    "U-Net, 3-D, transposed convolutions, InstanceNorm": (partial(UNet, nn.InstanceNorm3d, dims=3), 3),
    "U-Net, 3-D, trilinear upsampling, BatchNorm": (partial(UNet, nn.BatchNorm3d, dims=3, up="interpolated"), 3),
    "Factorized reduction (AmoebaNet, NASNet)": (Factorized, 2),
    "Squeeze and excitation, spatial attention, pixel shuffle": (SqueezeExcite, 2),
}
"""By name how to build a network, and its spatial dims."""
