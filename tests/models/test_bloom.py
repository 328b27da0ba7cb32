"""Bloom as a sequence of layers, and its bias by distance."""

from __future__ import annotations

import math

import pytest
import torch

from halocline.models.transformer import Alibi
from harness.transformers_small import TOKENS, built, small, words


def test_tokens_blocks_head() -> None:
    model = small("bloom-3b", layers=3)
    assert model.kinds == ("embedding", "block", "block", "block", "head")
    assert model.tied == (("0.tokens.weight", "4.logits.weight"),)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (4, [2**-2, 2**-4, 2**-6, 2**-8]),
        (8, [2**-n for n in range(1, 9)]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
        (1, [2**-8]),
    ],
)
def test_slopes(heads: int, slopes: list[float]) -> None:
    """Those of the paper; with six heads the last two are odd steps of eight heads' series."""
    bias = Alibi(heads)(5, torch.float64)
    assert bias.shape == (1, heads, 5, 5)
    for head, slope in enumerate(slopes):
        for query in range(5):
            for key in range(5):
                expected = slope * (key - query) if key <= query else -math.inf
                assert bias[0, head, query, key].item() == pytest.approx(expected, rel=1e-12)


def test_slopes_do_not_lose_bits_with_the_weights() -> None:
    module = Alibi(12)
    expected = module(9, torch.float32)
    assert torch.equal(module.to(torch.bfloat16)(9, torch.float32), expected)


def test_a_sequence_may_be_longer_than_said() -> None:
    net = built(small("bloom-3b"))
    long = words(2, 3 * TOKENS)
    assert torch.allclose(net(long)[:, :TOKENS], net(long[:, :TOKENS]), rtol=1e-12)
