"""The losses of segmentation and of language models. Each averages over a sample's pixels or words first and then over
samples: every sample weighs the same, however many of its pixels or words count, so a batch cut into microbatches,
lanes or replicas in any way has the loss and gradient of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""The target of a pixel that does not count, or of a token that is not to be predicted."""
SMOOTH = 1.0
"""Added to both sides of the Dice fraction: a class that is neither there nor predicted counts as found."""


@dataclass(frozen=True)
class SegmentationLoss:
    """A class for every pixel: cross-entropy, and soft Dice beside it where asked for.

    (scores N x C x H x W, classes N x H x W) -> the mean over samples. Everything is a sum over pixels of a sample, so
    that it holds on tiles as they are.
    """

    dice: float = 0.0
    """Weight of the soft Dice loss, 1 - 2 |p t| / (|p| + |t|) for each class; cross-entropy has weight 1."""
    ignore: int = IGNORED
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


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of (B, S, vocabulary) logits and (B, S) words. A sample without a word to predict counts as one
    without loss; where all samples predict equally many words, as in causal models, this is the mean over words."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # a sum over the vocabulary needs more than 8 bits
    losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="none")
    words = (target != IGNORED).sum(-1).clamp(min=1)
    return (losses.unflatten(0, target.shape).sum(-1) / words).mean()
