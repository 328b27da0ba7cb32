"""Sampling an image at places that its own values or plain boxes name: RoIAlign and deformable convolution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.ranks import assert_exact, image

GRIDS: tuple[Any, ...] = ({"grid": (1, 3)}, {"cuts": ((0, 6, 9), (0, 2, 12))})
BOXES = torch.tensor([[0, 1, 1, 9, 7], [1, 0.5, 2, 6, 6.5], [0, 3, 0, 4, 8]], dtype=torch.float64).requires_grad_()


def bilinear(input: Tensor, sample: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Of each box of a sample, the values at rows y and columns x (boxes, bins, points), as torchvision has it."""
    _, channels, height, width = input.size()
    y, x = y.clamp(min=0), x.clamp(min=0)
    top, left = y.int().clamp(max=height - 1), x.int().clamp(max=width - 1)
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    low, near = y - top, x - left

    def read(rows: Tensor, columns: Tensor) -> Tensor:
        return input[
            sample[:, None, None, None, None, None],
            torch.arange(channels)[None, :, None, None, None, None],
            rows[:, None, :, None, :, None],
            columns[:, None, None, :, None, :],
        ]

    def both(a: Tensor, b: Tensor) -> Tensor:
        return a[:, None, :, None, :, None] * b[:, None, None, :, None, :]

    above = both(1 - low, 1 - near) * read(top, left) + both(1 - low, near) * read(top, right)
    return above + both(low, 1 - near) * read(bottom, left) + both(low, near) * read(bottom, right)


def roi_align(input: Tensor, boxes: Tensor, bins: int = 3, points: int = 2) -> Tensor:
    start, end = boxes[:, [2, 1]] - 0.5, boxes[:, [4, 3]] - 0.5
    step = ((end - start) / bins)[:, :, None, None]
    steps = torch.arange(bins)[:, None] + (torch.arange(points) + 0.5) / points
    rows, columns = (start[:, :, None, None] + steps * step).unbind(1)
    return bilinear(input, boxes[:, 0].int(), rows, columns).mean((-2, -1))


@pytest.mark.parametrize("kwargs", GRIDS)
def test_roi_align_equals_one_device(kwargs: Any) -> None:
    assert_exact(roi_align, (2, 3, 9, 12), plain=[BOXES], **kwargs)


def deformable(x: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
    height, width = x.shape[-2:]
    moved = F.conv2d(x, offsets, padding=1)
    rows, columns = torch.arange(height, dtype=x.dtype)[:, None], torch.arange(width, dtype=x.dtype)
    total = torch.zeros_like(x[:, :1])
    for tap in range(9):
        y = (rows + tap // 3 - 1 + moved[:, 2 * tap]) * 2 / (height - 1) - 1
        x_ = (columns + tap % 3 - 1 + moved[:, 2 * tap + 1]) * 2 / (width - 1) - 1
        found = F.grid_sample(x, torch.stack([x_, y], -1), align_corners=True)
        total = total + torch.einsum("bchw,oc->bohw", found, weight[:, :, tap])
    return total


@pytest.mark.parametrize("kwargs", GRIDS)
def test_a_deformable_convolution_equals_one_device(kwargs: Any) -> None:
    plain = [(0.1 * image((18, 3, 3, 3))).requires_grad_(), image((4, 3, 9), 1).requires_grad_()]
    assert_exact(deformable, (2, 3, 9, 12), plain=plain, tolerance=1e-11, tiled=True, **kwargs)
