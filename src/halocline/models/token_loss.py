"""The loss of language models: cross-entropy over the words of each sample, then the mean over samples.

Samples may have different numbers of words to predict (a masked model predicts some, targets elsewhere are -100). Each
sample's words are averaged first, so every sample weighs the same, and a batch cut into microbatches, lanes or replicas
in any way has the loss and gradient of the whole. Where all samples predict equally many words, as in causal models,
this is the mean over words.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""The target of a token that is not to be predicted."""


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Of (B, S, vocabulary) logits and (B, S) words. A sample without a word to predict counts as one without loss."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()  # a sum over the vocabulary needs more than 8 bits
    losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="none")
    words = (target != IGNORED).sum(-1).clamp(min=1)
    return (losses.unflatten(0, target.shape).sum(-1) / words).mean()
