"""Counting without data: parameters and what autograd keeps in a real forward, for any model; operations against closed
forms, and against a count with data."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from halocline.models.count import count, work
from halocline.models.model import CAUSAL, Model, make
from harness.image_models import small


def really_kept(model: Model, size: tuple[int, int], samples: int) -> int:
    """Bytes that a forward with data keeps for the backward."""
    net = [layer() for layer in model.layers]  # type: ignore[operator]
    own = {t.untyped_storage().data_ptr() for layer in net for t in (*layer.parameters(), *layer.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    value = torch.randn(samples, model.channels, *size)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        for layer in net:
            value = layer(value)
    return sum(t.untyped_storage().nbytes() for where, t in kept.items() if where not in own)


@pytest.mark.parametrize("name", ["amoebanet-d", "resnet-v1-14", "resnet-v2-11", "resnet50", "unet"])
def test_it_is_what_a_real_forward_keeps(name: str) -> None:
    model = small(name)
    found = count(model, (48, 41))
    assert found.activation_bytes == really_kept(model, (48, 41), 1)
    assert found.parameters == sum(p.numel() for layer in model.layers for p in layer().parameters())  # type: ignore[operator]


def test_amoebanet_at_8192_is_counted_in_seconds() -> None:
    started = time.process_time()
    found = count(make("amoebanet-d"), (8192, 8192))
    assert time.process_time() - started < 120
    assert found.activation_bytes is not None
    assert found.activation_bytes / 2**30 == pytest.approx(751, abs=1)


def test_an_image_that_ends_as_one_pixel() -> None:
    """BatchNorm refuses to train on one value; two samples are counted and halved."""
    model = small("resnet50")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        really_kept(model, (32, 32), 1)
    assert count(model, (32, 32)).activation_bytes == -(-really_kept(model, (32, 32), 2) // 2)


def test_tied_parameters_are_one() -> None:
    layers = [lambda: nn.Linear(4, 4, bias=False), nn.ReLU, lambda: nn.Linear(4, 4)]
    model = Model("tied", layers, tied=(("0.weight", "2.weight"),))
    found = count(model, activations=False)
    assert found.parameters == 16 + 4
    assert [layer.parameters for layer in found.layers] == [16, 0, 4]
    assert found.activation_bytes is None


def test_a_sequential_that_is_built_already() -> None:
    conv = nn.Conv2d(3, 3, 1)
    net = nn.Sequential(conv, nn.BatchNorm2d(3), conv)
    found = count(Model("mine", net), (6, 5))
    assert found.parameters == 12 + 6  # the convolution is there twice and counts once
    assert [layer.name for layer in found.layers] == ["0", "1", "2"]
    image = 3 * 6 * 5 * 4
    assert [layer.activation_bytes for layer in found.layers] == [image, image + 2 * 3 * 4, image]
    assert net[1].running_mean is not None and not net[1].running_mean.any(), "the statistics were touched"
    assert conv.weight.grad is None and type(conv.weight) is nn.Parameter


class Looks(nn.Module):
    """Looks at values when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.linspace(0, 1, 3).tolist()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x)) * self.rates[1]


class Chooses(nn.Module):
    """Looks at values when it runs."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.float().mean().item() > 0 else -x


def test_layers_that_look_at_values() -> None:
    found = count(Model("looks", [Looks]), (4, 4))
    assert found.parameters == 84
    assert found.activation_bytes == 2 * 3 * 16 * 4  # the image, and what the ReLU put out
    with pytest.raises(ValueError, match="layer 1 of chooses fails on an input of 1 x 3 x 4 x 4 without data"):
        count(Model("chooses", [Looks, Chooses]), (4, 4))
    assert count(Model("chooses", [nn.Identity, Chooses]), activations=False).parameters == 0


def test_a_wrong_shape_names_the_layer() -> None:
    with pytest.raises(ValueError, match="layer 1 of wrong fails"):
        count(Model("wrong", [lambda: nn.Conv2d(3, 4, 3), lambda: nn.Conv2d(3, 4, 3)]), (8, 8))


# -- work ------------------------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"layer 1 of curious cannot be run without data"):
        flops(Model("curious", [nn.Identity(), Chooses()], CAUSAL, sequence=4))


def test_activations_are_those_of_the_dtype() -> None:
    """autocast keeps about half: norms and the weights' copies are not halved."""
    model = make("resnet-v1-20")
    single = count(model, (64, 64)).activation_bytes
    double = count(model, (64, 64), dtype=torch.float64).activation_bytes
    half = count(model, (64, 64), dtype=torch.bfloat16).activation_bytes
    assert single is not None and half is not None and double == 2 * single
    assert 0.5 * single < half < 0.75 * single
