"""Images per second and peak memory of one process on one GPU against plain PyTorch, step by step in turns, and the
largest image that trains in each way.

    python benchmarks/gpu_images.py                       # ResNet-101 and AmoebaNet-D (18, 416), bf16 channels_last
    python benchmarks/gpu_images.py --largest             # and the largest image: plain, recomputed, offloaded
    python benchmarks/gpu_images.py --device cpu --sizes 64 --models resnet18 --steps 1   # a trial without a GPU

"plain" is the same layers in an nn.Sequential with a loop written by hand.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from halocline.models.model import make
from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.layers import one_device

Step = Callable[[], Any]


def settle(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: torch.device) -> float:
    """GiB."""
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")


def batch(size: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(1, 3, size, size), torch.randint(0, classes, (1,))


def plain(name: str, size: int, device: torch.device, autocast: bool) -> Step:
    model = make(name)
    net = one_device(model.layers).to(device)
    if autocast:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = (t.to(device) for t in batch(size, model.classes))
    if autocast:
        x = x.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def ours(name: str, size: int, device: torch.device, autocast: bool, chunks: int = 1, offload: bool = False) -> Step:
    model = make(name)
    flags: dict[str, Any] = {"split_size": 1, "layers": len(model.layers)}
    if chunks > 1:
        flags |= {"schedule": "interleaved", "chunks": chunks, "microbatches": 1, "recompute": "all"}
    engine = Engine(
        Plan.from_flags(**flags),
        model.layers,
        loss=F.cross_entropy,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        autocast=torch.bfloat16 if autocast else None,
        channels_last=autocast,
        offload=offload,
    )
    x, y = batch(size, model.classes)
    x = x.to(device)
    return lambda: engine.step(x, y)


def compare(name: str, size: int, device: torch.device, autocast: bool, steps: int) -> str:
    """One line: milliseconds and memory of both, each step of one followed by a step of the other."""
    times: dict[str, list[float]] = {"plain": [], "halocline": []}
    memory = {}
    makers = {"plain": plain, "halocline": ours}
    for who, maker in makers.items():  # memory alone, one at a time
        settle(device)
        try:
            step = maker(name, size, device, autocast)
            step()
            step()
        except torch.OutOfMemoryError:
            return f"{name:<14}{size:>7}  {who} is out of memory"
        memory[who] = peak(device)
        del step
    settle(device)
    try:
        steppers = {who: maker(name, size, device, autocast) for who, maker in makers.items()}
        for turn in range(steps + 2):
            for who, step in steppers.items():
                if device.type == "cuda":
                    torch.cuda.synchronize()
                started = time.perf_counter()
                step()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if turn >= 2:
                    times[who].append(time.perf_counter() - started)
    except torch.OutOfMemoryError:
        return f"{name:<14}{size:>7}  both do not fit side by side; memory {memory}"
    one, two = statistics.median(times["plain"]), statistics.median(times["halocline"])
    return (
        f"{name:<14}{size:>7}{1 / one:>10.2f}{1 / two:>12.2f}{two / one:>8.3f}x{memory['plain']:>10.2f}"
        f"{memory['halocline']:>12.2f}{memory['halocline'] / memory['plain']:>8.3f}x"
    )


def largest(make_step: Callable[[int], Step], device: torch.device, start: int, grain: int, limit: int) -> int:
    """The largest size, a multiple of `grain`, at which two steps run."""

    def fits(size: int) -> bool:
        settle(device)
        try:
            step = make_step(size)
            step()
            step()
            return True
        except (torch.OutOfMemoryError, MemoryError):
            return False
        except RuntimeError as error:
            if "memory" not in str(error) and "32-bit" not in str(error):
                raise
            return False

    low, high = 0, start
    while high <= limit and fits(high):
        low, high = high, high * 2
    high = min(high, limit + grain)
    while high - low > grain:
        middle = (low + high) // 2 // grain * grain
        if middle in (low, high):
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="resnet101,amoebanet-d")
    parser.add_argument("--sizes", default="1024,2048,4096")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--float32", action="store_true", help="instead of bf16 channels_last")
    parser.add_argument("--largest", action="store_true")
    parser.add_argument("--grain", type=int, default=1024)
    parser.add_argument("--limit", type=int, default=32768)
    given = parser.parse_args()
    device = torch.device(given.device)
    autocast = not given.float32 and device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    print(torch.cuda.get_device_name() if device.type == "cuda" else "CPU", f"torch {torch.__version__}")
    print(f"{'model':<14}{'image':>7}{'plain/s':>10}{'halocline/s':>12}{'time':>9}{'GiB':>10}{'GiB':>12}{'memory':>9}")
    for name in given.models.split(","):
        for size in map(int, given.sizes.split(",")):
            print(compare(name, size, device, autocast, given.steps), flush=True)
    if not given.largest:
        return
    print(f"\n{'model':<14}{'way':<34}{'largest image':>14}")
    for name in given.models.split(","):
        layers = len(make(name).layers)
        ways: dict[str, Callable[[int], Step]] = {
            "plain PyTorch": partial(plain, name, device=device, autocast=autocast),
            "halocline": partial(ours, name, device=device, autocast=autocast),
            "halocline, recompute": partial(ours, name, device=device, autocast=autocast, chunks=layers),
            "halocline, recompute and offload": partial(
                ours, name, device=device, autocast=autocast, chunks=layers, offload=True
            ),
        }
        for way, make_step in ways.items():
            found = largest(make_step, device, given.grain, given.grain, given.limit)
            print(f"{name:<14}{way:<34}{found:>14}", flush=True)


if __name__ == "__main__":
    main()
