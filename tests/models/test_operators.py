"""What is counted without data: operations against torch's own count on data, bytes against sizes known by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from halocline.models.model import CAUSAL, Model, make
from halocline.models.operators import ATTENTION, CONVOLUTION, NORM, OTHER, PRODUCT, UNALIGNED, loss_of, operators

FLOAT = 4


def one(layer: nn.Module, image: tuple[int, int] = (8, 8), channels: int = 4, **said: Any) -> Any:
    """The operators of a single layer, with no loss after it."""
    return operators(Model("one", [layer], task="", channels=channels, image=image), **said)[0]


def test_a_product_computes_and_moves_what_it_must() -> None:
    layer = one(nn.Linear(8, 16, bias=False), samples=3)  # rows of 8 pixels, 3 x 4 x 8 of them
    rows = 3 * 4 * 8
    product = next(x for x in layer.forward if x.flops)
    assert product == (PRODUCT, 2 * rows * 8 * 16, FLOAT * (rows * 8 + 8 * 16 + rows * 16))
    assert sum(x.flops for x in layer.backward) == layer.flops  # of the weight; nobody asks for the images'
    assert layer.backward[-1] == (OTHER, 0, 3 * FLOAT * 8 * 16), "the weight's gradient is added to the one there"
    assert layer.output_bytes == FLOAT * rows * 16 and layer.parameters == 128


def test_views_and_lookups_move_nothing_that_they_do_not_read() -> None:
    assert one(nn.Flatten()).forward == ()
    words = Model("words", [nn.Embedding(1_000_000, 8)], task="", sequence=5)
    (found,) = operators(words)[0].forward
    assert found.bytes == 3 * 5 * 8 * FLOAT, "not the table"
    assert max(x.bytes for x in operators(words)[0].backward) >= 1_000_000 * 8 * FLOAT, "its gradient is as large"


def test_kinds() -> None:
    kinds = {x.kind for x in one(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())).forward}
    assert kinds == {CONVOLUTION, NORM, OTHER}
    head = nn.Linear(8, 15)
    assert UNALIGNED in {x.kind for x in one(head, dtype=torch.bfloat16).forward}
    assert UNALIGNED not in {x.kind for x in one(head).forward}
    attention = make("gpt3-small", layers=1, hidden=32, heads=2, vocab=64, seq=16)
    found = [x for layer in operators(attention) for x in layer.forward if x.kind == ATTENTION]
    assert [x.flops for x in found] == [2 * 2 * 16 * 16 * 32]  # scores and their product with the values


def test_half_precision_moves_half_and_double_twice() -> None:
    relu = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.ReLU())
    moved = {
        dtype: one(relu, dtype=dtype).forward[-1].bytes for dtype in (torch.bfloat16, torch.float32, torch.float64)
    }
    assert moved[torch.float64] == 2 * moved[torch.float32] == 4 * moved[torch.bfloat16]
    assert next(iter(relu.parameters())).dtype is torch.float32, "the user's own layer stays as it was"


@pytest.mark.parametrize("name", ["resnet-v1-8", "amoebanet-d", "bert-huge-uncased", "t5-3b"])
def test_operations_are_those_that_torch_counts_on_data(name: str) -> None:
    small: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 64, "seq": 16}
    if name == "amoebanet-d":
        small = {"num_layers": 3, "num_filters": 16}
    model = make(name, **({} if name == "resnet-v1-8" else small))
    layers = operators(model, samples=2)
    net = model.net()
    inputs = [torch.zeros(t.shape, dtype=t.dtype) for t in model.inputs(2)]
    # Attention as products, which torch counts on any device.
    with FlopCounterMode(display=False) as counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        loss_of(model, net(inputs[0] if len(inputs) == 1 else tuple(inputs))).backward()
    counted = sum(x.flops for layer in layers for x in (*layer.forward, *layer.backward))
    first = sum(x.flops for x in layers[0].backward if x.kind == CONVOLUTION) // 2  # no gradient of the image on data
    assert counter.get_total_flops() <= counted <= 1.1 * counter.get_total_flops() + first


def test_the_loss_belongs_to_the_last_layer() -> None:
    def layers(loss: Any) -> int:
        model = Model("loss", [nn.Linear(8, 8)], task=CAUSAL, loss=loss, sequence=0, channels=1, image=(4, 8))
        return len(operators(model)[0].forward)

    assert layers(lambda output, target: output.sum()) > 0
    model = Model("words", [lambda: nn.Embedding(64, 64)], task=CAUSAL, sequence=16)
    assert len(operators(model)[0].forward) > len(operators(Model("x", model.layers, task="", sequence=16))[0].forward)


def test_a_layer_that_looks_at_values_is_named() -> None:
    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * float(x.mean())

    with pytest.raises(ValueError, match="layer 1 of curious cannot be run without data"):
        operators(Model("curious", [nn.Identity(), Looks()]))


def test_only_what_is_asked_for_has_a_backward() -> None:
    def flops(frozen: bool) -> list[int]:
        first = nn.Conv2d(3, 4, 3).requires_grad_(not frozen)
        model = Model("asked", [first, nn.Flatten(), nn.Linear(4 * 6 * 6, 2)], image=(8, 8))
        return [sum(one.flops for one in layer.backward) for layer in operators(model, samples=2)]

    conv = 2 * 2 * 36 * 4 * 27
    assert flops(False)[0] == conv  # of its weight, and none of the images
    assert flops(True)[0] == 0
    assert flops(True)[2] * 2 == flops(False)[2]


def test_double_precision_runs_no_more_operators() -> None:
    model = Model("double", nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), image=(2, 2))
    single, double = (operators(model, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert [len(layer.forward) for layer in double] == [len(layer.forward) for layer in single]
