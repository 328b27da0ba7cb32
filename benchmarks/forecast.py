"""What a dry run says of time against a device that does it: every kind of layer of some models, forward and backward.

    python benchmarks/forecast.py [--device h200] [--channels-last] [MODEL:SAMPLES:DTYPE[:SIZE] ...]

Prints for each kind of layer of each model the milliseconds predicted for the device and measured on the one that is
here (the median of --repeats, after as many to warm up), and their ratio; then those of all its layers. Without
--device it is priced as it measures itself. What is counted is said in halocline/models/operators.py; the optimizer's
step and messages are not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from halocline.models.model import Model, make
from halocline.models.operators import loss_of, operators
from halocline.train.forecast import speed_of
from halocline.train.settings import RunSettings

MODELS = (
    "resnet101:1:bf16:4096",
    "resnet101:32:bf16:224",
    "amoebanet-d:1:bf16:1024",
    "unet:1:bf16:1024",
    "gpt3-medium:8:bf16",
    "bloom-3b:4:bf16",
    "bloom-3b:4:float32",
    "bert-huge-uncased:8:float32",
    "t5-3b:4:bf16",
    "wide-resnet101_8:32:float32",
)
DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--channels-last", action="store_true")
    options = parser.parse_args()
    here = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    speed = speed_of(RunSettings(device=options.device, channels_last=options.channels_last))
    found = torch.cuda.get_device_name() if here.type == "cuda" else "this CPU"
    print(f"predicted for {speed.name}, measured on {found}")
    print(f"  {'layers':34} {'forward ms':>20} {'ratio':>6} {'backward ms':>20} {'ratio':>6}")
    for said in options.models:
        name, samples, dtype, *size = said.split(":")
        model, image = make(name), (int(size[0]),) * 2 if size else None
        print(said, flush=True)
        layers = operators(model, image, int(samples), DTYPES[dtype])
        predicted = [(speed.seconds(x.forward, dtype), speed.seconds(x.backward, dtype)) for x in layers]
        inputs = [given(t, DTYPES[dtype], here, options.channels_last) for t in model.inputs(int(samples), image)]
        measured = measure(model, layers, inputs, DTYPES[dtype], options)
        kinds: dict[Any, list[int]] = {}
        for number, layer in enumerate(layers):
            kinds.setdefault((measured[number], layer), []).append(number)
        for numbers in kinds.values():
            first = numbers[0]
            show(f"{len(numbers)} x {type(built(model, first)).__name__} ({first})", predicted[first], measured[first])
        show("all", *(tuple(map(sum, zip(*times))) for times in (predicted, measured)))


def built(model: Model, number: int) -> Any:
    layer = model.layers[number]
    with torch.device("meta"):
        return layer if isinstance(layer, torch.nn.Module) else layer()


def show(what: str, predicted: tuple[float, ...], measured: tuple[float, ...]) -> None:
    cells = [f"{1e3 * p:9.3f} /{1e3 * m:9.3f} {p / m:6.2f}" for p, m in zip(predicted, measured)]
    print(f"  {what:34} {'  '.join(cells)}", flush=True)


def measure(
    model: Model, layers: Any, inputs: list[Tensor], dtype: torch.dtype, options: argparse.Namespace
) -> list[tuple[float, float]]:
    """Seconds of each layer's forward and backward; layers that run the same operators are measured once."""
    value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
    device, repeats = inputs[0].device, options.repeats
    known: dict[Any, tuple[float, float]] = {}
    for number, layer in enumerate(model.layers):
        with torch.device(device):
            module = layer if isinstance(layer, torch.nn.Module) else layer()
        module = module.to(device, torch.float64 if dtype is torch.float64 else None)
        if options.channels_last:
            module = module.to(memory_format=torch.channels_last)
        end = partial(loss_of, model) if number == len(model.layers) - 1 else lambda output: output
        first = layers[number] not in known
        runs = [once(module, value, end, dtype, device) for _ in range(2 * repeats if first else 1)]
        if first:
            forwards, backwards = ([run[which] for run in runs[repeats:]] for which in (1, 2))
            known[layers[number]] = statistics.median(forwards), statistics.median(backwards)
        value = runs[-1][0]
        del module, runs
    return [known[layer] for layer in layers]


def once(
    module: Any, value: Any, end: Callable[[Any], Any], dtype: torch.dtype, device: torch.device
) -> tuple[Any, float, float]:
    """What a layer returns, and the seconds of its forward and backward."""
    start = tree_map(lambda t: t.detach().requires_grad_(t.is_floating_point()), value)
    begin = now(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=dtype is torch.bfloat16):
        out = module(start)
        ended = end(out)
    forward = now(device) - begin
    ends = [t for t in tree_leaves(ended) if isinstance(t, Tensor) and t.requires_grad]
    grads = [torch.ones_like(t) for t in ends]
    begin = now(device)
    torch.autograd.backward(ends, grads)
    return tree_map(lambda t: t.detach(), out), forward, now(device) - begin


def given(like: Tensor, dtype: torch.dtype, device: torch.device, channels_last: bool) -> Tensor:
    if not like.is_floating_point():
        return torch.zeros(like.shape, dtype=like.dtype, device=device)
    image = torch.rand(like.shape, dtype=torch.float64 if dtype is torch.float64 else like.dtype, device=device)
    return image.to(memory_format=torch.channels_last) if channels_last else image


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
