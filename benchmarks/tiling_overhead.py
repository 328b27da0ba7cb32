"""What tiling adds to each operator in Python, in microseconds, on images too small for the arithmetic to count.

    OMP_NUM_THREADS=1 python benchmarks/tiling_overhead.py

Tile and plain tensor run the same operator in turns; the overhead is the difference of the best times. "alone" is a
group of one rank; "of two" is a tile with a neighbour that sends nothing (so packing counts, travelling does not).
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling

BUDGET = 30.0


def best(function: Callable[[], object], calls: int) -> float:
    """Microseconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls * 1e6


def overhead(operator: Callable[[Tensor], Tensor], plain: Tensor, tile: Tensor, calls: int, rounds: int) -> list[float]:
    """[plain, tiled] microseconds: the best of `rounds`, taken in turns so that both see the same machine."""
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for found, x in zip(times, (plain, tile)):
            found.append(best(lambda x=x: operator(x), calls))  # type: ignore[misc]
    return [min(t) for t in times]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    conv, conv1 = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 1)
    norm, frozen = nn.BatchNorm2d(2), nn.BatchNorm2d(2).eval()
    operators: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "add": lambda x: x + x,
        "conv3x3": conv,
        "conv1x1": conv1,
        "batch_norm": norm,
        "batch_norm (eval)": frozen,
        "max_pool": lambda x: F.max_pool2d(x, 2),
    }
    print(
        f"# {platform.processor() or platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    )
    print(f"# python {' '.join(sys.argv)}")
    print(f"{'operator':20}{'plain us':>10}{'alone us':>10}{'added':>8}{'of two us':>11}{'added':>8}")
    worst = 0.0
    pair = tiling.NoCommunication(0, 2)
    plain = torch.randn(1, 2, 8, 8, requires_grad=True)
    for name, operator in operators.items():
        alone = tiling.tile(plain.detach().requires_grad_(), (1, 1))
        half = tiling.tile(torch.randn(1, 2, 16, 8).requires_grad_(), (2, 1), pair)
        before, one = overhead(operator, plain, alone, options.calls, options.rounds)
        before2, two = overhead(operator, plain, half, options.calls, options.rounds)
        worst = max(worst, one - before)
        print(f"{name:20}{before:10.1f}{one:10.1f}{one - before:8.1f}{two:11.1f}{two - before2:8.1f}")
    print(f"worst of one rank: {worst:.1f} us, {'within' if worst < BUDGET else 'OVER'} the budget of {BUDGET:.0f} us")
    return 0 if worst < BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
