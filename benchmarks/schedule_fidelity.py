"""Does a schedule take the time the simulator says? Layers that only wait a fixed time, on 4 gloo processes, 8
microbatches, every schedule: the measured makespan beside the simulated one (within 5% is the aim), and the most
activations a rank held at once, counted by the graphs alive, beside the simulated count.

    python benchmarks/schedule_fidelity.py [--forward 0.1] [--layers 4] [--steps 3] [--schedules gems,1f1b]

Waiting needs no core, so four processes behave like four machines even on few cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn

from halocline.plan import Plan
from halocline.runtime import Engine, World
from halocline.schedule import generate
from halocline.simulation import Costs
from halocline.simulation.simulator import simulate

RANKS, MICROBATCHES = 4, 8
PLANS: dict[str, dict[str, Any]] = {
    "layer": {},
    "gpipe": {},
    "1f1b": {},
    "interleaved": {},
    "zb-h1": {},
    "early-recompute-1f1b": {},
    "capped": {},
    "gems": {},
    "chimera": {},
    "gems+spatial": {"schedule": "gems", "split_size": 3, "num_spatial_parts": 2, "slice_method": "vertical"},
}


def plan_of(name: str, layers: int) -> Plan:
    """With so many layers per stage."""
    flags = {"schedule": name, "split_size": RANKS, "microbatches": MICROBATCHES, **PLANS[name]}
    chunks = 2 if name == "interleaved" else 1
    return Plan.from_flags(layers=flags["split_size"] * chunks * layers, **flags)


def costs_of(plan: Plan, forward: float) -> Costs:
    """Backward twice the forward. The first stage of a split backward has no input gradient: all of it is weight."""
    backward = 2 * forward
    weight = None
    if plan.schedule == "zb-h1":
        weight = [backward] + [backward / 2] * (len(plan.stages) - 1)
    return Costs(forward=forward, backward=backward, weight=weight)


class Alive:
    """How many forwards' activations are alive, and the most that were."""

    def __init__(self) -> None:
        self.count: Counter[int] = Counter()
        self.forward = self.peak = 0

    def keep(self, tensor: Tensor) -> _Kept:
        return _Kept(tensor, self, self.forward)


class _Kept:
    """A tensor that autograd saved for a backward."""

    def __init__(self, tensor: Tensor, alive: Alive, forward: int) -> None:
        self.tensor, self.alive, self.forward = tensor, alive, forward
        alive.count[forward] += 1
        alive.peak = max(alive.peak, sum(n > 0 for n in alive.count.values()))

    def __del__(self) -> None:
        self.alive.count[self.forward] -= 1


ALIVE = Alive()
"""Of this process. A hook on all modules counts, no forward: copies of a stage would not share what it counted."""


class WaitOnTheWayUp(torch.autograd.Function):
    """The input half of a backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Wait(nn.Module):
    """A layer that takes time and no cores; the first of its stage counts forwards."""

    def __init__(self, forward: float, upwards: float, weight: float, first: bool) -> None:
        super().__init__()
        self.times, self.first = (forward, upwards), first
        self.conv = nn.Conv2d(2, 2, 1, bias=False)
        self.conv.weight.register_hook(lambda gradient: time.sleep(weight))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.times[0])
        if self.times[1] and x.requires_grad:
            x = WaitOnTheWayUp.apply(x, self.times[1])
        return self.conv(x)


def count(module: nn.Module, args: Any) -> None:
    ALIVE.forward += isinstance(module, Wait) and module.first


def measure(rank: int, store: str, names: list[str], forward: float, each: int, steps: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    world = World.join(deadline=60)
    torch.nn.modules.module.register_module_forward_pre_hook(count)
    x = torch.randn(MICROBATCHES, 2, 4, 4)
    for name in names:
        plan = plan_of(name, each)
        layers = []
        for row in costs_of(plan, forward).per_stage(plan):
            up = row.backward - row.weight if plan.schedule == "zb-h1" else 0.0
            down = row.backward - up
            layers += [partial(Wait, row.forward / each, up / each, down / each, n == 0) for n in range(each)]
        engine = Engine(plan, layers, loss=lambda out, _: out.mean(), world=world)
        times = []
        for number in range(steps + 1):
            ALIVE.peak = 0
            dist.barrier()
            begin = time.perf_counter()
            with torch.autograd.graph.saved_tensors_hooks(ALIVE.keep, lambda kept: kept.tensor):
                engine.step(x, torch.zeros(MICROBATCHES))
            last = torch.tensor(time.perf_counter() - begin)
            dist.all_reduce(last, op=dist.ReduceOp.MAX)
            if number:
                times.append(last.item())
        peaks: list[Any] = [None] * RANKS
        dist.all_gather_object(peaks, ALIVE.peak)
        if rank == 0:
            results.put((name, times, peaks))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forward", type=float, default=0.1, help="seconds of one stage's forward")
    parser.add_argument("--layers", type=int, default=4, help="layers of a stage")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--schedules", default=",".join(PLANS))
    options = parser.parse_args()
    names = options.schedules.split(",")
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        given = (store, names, options.forward, options.layers, options.steps, results)
        torch.multiprocessing.spawn(measure, given, nprocs=RANKS)
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}, {RANKS} processes, {MICROBATCHES} microbatches, ", end=""
    )
    print(f"{options.layers} layers a stage")
    for _ in names:
        name, times, peaks = results.get()
        plan = plan_of(name, options.layers)
        said = simulate(generate(plan), costs_of(plan, options.forward))
        took = statistics.median(times)
        print(
            f"{name:21s} {took * 1e3:8.1f} ms, simulated {said.makespan * 1e3:8.1f} ms, "
            f"ratio {took / said.makespan:.3f}; "
            f"activations held {peaks}, simulated {list(said.peak_activations)}"
        )


if __name__ == "__main__":
    main()
