"""The loss of a class for every pixel: cross-entropy, and soft Dice beside it where asked for.

Each sample counts the same, however many of its pixels are labelled, so the mean over a batch does not depend on how it
is cut into microbatches. Everything is a sum over pixels of a sample, so that it holds on tiles as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

SMOOTH = 1.0
"""Added to both sides of the Dice fraction: a class that is neither there nor predicted counts as found."""


@dataclass(frozen=True)
class SegmentationLoss:
    """(scores N x C x H x W, classes N x H x W) -> the mean over samples."""

    dice: float = 0.0
    """Weight of the soft Dice loss, 1 - 2 |p t| / (|p| + |t|) for each class; cross-entropy has weight 1."""
    ignore: int = -100
    """The class of pixels that do not count."""

    def __call__(self, scores: Tensor, target: Tensor) -> Tensor:
        pixels = tuple(range(1, target.ndim))
        known = target != self.ignore
        each = F.cross_entropy(scores, target, ignore_index=self.ignore, reduction="none")
        loss = (each.sum(pixels) / known.sum(pixels).clamp(min=1)).mean()
        return loss + self.dice * self._dice(scores, target, known) if self.dice else loss

    def _dice(self, scores: Tensor, target: Tensor, known: Tensor) -> Tensor:
        pixels = tuple(range(2, scores.ndim))
        found = F.softmax(scores, dim=1) * known.unsqueeze(1)
        classes = scores.shape[1]
        there = F.one_hot(target.where(known, 0), classes).movedim(-1, 1) * known.unsqueeze(1)
        both = (found * there).sum(pixels)
        return (1 - (2 * both + SMOOTH) / (found.sum(pixels) + there.sum(pixels) + SMOOTH)).mean()
