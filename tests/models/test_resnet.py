"""ResNet v1 and v2 in the CIFAR style: depths, sizes, shapes."""

from __future__ import annotations

import pytest
import torch

from halocline.models.count import count
from halocline.models.model import make
from halocline.models.zoo import find
from harness.image_models import net, small


@pytest.mark.parametrize(
    ("name", "layers", "millions"),
    [  # He et al.'s sizes for v1; of v2, Keras's, which are these with biases
        ("resnet-v1-20", 11, 0.27),
        ("resnet-v1-56", 29, 0.85),
        ("resnet-v1-110", 56, 1.7),
        ("resnet-v2-110", 38, 3.3),
        ("resnet-v2-11", 5, 0.3),
    ],
)
def test_layers_and_parameters(name: str, layers: int, millions: float) -> None:
    found = count(make(name), activations=False)
    assert len(found.layers) == layers
    assert found.parameters / 1e6 == pytest.approx(millions, rel=0.03)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("resnet-v1-19", "6n.2; use 14 or 20"),
        ("resnet-v1-2", "use 8"),
        ("resnet-v2-100", "9n.2; use 92 or 101"),
        ("resnet-v2-1999", "use 1991 or 2000"),
    ],
)
def test_a_depth_that_does_not_exist_is_answered_with_those_that_do(name: str, fix: str) -> None:
    with pytest.raises(ValueError, match=fix):
        find(name)


def test_any_depth_that_exists_has_a_name() -> None:
    assert find("resnet-v1-1202").options == {"depth": 1202}
    assert find("resnet-v2-1001").address.endswith(":resnet_v2")


@pytest.mark.parametrize("name", ["resnet-v1-14", "resnet-v2-11"])
@pytest.mark.parametrize("size", [(32, 32), (19, 5), (3, 3)])
def test_any_image_size(name: str, size: tuple[int, int]) -> None:
    model = net(small(name))
    logits = model(torch.randn(2, 3, *size, dtype=torch.float64))
    assert logits.shape == (2, 5)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_head_gives_logits() -> None:
    logits = net(small("resnet-v2-11"))(torch.randn(4, 3, 16, 16, dtype=torch.float64))
    assert (logits < 0).any() and not torch.allclose(logits.sum(1), torch.ones(4, dtype=torch.float64))
