"""Operations counted without data against closed forms, and against a count with data."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from halocline.models.model import CAUSAL, Model, make
from halocline.models.work import work


def flops(model: Model, image: tuple[int, int] | None = None) -> list[int]:
    return [layer.flops for layer in work(model, image)]


def test_a_gpt_by_its_formula() -> None:
    hidden, seq, vocab, layers = 32, 16, 100, 3
    found = work(make("gpt3-small", layers=layers, hidden=hidden, heads=4, vocab=vocab, seq=seq))
    block = 2 * seq * 12 * hidden**2 + 2 * 2 * seq**2 * hidden  # matrices, then scores and their use
    assert [layer.flops for layer in found] == [0, 0, *[block] * layers, 2 * seq * hidden * vocab]
    assert [layer.output_bytes for layer in found] == [4 * seq * hidden] * (2 + layers) + [4 * seq * vocab]
    assert found[0].parameters == vocab * hidden
    assert found[-1].parameters == vocab * hidden + 2 * hidden, "a tied copy takes room where it is"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("t5-small", {"layers": 1, "hidden": 16, "heads": 2, "vocab": 30, "seq": 8}),
        ("wide-resnet50_2", {"base_width": 4, "num_classes": 7}),
    ],
)
def test_without_data_as_with_it(name: str, options: dict[str, int]) -> None:
    model = make(name, **options)
    net = nn.Sequential(*(layer() for layer in model.layers))
    inputs = [torch.zeros(2, *t.shape[1:], dtype=t.dtype) for t in model.inputs(2, (32, 32))]
    # The attention of a CPU is one operator that the counter does not know: compute it step by step.
    with torch.no_grad(), nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as one:
        net(inputs[0] if len(inputs) == 1 else tuple(inputs))
    assert 2 * sum(flops(model, (32, 32))) == one.get_total_flops()


def test_the_largest_is_counted() -> None:
    model = make("gpt3-175b")
    assert sum(flops(model)) == pytest.approx(2 * 174.6e9 * 1024, rel=0.05)


def test_a_layer_that_looks_at_values_is_named() -> None:
    class Looks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * float(x.float().mean())

    with pytest.raises(ValueError, match=r"layer 1 of curious cannot be run without data"):
        flops(Model("curious", [nn.Identity(), Looks()], CAUSAL, sequence=4))
