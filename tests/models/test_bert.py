"""BERT as a sequence of layers."""

from __future__ import annotations

import torch

from halocline.models.losses import token_loss
from harness.transformers_small import VOCAB, built, small, words


def test_embeddings_blocks_head() -> None:
    model = small("bert-huge-uncased", layers=3)
    assert model.kinds == ("embedding", "block", "block", "block", "head")
    assert model.tied == (("0.tokens.weight", "4.logits.weight"),)
    assert model.task == "masked"


def test_every_token_sees_every_other() -> None:
    net, source = built(small("bert-base-uncased")), words()
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB
    assert not torch.isclose(net(source)[:, 0], net(changed)[:, 0]).any(-1).all()


def test_the_padding_word_learns_from_the_head_only() -> None:
    model = small("bert-base-uncased", padding=3, tied=False)
    net = built(model)
    source = words()
    source[:, ::2] = 3
    token_loss(net(source), words(seed=1)).backward()
    gradient = net.get_parameter("0.tokens.weight").grad
    assert gradient is not None and not gradient[3].any() and gradient[source[0, 1]].any()
    freely = built(small("bert-base-uncased", padding=-1, tied=False))
    assert torch.equal(freely(source), net(source))
    token_loss(freely(source), words(seed=1)).backward()
    other = freely.get_parameter("0.tokens.weight").grad
    assert other is not None and other[3].any()
