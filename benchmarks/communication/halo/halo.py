"""What the halo benchmarks share: their command line, the tiles of a made-up image, clocks, checks and the table.

An exchange is one forward fetch of a halo around every tile, and its backward, which returns the halo's gradients.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from halocline import tiling
from halocline.plan.stage import SLICE_METHODS, tile_grid
from halocline.runtime.processes.environment import detect
from halocline.runtime.processes.launch import RankFailed, join, run_local
from halocline.runtime.processes.world import World
from halocline.tiling.boxes import grow
from halocline.tiling.exchanger import NoCommunication

MIB = 1 << 20


def arguments(description: str, *more: tuple[str, str]) -> argparse.Namespace:
    """now-dl's flags with its defaults; `more` are switches, each with its help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--image-size", type=int, default=8, help="height and width of the whole image")
    parser.add_argument("--batch-size", type=int, default=1, help="images")
    parser.add_argument("--halo-len", type=int, default=1, help="pixels fetched on each side of a tile")
    parser.add_argument("--in-channels", type=int, default=1, help="channels of the image")
    parser.add_argument("--out-channels", type=int, default=256, help="channels that the convolution makes")
    parser.add_argument("--warmup", type=int, default=10, help="iterations before the clock starts")
    parser.add_argument("--iterations", type=int, default=100, help="iterations that are timed")
    parser.add_argument("--num-spatial-parts", type=int, default=4, help="tiles, one per process")
    parser.add_argument("--slice-method", choices=SLICE_METHODS, default="square", help="how the image is cut")
    parser.add_argument("--fp16-allreduce", action="store_true", help="accepted and without effect: no reduction here")
    parser.add_argument("--sizes", help="image sizes of the table, e.g. 64,256,1024 (left out: 4 from --image-size on)")
    for flag, text in more:
        parser.add_argument(flag, action="store_true", help=text)
    given = parser.parse_args()
    for name in ("image_size", "batch_size", "in_channels", "out_channels", "iterations"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)} is below 1: use 1 or more")
    if given.sizes and not all(word.isdigit() and int(word) for word in given.sizes.split(",")):
        parser.error(f"--sizes {given.sizes} is not a list of sizes: write e.g. 64,256,1024")
    if given.halo_len < 0 or given.warmup < 0:
        parser.error("--halo-len and --warmup must be 0 or more")
    return given


def start(given: argparse.Namespace) -> World:
    """Join the others, one process per tile; or, without a launcher, start them and end with them."""
    torch.set_num_threads(1)
    if detect() is None and given.num_spatial_parts > 1:
        try:
            run_local(given.num_spatial_parts, [sys.executable, *sys.argv])
        except RankFailed as error:
            raise SystemExit(str(error)) from None
        raise SystemExit
    world = join("cpu" if getattr(given, "CPU", False) else None)
    if world.size != given.num_spatial_parts:
        raise SystemExit(
            f"--num-spatial-parts {given.num_spatial_parts} needs as many processes and {world.size} are running: "
            f"start it with torchrun --nproc-per-node {given.num_spatial_parts}, or change the flag"
        )
    world.make_groups([tuple(range(world.size))])
    return world


