"""ResNets: v1 and v2 in the CIFAR style by their depths and sizes; ImageNet's by published sizes, and by the numbers of
the peers' with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from halocline.models.count import count
from halocline.models.model import make
from halocline.models.resnet import BLOCKS, imagenet_resnet, torchvision_names
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


# -- ImageNet --------------------------------------------------------------------------------------------------------

PUBLISHED = {
    "resnet18": (9, 11_689_512),
    "resnet34": (17, 21_797_672),
    "resnet50": (17, 25_557_032),
    "resnet101": (34, 44_549_160),
    "resnet152": (51, 60_192_808),
    "wide-resnet50_2": (17, 68_883_240),
    "wide-resnet50_4": (17, 223.44e6),
    "wide-resnet50_8": (17, 804.16e6),
    "wide-resnet101_2": (34, 126_886_696),
    "wide-resnet101_4": (34, 419.63e6),
    "wide-resnet101_8": (34, 1517.37e6),
}
"""Layers and parameters; of the widest, as Perseus rounds them."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    layers, parameters = PUBLISHED[name]
    found = count(make(name), activations=False)
    assert len(found.layers) == layers
    assert abs(found.parameters - parameters) <= (0 if isinstance(parameters, int) else 5e3)


def test_an_imagenet_resnet_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of 18, 34, 50, 101, 152"):
        imagenet_resnet(depth=20)
    with pytest.raises(ValueError, match="only bottlenecks"):
        imagenet_resnet(depth=18, width=2)


def named_by_torchvision(model: nn.Sequential, depth: int) -> dict[str, Tensor]:
    """Our state under torchvision's names."""
    prefixes = sorted(torchvision_names(depth).items(), key=lambda pair: -len(pair[0]))
    found = {}
    for name, value in model.state_dict().items():
        ours, theirs = next((a, b) for a, b in prefixes if name.startswith(a))
        found[theirs + name.removeprefix(ours)] = value
    return found


def hugging_face_name(name: str) -> str:
    """From torchvision's name."""
    kind = "normalization" if ".bn" in f".{name}" or "downsample.1" in name else "convolution"
    last = name.rsplit(".", 1)[1]
    if name.startswith("fc."):
        return f"classifier.1.{last}"
    if not name.startswith("layer"):
        return f"resnet.embedder.embedder.{kind}.{last}"
    group, block, what = name.split(".")[:3]
    where = f"resnet.encoder.stages.{int(group[5:]) - 1}.layers.{block}"
    inner = "shortcut" if what == "downsample" else f"layer.{int(what[-1]) - 1}"
    return f"{where}.{inner}.{kind}.{last}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("depth", [18, 50])
def test_the_same_weights_give_hugging_faces_numbers(depth: int) -> None:
    transformers = pytest.importorskip("transformers")
    grow = 4 if depth >= 50 else 1
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8 * grow, 16 * grow, 32 * grow, 64 * grow],
        depths=list(BLOCKS[depth]),
        layer_type="bottleneck" if depth >= 50 else "basic",
        num_labels=5,
    )
    theirs = transformers.ResNetForImageClassification(config).double().train()
    ours = net(imagenet_resnet(depth=depth, base_width=8, num_classes=5))
    state = {hugging_face_name(name): value for name, value in named_by_torchvision(ours, depth).items()}
    theirs.load_state_dict(state)
    x = torch.randn(2, 3, 65, 50, dtype=torch.float64)
    a, b = ours(x), theirs(x).logits
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    for output in (a, b):
        output.sin().sum().backward()
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, gradient in named_by_torchvision_of_gradients(ours, depth).items():
        torch.testing.assert_close(gradient, gradients[hugging_face_name(name)], rtol=0, atol=1e-10)


def named_by_torchvision_of_gradients(model: nn.Sequential, depth: int) -> dict[str, Tensor]:
    copy = {name: p.grad for name, p in model.named_parameters()}
    names = dict(zip(model.state_dict(), named_by_torchvision(model, depth)))
    return {names[name]: gradient for name, gradient in copy.items() if gradient is not None}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet34", "resnet50", "wide-resnet50_2"])
def test_the_same_weights_give_torchvisions_numbers(name: str) -> None:
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    theirs = getattr(models, name.replace("-", "_"))(weights=None).train()
    ours = nn.Sequential(*(layer() for layer in make(name).layers))  # type: ignore[operator]
    theirs.load_state_dict(named_by_torchvision(ours, int(name.split("_")[0][-2:])))
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-4)


def test_any_image_size_for_imagenets() -> None:
    assert net(small("resnet50"))(torch.randn(2, 3, 37, 90, dtype=torch.float64)).shape == (2, 5)
