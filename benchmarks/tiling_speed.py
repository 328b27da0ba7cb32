"""Four 3x3 convolutions, forward and backward, on two gloo processes: tiles against a hand-written halo exchange.

    OMP_NUM_THREADS=1 python benchmarks/tiling_speed.py
    OMP_NUM_THREADS=1 python benchmarks/tiling_speed.py --peer /path/to/site-packages   # and ShardTensor of physicsnemo

All of them take turns, step by step, in the same two processes; a time is the lower quartile over the steps, of the
slower rank. "one process" is the whole image on one of them, while the other one waits.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling.overlapping import TRIALS

CASES = ((64, 4, 8), (256, 8, 8), (512, 32, 32), (1024, 8, 8))


def network(given: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Conv2d(given if i == 0 else width, width, 3, padding=1) for i in range(4)])


class HandHalo(torch.autograd.Function):
    """What one writes by hand for a 3x3 convolution on rows: send edge rows, stack, and send their gradients back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        rank, world = dist.get_rank(), dist.get_world_size()
        above, below = x.new_zeros(x[:, :, :1].shape), x.new_zeros(x[:, :, :1].shape)
        works = []
        if rank > 0:
            works += [dist.irecv(above, rank - 1), dist.isend(x[:, :, :1].contiguous(), rank - 1)]
        if rank < world - 1:
            works += [dist.irecv(below, rank + 1), dist.isend(x[:, :, -1:].contiguous(), rank + 1)]
        for work in works:
            work.wait()
        return torch.cat([above, x, below], 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rank, world = dist.get_rank(), dist.get_world_size()
        own = grad[:, :, 1:-1].contiguous()
        works, first, last = [], None, None
        if rank > 0:
            first = torch.empty_like(own[:, :, :1])
            works += [dist.irecv(first, rank - 1), dist.isend(grad[:, :, :1].contiguous(), rank - 1)]
        if rank < world - 1:
            last = torch.empty_like(own[:, :, -1:])
            works += [dist.irecv(last, rank + 1), dist.isend(grad[:, :, -1:].contiguous(), rank + 1)]
        for work in works:
            work.wait()
        if first is not None:
            own[:, :, :1] += first
        if last is not None:
            own[:, :, -1:] += last
        return own


def sum_by_hand(net: nn.Module) -> None:
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    flat = torch.cat([g.view(-1) for g in gradients])
    dist.all_reduce(flat)
    for g, new in zip(gradients, flat.split([g.numel() for g in gradients])):
        g.copy_(new.view_as(g))


def hand_step(net: nn.Sequential, rows: Tensor) -> Callable[[], None]:
    def step() -> None:
        net.zero_grad()
        x = rows
        for conv in net:
            assert isinstance(conv, nn.Conv2d)
            x = F.conv2d(HandHalo.apply(x), conv.weight, conv.bias, padding=(0, 1))
        x.square().sum().backward()
        sum_by_hand(net)

    return step


def tile_step(net: nn.Sequential, rows: Tensor, size: int, policy: tiling.Policy = "auto") -> Callable[[], None]:
    def step() -> None:
        net.zero_grad()
        with tiling.overlap(policy):
            y = net(tiling.tile(rows, (2, 1), size=(size, size)))
        y.local.square().sum().backward()

    return step


def whole_step(net: nn.Sequential, image: Tensor) -> Callable[[], None]:
    def step() -> None:
        if dist.get_rank() == 0:
            net.zero_grad()
            net(image).square().sum().backward()
        dist.barrier()

    return step


def shard_step(net: nn.Sequential, rows: Tensor) -> Callable[[], None]:
    """nvidia-physicsnemo's ShardTensor, set up as it must be on CPU."""
    from physicsnemo.domain_parallel import ShardTensor, register_custom_ops  # type: ignore[import-not-found]
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_module

    register_custom_ops()
    mesh = init_device_mesh("cpu", (2,))
    whole = (*rows.shape[:2], 2 * rows.shape[2], rows.shape[3])
    cut = ShardTensor.from_local(rows, mesh, (Shard(2),), sharding_shapes="chunk", global_shape=whole)
    spread = distribute_module(net, mesh)

    def step() -> None:
        spread.zero_grad()
        spread(cut).square().sum().backward()

    return step


def measure(ways: dict[str, Callable[[], None]], steps: int) -> dict[str, float]:
    """Seconds per step of each way: the lower quartile on the slower rank. The ways take turns, step by step."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps):
        for name, step in ways.items():
            dist.barrier()
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    quartiles = torch.tensor([statistics.quantiles(t)[0] for t in times.values()], dtype=torch.float64)
    dist.all_reduce(quartiles, dist.ReduceOp.MAX)
    return dict(zip(ways, quartiles.tolist()))


def work(rank: int, port: int, options: argparse.Namespace) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    if options.peer:
        sys.path += options.peer.split(":")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for size, given, width in CASES:
        if size > options.largest:
            continue
        torch.manual_seed(1)
        image = torch.randn(1, given, size, size)
        rows = image[:, :, rank * size // 2 : (rank + 1) * size // 2].clone()
        nets = {name: network(given, width) for name in ("tiles", "by hand", "one process", "ShardTensor")}
        ways = {
            "tiles": tile_step(nets["tiles"], rows, size),
            "by hand": hand_step(nets["by hand"], rows),
            "one process": whole_step(nets["one process"], image),
        }
        if options.policies:
            ways["never"] = tile_step(network(given, width), rows, size, "never")
            ways["always"] = tile_step(network(given, width), rows, size, "always")
        if options.peer:
            ways["ShardTensor"] = shard_step(nets["ShardTensor"], rows)
        steps = max(8, min(400, 400 * 64 * 64 * 8 // (size * size * width))) * options.rounds
        measure(ways, 2 * TRIALS)  # the first steps measure which policy pays, and build what is cached later
        best = measure(ways, steps)
        if rank == 0:
            for a, b in zip(nets["tiles"].parameters(), nets["one process"].parameters()):
                assert a.grad is not None and b.grad is not None
                error = (a.grad - b.grad).norm() / b.grad.norm()
                assert error < 1e-4, f"the tiles' gradients differ from one process's by {error}"
            times = "  ".join(f"{name} {1e3 * t:8.3f} ms" for name, t in best.items())
            ratios = "  ".join(f"/ {name} = {best['tiles'] / t:.2f}" for name, t in best.items() if name != "tiles")
            print(f"{size:5}^2, {given} -> {width} channels:  {times}   tiles {ratios}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="times as many steps")
    parser.add_argument("--largest", type=int, default=1024, help="leave out larger images")
    parser.add_argument("--policies", action="store_true", help="also tiles that overlap never, and always")
    parser.add_argument(
        "--peer", default="", help="folders with nvidia-physicsnemo and what it imports, joined by colons"
    )
    options = parser.parse_args()
    machine = platform.processor() or platform.machine()
    print(f"# {machine}, {os.cpu_count()} cores, torch {torch.__version__}, 2 processes")
    print(f"# python {' '.join(sys.argv)}")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(work, (port, options), nprocs=2)


if __name__ == "__main__":
    main()