@dataclass
class Tiles:
    """One image over all processes, and the same tile in a world that does not communicate."""

    world: World
    image: Tensor
    grid: tuple[int, int]
    halo: int

    @classmethod
    def make(cls, world: World, given: argparse.Namespace, size: int | None = None) -> Tiles:
        size = size or given.image_size
        generator = torch.Generator().manual_seed(0)
        image = torch.randn(given.batch_size, given.in_channels, size, size, generator=generator)
        grid = tile_grid(given.num_spatial_parts, given.slice_method)
        return cls(world, image.to(world.device), grid, given.halo_len)

    def tile(self, communicate: bool = True) -> tiling.TileTensor:
        world = self.world
        exchanger: Any = world.exchanger(tuple(range(world.size))) if world.size > 1 else None
        if exchanger is not None and not communicate:
            exchanger = NoCommunication(exchanger.rank, exchanger.size)
        return tiling.tile(self.image.clone(), self.grid, group=exchanger)

    def fetch(self, tile: tiling.TileTensor) -> tiling.TileTensor:
        """The tile with its halo."""
        spec = tile.spec
        margin = [(self.halo, self.halo)] * len(spec.size)
        return tile.fetched(tuple(grow(box, margin, spec.size) for box in spec.own))

    def traffic(self) -> tuple[int, int]:
        """Messages and bytes that this rank sends in one exchange."""
        tile = self.tile()
        counter = tile.spec.exchanger.counter
        messages, size = counter.messages, counter.bytes
        self.fetch(tile)
        return counter.messages - messages, counter.bytes - size

    def convolution(self, channels: int, kernel: tuple[int, int] | None = None) -> nn.Conv2d:
        """One whose kernel reaches as far as the halo; alike on every rank."""
        kernel = kernel or (2 * self.halo + 1, 2 * self.halo + 1)
        torch.manual_seed(1)
        made = nn.Conv2d(self.image.shape[1], channels, kernel, padding=(kernel[0] // 2, kernel[1] // 2))
        return made.to(self.world.device)


def milliseconds(step: Callable[[], Any], world: World, warmup: int, iterations: int) -> float:
    """The mean time of a step on this rank, all ranks starting together."""
    for _ in range(warmup):
        step()
    _synchronize(world)
    world.sum(torch.zeros(1, device=world.device))
    started = time.perf_counter()
    for _ in range(iterations):
        step()
    _synchronize(world)
    return (time.perf_counter() - started) / iterations * 1e3


def both_ways(make: Callable[[], Tensor], world: World, given: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds of a forward, and of the backward that follows it."""
    forward = milliseconds(lambda: make(), world, given.warmup, given.iterations)

    spent: list[float] = []

    def step() -> None:
        out = make()
        _synchronize(world)
        started = time.perf_counter()
        out.backward(torch.ones_like(out))
        _synchronize(world)
        spent.append(time.perf_counter() - started)

    milliseconds(step, world, given.warmup, given.iterations)
    return forward, sum(spent[given.warmup :]) / given.iterations * 1e3


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize()


def slowest(world: World, *values: float) -> list[float]:
    """The largest of each value over all ranks."""
    table = torch.zeros(world.size, len(values), dtype=torch.float64, device=world.device)
    table[world.rank] = torch.tensor(values, dtype=torch.float64)
    return world.sum(table).amax(0).tolist()


def validate(world: World, what: str, ours: Tensor, expected: Tensor, tolerance: float) -> None:
    """Say that a rank's part is right, or stop with both values."""
    worst = float((ours - expected).abs().max()) if ours.numel() else 0.0
    if ours.shape != expected.shape or worst > tolerance:
        raise SystemExit(
            f"Validation failed Rank:{world.rank}: {what} of shape {tuple(ours.shape)} differs by {worst:.3g} from one "
            f"device's {tuple(expected.shape)}, more than {tolerance:g}"
        )


def sizes(given: argparse.Namespace) -> list[int]:
    if given.sizes:
        return [int(word) for word in given.sizes.split(",")]
    return [given.image_size * 2**n for n in range(4)]


def table(world: World, given: argparse.Namespace, compute: bool) -> None:
    """Latency, bandwidth, and with `compute` the share of the exchange that a convolution hides, by message size."""
    head = ["image", "sent KiB", "messages", "forward ms", "backward ms", "MiB/s"]
    rows = []
    for size in sizes(given):
        tiles = Tiles.make(world, given, size)
        messages, sent = tiles.traffic()
        leaf = tiles.tile().local.requires_grad_()

        def exchange(leaf: Tensor = leaf, tiles: Tiles = tiles) -> Tensor:
            spec = tiles.tile().spec
            return tiles.fetch(tiling.TileTensor.wrap(leaf, spec)).local

        forward, backward = both_ways(exchange, world, given)
        row = slowest(world, sent / 1024, messages, forward, backward)
        row.append(row[0] / 1024 / max(row[2], 1e-9) * 1e3)
        if compute:
            row += overlap_times(tiles, world, given, row[2])
        rows.append([float(size), *row])
    if compute:
        head += ["compute ms", "in sequence ms", "overlapped ms", "hidden"]
    if world.rank == 0:
        print("  ".join(name.rjust(max(8, len(name))) for name in head))
        for row in rows:
            cells = [f"{row[0]:.0f}", f"{row[1]:.1f}", f"{row[2]:.0f}", *(f"{v:.3f}" for v in row[3:])]
            if compute:
                cells[-1] = f"{row[-1]:.0%}"
            print("  ".join(cell.rjust(max(8, len(name))) for cell, name in zip(cells, head)), flush=True)


def overlap_times(tiles: Tiles, world: World, given: argparse.Namespace, exchange: float) -> list[float]:
    """Milliseconds of a convolution alone, after its halo and beside it, and the share of the exchange it hides."""
    conv = tiles.convolution(given.out_channels)
    alone, both = tiles.tile(communicate=False), tiles.tile()

    def run(tile: tiling.TileTensor, policy: Any) -> Callable[[], None]:
        def step() -> None:
            with torch.no_grad(), tiling.overlap(policy):
                conv(tile)

        return step

    compute = milliseconds(run(alone, "never"), world, given.warmup, given.iterations)
    sequence = milliseconds(run(both, "never"), world, given.warmup, given.iterations)
    beside = milliseconds(run(both, "always"), world, given.warmup, given.iterations)
    compute, sequence, beside = slowest(world, compute, sequence, beside)
    hidden = (compute + exchange - beside) / exchange if exchange else 0.0
    return [compute, sequence, beside, min(1.0, max(0.0, hidden))]
