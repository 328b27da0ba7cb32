"""Sizes of the transformers: layers and parameters as Perseus lists them, without making a single parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halocline.models.model import make
from halocline.models.zoo import ZOO
from halocline.plan.partition import partition

LISTED = {
    "bert-huge-uncased": 1276.40,
    "gpt3-small": 124.44,
    "gpt3-medium": 354.82,
    "gpt3-large": 758.73,
    "gpt3-xl": 1313.63,
    "gpt3-2.7b": 2648.93,
    "gpt3-6.7b": 6654.21,
    "gpt3-13b": 12848.14,
    "gpt3-39b": 39491.63,
    "gpt3-175b": 174591.68,
    "t5-small": 60.51,
    "t5-base": 222.90,
    "t5-large": 737.67,
    "t5-3b": 2851.60,
    "t5-11b": 11307.32,
    "bloom-3b": 3002.56,
}
"""Millions. Of t5-3b, t5-11b and bloom-3b, for which Perseus gives no such number, Hugging Face's."""


def parameters(name: str) -> int:
    """Each tied parameter once."""
    model = make(name)
    copies = {second for _, second in model.tied}
    with torch.device("meta"):
        made = {layer: layer() for layer in model.layers if not isinstance(layer, nn.Module)}  # blocks are alike
    return sum(
        p.numel()
        for number, layer in enumerate(model.layers)
        for key, p in made[layer].named_parameters()
        if f"{number}.{key}" not in copies
    )


@pytest.mark.parametrize("name", LISTED)
def test_as_listed(name: str) -> None:
    assert parameters(name) / 1e6 == pytest.approx(LISTED[name], abs=0.00501)


@pytest.mark.parametrize(("name", "listed", "hidden", "layers"), [
    ("bert-base-uncased", 109.43, 768, 12),
    ("bert-large-uncased", 334.95, 1024, 24),
])  # fmt: skip
def test_bert_is_listed_without_the_biases_of_its_blocks(name: str, listed: float, hidden: int, layers: int) -> None:
    """Of queries, keys, values and the way out 4 d, up 4 d, down d."""
    assert ZOO[name].note
    assert (parameters(name) - layers * 9 * hidden) / 1e6 == pytest.approx(listed, abs=0.00501)


def test_gpt3_80b_is_listed_without_positions_and_final_norm() -> None:
    assert ZOO["gpt3-80b"].note
    assert (parameters("gpt3-80b") - 1024 * 9600 - 2 * 9600) / 1e6 == pytest.approx(80600.16, abs=0.00501)


def test_the_published_bert_base_is_ours() -> None:
    """Hugging Face's BertForMaskedLM of bert-base-uncased."""
    assert parameters("bert-base-uncased") == 109_514_298


@pytest.mark.parametrize(("name", "layers", "cuts"), [
    ("bert-huge-uncased", 26, "0,8,14,20,26"),
    ("bloom-3b", 32, "0,10,18,26,32"),
    ("bloom-3b", 32, "0,6,10,14,18,22,26,30,32"),
    ("gpt3-xl", 27, "0,8,14,21,27"),
    ("t5-3b", 74, "0,16,33,53,74"),
    ("t5-3b", 74, "0,9,16,24,33,43,53,63,74"),
])  # fmt: skip
def test_the_cuts_of_the_paper_s_commands_add_up(name: str, layers: int, cuts: str) -> None:
    model = make(name)
    assert len(model.layers) == layers
    partition(f"custom:{cuts}", len(model.layers), cuts.count(","))


@pytest.mark.parametrize(("name", "stages"), [("bert-huge-uncased", 8), ("gpt3-2.7b", 8), ("t5-3b", 4)])
def test_kinds_are_what_uniform_transformer_needs(name: str, stages: int) -> None:
    model = make(name)
    ranges = partition("uniform_transformer", len(model.layers), stages, kinds=model.kinds)
    blocks = [sum(kind not in ("embedding", "head") for kind in model.kinds[a:b]) for a, b in ranges]
    decoders = [sum(kind == "decoder" for kind in model.kinds[a:b]) for a, b in ranges]
    if "decoder" not in model.kinds:
        assert len(set(blocks)) == 1
    else:
        assert decoders[: stages // 2] == [0] * (stages // 2) and len(set(decoders[stages // 2 :])) == 1
