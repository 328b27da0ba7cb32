"""What a tile costs on a GPU beside the plain model on an image of the tile's size: time and memory of a training step.

    PYTHONPATH=src python benchmarks/tiling_gpu.py [--quick]

One process plays the middle tile of a 3x3 grid, with halos on all four sides. Nothing is sent (the no-communication
exchanger; packing and padding included), so the figures are the price of tiling itself. Needs a CUDA device and
torchvision. Prints ratios against the plain eager model, measured in the same run.
"""

from __future__ import annotations

import argparse
import gc
import statistics
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


def measure(model: nn.Module, make: Callable[[], Tensor], dtype: torch.dtype, steps: int) -> tuple[float, float, float]:
    """Median and spread of a step in ms, and its peak memory in GiB."""
    times = []
    torch.cuda.synchronize()
    for step in range(steps + 3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(make()).float().square().mean()
        loss.backward()
        model.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if step >= 3:
            times.append(begin.elapsed_time(end))
    return statistics.median(times), max(times) - min(times), torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one small case, to see that it runs")
    quick = parser.parse_args().quick
    torch.backends.cudnn.benchmark = True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch 1, channels_last, 12 steps, median")
    print(f"{'case':<30}{'way':<22}{'ms':>8}{'spread':>8}{'GiB':>8}{'time x':>8}{'mem x':>8}")
    for name, size, dtype in [("resnet18", 512, torch.bfloat16)] if quick else CASES:
        torch.manual_seed(0)
        model = getattr(torchvision.models, name)().cuda().to(memory_format=torch.channels_last)
        piece = torch.randn(1, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
        exchanger = tiling.NoCommunication(4, 9)
        cuts = ((0, size, 2 * size, 3 * size),) * 2

        def plain(piece: Tensor = piece) -> Tensor:
            return piece

        def tile(piece: Tensor = piece, cuts: tuple = cuts, group: tiling.Exchanger = exchanger) -> Tensor:
            return tiling.tile(piece, cuts=cuts, size=(cuts[0][-1],) * 2, group=group)

        ways: list[tuple[str, Callable[[], Tensor]]] = [("plain", plain), ("tile", tile), ("plain again", plain)]
        base: tuple[float, float] | None = None
        for way, make in ways:
            gc.collect()
            torch.cuda.empty_cache()
            ms, spread, gib = measure(model, make, dtype, 12)
            base = base or (ms, gib)
            case = f"{name} {size}^2 {str(dtype).removeprefix('torch.')}"
            print(
                f"{case:<30}{way:<22}{ms:>8.1f}{spread:>8.1f}{gib:>8.2f}{ms / base[0]:>8.3f}{gib / base[1]:>8.3f}",
                flush=True,
            )
        exchanger.counter.reset()
        measure(model, tile, dtype, 1)
        steps = 4
        c = exchanger.counter
        print(
            f"{'':<30}{'a step would send':<22}{c.exchanges // steps} exchanges, {c.messages // steps} messages, "
            f"{c.bytes / steps / 2**20:.1f} MiB, {c.reductions // steps} reductions"
        )
        del model


if __name__ == "__main__":
    main()
