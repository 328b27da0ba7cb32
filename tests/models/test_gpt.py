"""GPT as a sequence of layers, and what all transformers here have in common."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halocline.models.model import make
from halocline.runtime.layers import build
from harness.transformers_small import NAMES, TOKENS, VOCAB, built, inputs, small, words


def test_tokens_positions_blocks_head() -> None:
    model = small("gpt3-small", layers=3)
    assert model.kinds == ("embedding", "embedding", "block", "block", "block", "head")
    assert len(model.layers) == 6
    assert model.tied == (("0.tokens.weight", "5.logits.weight"),)
    assert small("gpt3-small", tied=False).tied == ()
    assert (model.task, model.sequence, model.classes) == ("causal", TOKENS, VOCAB)


@pytest.mark.parametrize("name", ["gpt3-small", "bloom-3b"])
def test_no_token_sees_what_comes_later(name: str) -> None:
    net, source = built(small(name)), words()
    later = source.clone()
    later[:, 7:] = (later[:, 7:] + 1) % VOCAB
    before, after = net(source), net(later)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.isclose(before[:, 7:], after[:, 7:]).any(-1).all()


@pytest.mark.parametrize("name", NAMES)
def test_shorter_sequences_pass(name: str) -> None:
    model = small(name)
    net = built(model)
    assert net(inputs(model, words(2, 5))).shape == (2, 5, VOCAB)


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_has_its_kind_and_every_tie_its_parameters(name: str) -> None:
    model = small(name)
    assert len(model.kinds) == len(model.layers)
    net = built(model, tied=False)
    for first, second in model.tied:
        assert net.get_parameter(first).shape == net.get_parameter(second).shape


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_in_training_only(name: str) -> None:
    model = small(name, dropout=0.2)
    net, given = built(model), inputs(model, words())
    assert not torch.equal(net(given), net(given))
    net.eval()
    assert torch.equal(net(given), net(given))
    assert torch.equal(net(given), built(small(name))(given))


@pytest.mark.parametrize("name", NAMES)
def test_layers_of_the_meta_device_come_to_life(name: str) -> None:
    """As those of factories do: the same values from the same seed."""
    for number, layer in enumerate(small(name).layers):
        assert not isinstance(layer, nn.Module)
        with torch.device("meta"):
            hollow = layer()
        alive, made = build(str(number), hollow, 3), build(str(number), layer, 3)
        for tensor, same in zip((*alive.parameters(), *alive.buffers()), (*made.parameters(), *made.buffers())):
            assert torch.equal(tensor, same)


def test_what_adds_to_the_residual_starts_smaller() -> None:
    torch.manual_seed(0)
    block = make("gpt3-small", layers=8, hidden=256, heads=4).layers[2]
    assert not isinstance(block, nn.Module)
    made = block()
    for part, std in (("attention.qkv", 0.02), ("attention.out", 0.005), ("feed_forward.down", 0.005)):
        assert made.get_parameter(f"{part}.weight").std().item() == pytest.approx(std, rel=0.02)
        assert not made.get_parameter(f"{part}.bias").any()


@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_do_not_fit_are_refused_with_the_arithmetic(name: str) -> None:
    with pytest.raises(ValueError, match=r"hidden = (4 x )?50 does not divide among heads = 16: use hidden = (48)"):
        small(name, hidden=50, heads=16)


def test_a_sequence_longer_than_the_positions_is_refused() -> None:
    for name in ("gpt3-small", "bert-base-uncased"):
        assert small(name, seq=8, positions=16).sequence == 8
        with pytest.raises(ValueError, match="seq = 32 is longer than positions = 16: use seq <= 16"):
            small(name, seq=32, positions=16)


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="gpt3-xl has no option hiden: did you mean hidden"):
        make("gpt3-xl", hiden=3)
