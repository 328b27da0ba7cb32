"""Which models of torchvision (and of timm, where it is installed) run on tiles, and how far from one device they are.

    PYTHONPATH=src python benchmarks/tiling_models.py [name ...]

Every model is built with random weights and runs one training step in float64 on 2 x 2 uneven tiles, four ranks that
are threads of this process, against the same step on one device: outputs, the gradients of the image and of every
parameter, and running statistics. Exactness needs no GPU. Prints a table in Markdown.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from halocline import tiling

# By name the constructor's module in torchvision.models, its arguments, and the image's size.
TORCHVISION: dict[str, tuple[str, dict[str, Any], tuple[int, int]]] = {
    "alexnet": ("", {}, (95, 87)),
    "vgg11_bn": ("", {}, (65, 49)),
    "resnet18": ("", {}, (65, 49)),
    "resnet50": ("", {}, (65, 49)),
    "resnext50_32x4d": ("", {}, (65, 49)),
    "wide_resnet50_2": ("", {}, (65, 49)),
    "densenet121": ("", {}, (65, 49)),
    "squeezenet1_1": ("", {}, (65, 49)),
    "googlenet": ("", {"aux_logits": False, "init_weights": False}, (65, 49)),
    "inception_v3": ("", {"aux_logits": False, "init_weights": False}, (97, 95)),
    "mobilenet_v2": ("", {}, (65, 49)),
    "mobilenet_v3_small": ("", {}, (65, 49)),
    "mobilenet_v3_large": ("", {}, (65, 49)),
    "mnasnet0_5": ("", {}, (65, 49)),
    "shufflenet_v2_x0_5": ("", {}, (65, 49)),
    "efficientnet_b0": ("", {}, (65, 49)),
    "efficientnet_v2_s": ("", {}, (65, 49)),
    "regnet_y_400mf": ("", {}, (65, 49)),
    "regnet_x_400mf": ("", {}, (65, 49)),
    "convnext_tiny": ("", {}, (65, 49)),
    "swin_t": ("", {}, (64, 64)),
    "swin_v2_t": ("", {}, (64, 64)),
    "vit_b_32": ("", {"image_size": 64}, (64, 64)),
    "maxvit_t": ("", {"input_size": (224, 224)}, (224, 224)),
    "fcn_resnet50": ("segmentation", {"weights_backbone": None}, (65, 49)),
    "deeplabv3_resnet50": ("segmentation", {"weights_backbone": None}, (65, 49)),
    "deeplabv3_mobilenet_v3_large": ("segmentation", {"weights_backbone": None}, (65, 49)),
    "lraspp_mobilenet_v3_large": ("segmentation", {"weights_backbone": None}, (65, 49)),
    "r3d_18": ("video", {}, (33, 25)),
    "r2plus1d_18": ("video", {}, (33, 25)),
}
TIMM = (
    "resnet18 resnetv2_50 seresnet18 res2net50_14w_8s dla34 hrnet_w18_small vovnet39a ghostnet_100 tf_efficientnet_b0 "
    "nfnet_l0 convnextv2_atto xception41 inception_next_atto fasternet_t0 mobileone_s0 repvgg_a0 edgenext_xx_small"
).split()


def torchvision_model(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    import torchvision

    room, settings, size = TORCHVISION[name]
    home = getattr(torchvision.models, room) if room else torchvision.models
    shape = (2, 3, 4, *size) if room == "video" else (2, 3, *size)
    return getattr(home, name)(weights=None, **settings), shape


def timm_model(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    import timm

    size = (96, 128) if name in WANTS_EVEN_SIZES else (97, 95)
    return timm.create_model(name, pretrained=False), (2, 3, *size)


WANTS_EVEN_SIZES = ("dla34", "hrnet_w18_small")
"""On one device, too, these fail where halving leaves a rest."""


def quiet(model: nn.Module) -> nn.Module:
    """Without dropout and stochastic depth: ranks that are threads share one generator of random numbers."""
    for module in model.modules():
        for rate in ("p", "drop_prob", "drop_rate", "dropout", "attention_dropout", "stochastic_depth_prob"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)
    return model.double().train()


def outputs(value: Any) -> list[Tensor]:
    if isinstance(value, tiling.TileTensor):
        return [value.full()]
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for v in values for t in outputs(v)]


def loss_of(results: list[Tensor]) -> Tensor:
    """Another weight for each value, so that no error cancels."""
    terms = []
    for r in results:
        weights = torch.linspace(-1.0, 1.0, max(1, r.numel()), dtype=torch.float64)
        terms.append((r * weights[: r.numel()].view(r.shape)).sum())
    return torch.stack(terms).sum()


def difference(actual: Tensor | None, expected: Tensor | None) -> float:
    """The largest difference, relative to the largest value expected (or to 1)."""
    if actual is None or expected is None:
        return 0.0 if actual is expected else float("inf")
    if actual.shape != expected.shape:
        return float("inf")
    if not expected.numel():
        return 0.0
    actual, expected = actual.double(), expected.double()
    return ((actual - expected).abs().max() / max(1.0, expected.abs().max().item())).item()


def step(model: nn.Module, leaf: Tensor, exchanger: tiling.Exchanger | None) -> list[Tensor | None]:
    """All that a training step makes: outputs, gradients and buffers."""
    if exchanger is None:
        results = outputs(model(leaf))
        loss_of(results).backward()
    else:
        height, width = leaf.shape[-2:]
        cuts = [[0, int(height * 0.6), height], [0, int(width * 0.4), width]]
        results = outputs(model(tiling.tile(leaf, group=exchanger, cuts=cuts)))
        tiling.backward(loss_of(results), model, exchanger)
    made: list[Tensor | None] = [*[r.detach() for r in results], leaf.grad]
    return [*made, *[p.grad for p in model.parameters()], *model.buffers()]


def compare(build: Callable[[], tuple[nn.Module, tuple[int, ...]]]) -> float:
    torch.manual_seed(0)
    model, shape = build()
    quiet(model)
    image = torch.randn(shape, dtype=torch.float64)
    copies = [copy.deepcopy(model) for _ in range(4)]
    expected = step(model, image.clone().requires_grad_(), None)
    exchangers = tiling.ThreadExchanger.connect(4, deadline=120.0)
    worst, errors = [0.0] * 4, []

    def run(rank: int) -> None:
        try:
            actual = step(copies[rank], image.clone().requires_grad_(), exchangers[rank])
            assert len(actual) == len(expected)
            worst[rank] = max(difference(a, e) for a, e in zip(actual, expected))
        except BaseException as error:
            errors.append(error)
            exchangers[rank].abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return max(worst)


def report(source: str, name: str, build: Callable[[], tuple[nn.Module, tuple[int, ...]]]) -> None:
    started = time.perf_counter()
    try:
        worst = compare(build)
        verdict, note = ("exact" if worst <= 1e-10 else "DIFFERENT"), f"{worst:.1e}"
    except tiling.UntiledOperation as refusal:
        verdict, note = "refused", str(refusal).split(". Gather")[0]
    except Exception as error:
        verdict, note = "FAILED", f"{type(error).__name__}: {error}"[:300].replace("\n", " ")
    seconds = time.perf_counter() - started
    print(f"| {source} {name} | {verdict} | {note} | {seconds:.1f} |", flush=True)


def main() -> None:
    asked = sys.argv[1:]
    torch.set_num_threads(max(1, torch.get_num_threads() // 4))
    print(f"torch {torch.__version__}\n")
    print("| model | on 2 x 2 tiles | largest difference, or why not | s |\n|---|---|---|---|")
    for name in asked or TORCHVISION:
        if name in TORCHVISION:
            report("torchvision", name, lambda name=name: torchvision_model(name))
    try:
        import timm  # noqa: F401
    except ImportError:
        print("\ntimm is not installed")
        return
    for name in asked or TIMM:
        if name in TIMM:
            report("timm", name, lambda name=name: timm_model(name))


if __name__ == "__main__":
    main()
