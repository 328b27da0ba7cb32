"""The loss of language models is a mean over samples, however the batch is cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.models.losses import IGNORED, token_loss


def batch(samples: int, ignored: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, 7, 13, generator=generator, dtype=torch.float64)
    target = torch.randint(13, (samples, 7), generator=generator)
    target[torch.rand(samples, 7, generator=generator) < ignored] = IGNORED
    return logits, target


def test_with_every_word_predicted_it_is_the_mean_over_words() -> None:
    logits, target = batch(5, 0.0)
    assert torch.allclose(token_loss(logits, target), F.cross_entropy(logits.flatten(0, 1), target.flatten()))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 0.9]), st.integers(0, 100))
def test_microbatches_weighted_by_their_samples_make_the_whole(sizes: list[int], ignored: float, seed: int) -> None:
    logits, target = batch(sum(sizes), ignored, seed)
    whole = token_loss(logits.requires_grad_(), target)
    (gradient,) = torch.autograd.grad(whole, logits)
    parts = zip(logits.split(sizes), target.split(sizes), sizes)
    total = sum(token_loss(part, wanted) * (size / sum(sizes)) for part, wanted, size in parts)
    assert torch.allclose(total, whole, rtol=1e-12)
    assert torch.allclose(torch.autograd.grad(total, logits)[0], gradient, rtol=1e-12, atol=1e-15)


def test_a_sample_without_words_to_predict_has_no_loss_and_no_gradient() -> None:
    logits, target = batch(2, 0.0)
    target[0] = IGNORED
    loss = token_loss(logits.requires_grad_(), target)
    assert loss.item() == pytest.approx(F.cross_entropy(logits[1], target[1]).item() / 2)
    loss.backward()
    assert logits.grad is not None and not logits.grad[0].any()


def test_half_precision_logits_are_summed_in_single() -> None:
    logits, target = batch(4, 0.3)
    coarse = logits.to(torch.bfloat16)
    assert torch.equal(token_loss(coarse, target), token_loss(coarse.float(), target))
    assert token_loss(coarse, target).dtype == torch.float32
