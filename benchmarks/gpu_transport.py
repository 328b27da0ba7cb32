"""Several ranks on one GPU: exact steps over ipc and staged, and what the two transports carry.

    PYTHONPATH=src python benchmarks/gpu_transport.py [--ranks 4] [--device cuda]

Needs torch and one GPU (with --device cpu it shows ipc over host memory beside gloo). Prints the largest difference of
a spatial 2x2 step and of a 2-stage pipeline step from one device in float32 and float64, then latency and bandwidth of
messages of 1 KB to 256 MB between two ranks: the time of a message there and back, halved.
"""

from __future__ import annotations

import argparse
import time
import traceback
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine, World, join, run_local
from halocline.runtime.batch import sample_cuts
from halocline.runtime.layers import one_device
from halocline.runtime.transports.transport import make

SPATIAL = "microbatches = 2\nstages = [{layers = [0, 6], tiles = [2, 2]}]"
PIPELINE = """microbatches = 4
replicas = 2
schedule = "1f1b"
stages = [{layers = [0, 3]}, {layers = [3, 6]}]"""
MIXED = """microbatches = 2
schedule = "gpipe"
stages = [{layers = [0, 3], tiles = [1, 3]}, {layers = [3, 6]}]"""
PLANS = {"spatial 2x2": SPATIAL, "pipeline 2 x 2 replicas": PIPELINE, "3 tiles, then one rank": MIXED}
SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24, 1 << 26, 1 << 28]
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def layers(dtype: torch.dtype) -> list:
    """In float32 without ReLU and max pooling: where two values nearly tie, rounding decides which one gets the
    gradient, on one device as well, and no tolerance tells that from a mistake."""
    smooth = dtype == torch.float32
    bend, pool = (nn.GELU, nn.AvgPool2d) if smooth else (nn.ReLU, nn.MaxPool2d)
    return [
        lambda: nn.Conv2d(3, 16, 5, 2, 2, bias=False),
        lambda: nn.Sequential(nn.BatchNorm2d(16), bend(), pool(3, 2, 1)),
        lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), bend()),
        lambda: nn.Conv2d(32, 32, 3, 2, 1),
        lambda: nn.Sequential(bend(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        lambda: nn.Linear(32, 10),
    ]


def batch(dtype: torch.dtype, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, 98, 90, generator=generator, dtype=torch.float64)
    return x.to(dtype), torch.randint(0, 10, (8,), generator=generator)


def differences(world: World, text: str, dtype: torch.dtype, steps: int = 2) -> dict[str, float]:
    """The largest relative differences from the same steps on one device (this one), over all that this rank holds."""
    plan = Plan.from_toml(text)
    engine = Engine(
        plan,
        layers(dtype),
        loss=F.cross_entropy,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        world=world,
        dtype=dtype,
    )
    net = one_device(layers(dtype)).to(world.device, dtype)
    update = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    worst = {"loss": 0.0, "gradient": 0.0, "parameter": 0.0, "buffer": 0.0}

    def note(what: str, ours: Tensor, theirs: Tensor, scale: float) -> None:
        worst[what] = max(worst[what], (ours.double() - theirs.double()).abs().max().item() / max(scale, 1e-30))

    for step in range(steps):
        x, y = batch(dtype, step)
        result = engine.step(x, y)
        update.zero_grad()
        total = 0.0
        for a, b in chain(*sample_cuts(plan, len(x))):
            loss = F.cross_entropy(net(x[a:b].to(world.device)), y[a:b].to(world.device))
            (loss * ((b - a) / len(x))).backward()
            total += loss.item() * (b - a) / len(x)
        worst["loss"] = max(worst["loss"], abs(result.loss - total) / abs(total))
        theirs = dict(net.named_parameters())
        largest = max(p.grad.abs().max().item() for p in theirs.values() if p.grad is not None)
        for name, parameter in engine.named_parameters():
            ours, reference = parameter.grad, theirs[name].grad
            assert ours is not None and reference is not None
            note("gradient", ours, reference, max(reference.abs().max().item(), 1e-2 * largest))
        update.step()
    for name, parameter in engine.named_parameters():
        reference = dict(net.named_parameters())[name]
        note("parameter", parameter.detach(), reference.detach(), reference.abs().max().item())
    for name, buffer in engine.named_buffers():
        reference = dict(net.named_buffers())[name]
        note("buffer", buffer, reference, reference.abs().max().item())
    return worst


def ping_pong(world: World, size: int) -> float:
    """Seconds for one message of `size` bytes from rank 0 to rank 1, the others idle."""
    message = torch.zeros(size, dtype=torch.uint8, device=world.device)
    peer = 1 - world.rank

    def once() -> None:
        if world.rank == 0:
            handle = world.send(message, peer)
            _, back = world.receive(size, peer)
            world.wait(back, "ping", peer)
            world.wait(handle, "ping", peer)
        else:
            _, there = world.receive(size, peer)
            world.wait(there, "pong", peer)
            world.wait(world.send(message, peer), "pong", peer)

    times = []
    for _ in range(4):
        _synchronize(world)
        start = time.perf_counter()
        rounds = 20 if size < 1 << 20 else 3
        for _ in range(rounds):
            once()
        _synchronize(world)
        times.append((time.perf_counter() - start) / rounds / 2)
    return min(times[1:])


def _synchronize(world: World) -> None:
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)


def work(device: str) -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    world = join(device, deadline=60)
    first = world.rank == 0
    say = print if first else (lambda *_, **__: None)
    gpu = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu"
    say(f"{world}; {gpu}, torch {torch.__version__}", flush=True)
    assert world.transport is not None
    say(f"automatic choice: {world.transport.name}", flush=True)
    failed = 0
    for name in ("ipc", "staged" if world.device.type == "cuda" else "gloo"):
        world.transport = make(name, world.rank, world.device)
        for plan_name, text in PLANS.items():
            for dtype in (torch.float32, torch.float64):
                start = time.perf_counter()
                worst = differences(world, text, dtype)
                far = torch.tensor([*worst.values()], dtype=torch.float64)
                gathered = [torch.zeros_like(far) for _ in range(world.size)]
                torch.distributed.all_gather(gathered, far)
                far = torch.stack(gathered).amax(0)
                good = bool((far <= TOLERANCE[dtype]).all())
                failed += not good
                numbers = " ".join(f"{k} {v:.1e}" for k, v in zip(worst, far.tolist()))
                verdict = "exact" if good else f"WRONG (more than {TOLERANCE[dtype]:g})"
                kind = str(dtype).removeprefix("torch.")
                took = time.perf_counter() - start
                say(f"{name:7} {plan_name:24} {kind:8} {numbers}  {verdict}  ({took:.1f} s)", flush=True)
        say(f"{name:7} {'bytes':>12} {'microseconds':>14} {'GiB/s':>10}", flush=True)
        for size in SIZES:
            if name != "ipc" and size > 1 << 26:
                continue
            seconds = ping_pong(world, size) if world.rank < 2 else 0.0
            torch.distributed.barrier()
            say(
                f"{name:7} {size:12d} {seconds * 1e6:14.1f} {size / seconds / 2**30 if seconds else 0:10.2f}",
                flush=True,
            )
        world.transport.close()
    say("all exact" if not failed else f"{failed} of the steps above are WRONG", flush=True)
    world.transport = None
    if world.watch is not None:
        world.watch.leave()
    torch.distributed.destroy_process_group()
    if failed:
        raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    try:
        run_local(options.ranks, work, options.device)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
