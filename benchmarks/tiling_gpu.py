"""What a tile costs on a GPU beside the plain model on an image of the tile's size: time and memory of a training step.

    PYTHONPATH=src python benchmarks/tiling_gpu.py [--quick] [--graph] [--kernels]

One process plays the middle tile of a 3x3 grid, with halos on all four sides. Nothing is sent (the no-communication
exchanger; packing and padding included), so the figures are the price of tiling itself. Needs a CUDA device and
torchvision. Prints ratios against the plain eager model, measured in the same run. `host` is the time until Python has
launched a step's work; where it is longer than the GPU's, Python is what is measured. `--graph` measures both as a
CUDA graph, too, which leaves the GPU's time alone; `--kernels` says which kernels make the difference.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable

import torch
import torchvision
from torch import Tensor, nn

from halocline import tiling

CASES = [
    ("resnet101", 3072, torch.bfloat16),
    ("resnet34", 4096, torch.bfloat16),
    ("resnet101", 2048, torch.float32),
]
STEPS = 12
GiB = 2**30


def training_step(model: nn.Module, make: Callable[[], Tensor], dtype: torch.dtype) -> Callable[[], None]:
    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(make()).float().square().mean()
        loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def captured(step: Callable[[], None]) -> tuple[Callable[[], None], float]:
    """The step as a CUDA graph, and the peak of memory while it was captured, in GiB: a replay allocates nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay, torch.cuda.max_memory_allocated() / GiB


def measure(step: Callable[[], None], steps: int) -> tuple[float, float, float, float]:
    """Median and spread of a step in ms, the median of the host's time for it, and its peak memory in GiB."""
    times, host = [], []
    for i in range(steps + 3):
        if i == 2:
            torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        started = time.perf_counter()
        begin.record()
        step()
        end.record()
        launched = time.perf_counter() - started
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end))
            host.append(1e3 * launched)
    peak = torch.cuda.max_memory_allocated() / GiB
    return statistics.median(times), max(times) - min(times), statistics.median(host), peak


def kernels(step: Callable[[], None]) -> tuple[Counter[str], Counter[str]]:
    """By name, how often each kernel runs in a step, and for how many us."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    count: Counter[str] = Counter()
    us: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            count[event.name] += 1
            us[event.name] += int(event.time_range.elapsed_us())
    return count, us


def compare_kernels(plain: Callable[[], None], tile: Callable[[], None]) -> None:
    (plain_count, plain_us), (tile_count, tile_us) = kernels(plain), kernels(tile)
    print(f"kernels: plain {plain_count.total()} in {plain_us.total() / 1e3:.1f} ms, ", end="")
    print(f"tile {tile_count.total()} in {tile_us.total() / 1e3:.1f} ms; the largest differences (tile - plain):")
    names = set(plain_us) | set(tile_us)
    for name in sorted(names, key=lambda n: -abs(tile_us[n] - plain_us[n]))[:16]:
        more = (tile_us[name] - plain_us[name]) / 1e3
        print(f"  {more:>+8.2f} ms {tile_count[name] - plain_count[name]:>+5} times  {name[:110]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one small case, to see that it runs")
    parser.add_argument("--graph", action="store_true", help="measure CUDA graphs of the steps, too")
    parser.add_argument("--kernels", action="store_true", help="say which kernels make the difference")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch 1, channels_last, {STEPS} steps, median")
    print(f"{'case':<28}{'way':<14}{'ms':>8}{'spread':>8}{'host':>8}{'GiB':>8}{'time x':>8}{'mem x':>8}")
    for name, size, dtype in [("resnet18", 512, torch.bfloat16)] if options.quick else CASES:
        torch.manual_seed(0)
        model = getattr(torchvision.models, name)().cuda().to(memory_format=torch.channels_last)
        piece = torch.randn(1, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
        exchanger = tiling.NoCommunication(4, 9)
        cuts = ((0, size, 2 * size, 3 * size),) * 2

        def whole(piece: Tensor = piece) -> Tensor:
            return piece

        def part(piece: Tensor = piece, cuts: tuple = cuts, group: tiling.Exchanger = exchanger) -> Tensor:
            return tiling.tile(piece, cuts=cuts, size=(cuts[0][-1],) * 2, group=group)

        plain, tile = training_step(model, whole, dtype), training_step(model, part, dtype)
        case = f"{name} {size}^2 {str(dtype).removeprefix('torch.')}"

        def row(
            way: str, step: Callable[[], None], graph: bool, base: tuple[float, float] | None, case: str = case
        ) -> tuple[float, float]:
            gc.collect()
            torch.cuda.empty_cache()
            if graph:
                step, gib = captured(step)
                ms, spread, host, _ = measure(step, STEPS)
            else:
                ms, spread, host, gib = measure(step, STEPS)
            base = base or (ms, gib)
            ratios = f"{ms / base[0]:>8.3f}{gib / base[1]:>8.3f}"
            print(f"{case:<28}{way:<14}{ms:>8.1f}{spread:>8.1f}{host:>8.1f}{gib:>8.2f}{ratios}", flush=True)
            return base

        base = row("plain", plain, False, None)
        row("tile", tile, False, base)
        row("plain again", plain, False, base)
        if options.graph:
            base = row("plain, graph", plain, True, None)
            row("tile, graph", tile, True, base)
        exchanger.counter.reset()
        tile()
        c = exchanger.counter
        print(
            f"{'':<28}a step would send {c.exchanges} exchanges, {c.messages} messages, {c.bytes / 2**20:.1f} MiB, "
            f"{c.reductions} reductions"
        )
        if options.kernels:
            compare_kernels(plain, tile)
        del model, plain, tile


if __name__ == "__main__":
    main()
