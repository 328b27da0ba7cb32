"""T5 as a sequence of layers, and its bias by distance."""

from __future__ import annotations

import math

import pytest
import torch

from halocline.models.losses import token_loss
from halocline.models.model import make
from halocline.models.transformer import RelativePositions
from harness.transformers_small import TOKENS, VOCAB, built, inputs, small, words


def test_decoder_blocks_are_two_layers_each() -> None:
    model = small("t5-small", layers=2, decoder_layers=3)
    assert model.kinds == ("embedding", *["encoder"] * 2, *["decoder"] * 6, "head")
    table = "{}.attention.position.table.weight".format
    assert model.tied == (
        ("0.tokens.weight", "9.logits.weight"),
        (table(1), table(2)),
        (table(3), table(5)),
        (table(3), table(7)),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20)])
def test_every_pair_has_the_bias_of_its_distance(causal: bool, buckets: int, furthest: int) -> None:
    """Against the definition, pair by pair: near distances alone, then ranges that grow by a constant factor."""
    module = RelativePositions(3, buckets, furthest, causal, std=1.0).double()
    tokens = furthest + 9
    bias = module(tokens, torch.float64)
    half = buckets if causal else buckets // 2
    single = half // 2

    def bucket(distance: int) -> int:
        if distance < single:
            return distance
        growth = math.log(distance / single) / math.log(furthest / single)
        return min(single + int(growth * (half - single) + 1e-6), half - 1)

    for query in range(0, tokens, 5):
        for key in range(tokens):
            if causal and key > query:
                assert bias[0, :, query, key].eq(-math.inf).all()
                continue
            row = bucket(abs(key - query)) + (half if key > query and not causal else 0)
            assert torch.equal(bias[0, :, query, key], module.table.weight[row])


def test_each_layer_s_table_has_its_part_of_the_one_gradient() -> None:
    model = small("t5-small", layers=3)
    source, target = words(), words(seed=1)
    tied = built(model)
    apart = built(model, tied=False)
    apart.load_state_dict(tied.state_dict())
    for net in (tied, apart):
        token_loss(net(inputs(model, source)), target).backward()
    totals = {first: apart.get_parameter(first).grad for first, _ in model.tied}
    for first, second in model.tied:
        mine, other = totals[first], apart.get_parameter(second).grad
        assert mine is not None and other is not None
        totals[first] = mine + other
    for first, total in totals.items():
        one = tied.get_parameter(first).grad
        assert one is not None and total is not None
        assert torch.allclose(one, total, rtol=1e-10, atol=1e-14)


def test_the_decoder_sees_all_of_the_encoder_and_its_own_past() -> None:
    net, source, target = built(small("t5-small")), words(), words(seed=1)
    out = net((source, target))
    later, elsewhere = target.clone(), source.clone()
    later[:, 7:] = (later[:, 7:] + 1) % VOCAB
    elsewhere[:, -1] = (elsewhere[:, -1] + 1) % VOCAB
    assert torch.equal(net((source, later))[:, :7], out[:, :7])
    assert not torch.isclose(net((elsewhere, target))[:, 0], out[:, 0]).any(-1).all()
    assert net((source[:, :6], target)).shape == out.shape  # two lengths


def test_shrinking_keeps_the_proportions() -> None:
    whole, little = make("t5-11b").architecture, small("t5-11b").architecture
    assert (whole.kv, whole.ff) == (128, 65536)  # type: ignore[attr-defined]
    assert (little.kv, little.ff) == (16 * 24 // 4, 64 * 24)  # type: ignore[attr-defined]
    assert (small("t5-11b", kv=3, ff=7).architecture.kv) == 3  # type: ignore[attr-defined]
    assert small("t5-11b").sequence == TOKENS


def test_what_is_no_t5_is_refused() -> None:
    with pytest.raises(ValueError, match="activation = 'silu' is not T5's: use 'relu' or 'gated-gelu'"):
        small("t5-small", activation="silu")
    with pytest.raises(ValueError, match="layers = 0 and decoder_layers = 0: use at least 1 of each"):
        small("t5-small", layers=0)
    for options in ({"buckets": 2}, {"furthest": 16}):
        with pytest.raises(ValueError, match=r"leave no room for ranges of distances: use 4 buckets or more"):
            small("t5-small", **options)
