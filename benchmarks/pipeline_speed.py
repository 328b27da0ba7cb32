"""Pipelines against torch.distributed.pipelining: the same model, microbatches and schedule, on gloo processes of this
machine. Prints the ratio of median step times and of peak memory per rank (ours / theirs; 1.0 or less is the aim).

    python benchmarks/pipeline_speed.py [--processes 2,4] [--schedules 1f1b,gpipe] [--steps 30]

Both engines live in the same processes and take turns step by step, so that they meet the same machine; CPU time is
the sum over ranks and hardly depends on what else runs. Memory is what tensors occupy at the peak, parameters and
standing buffers included, counted by watching every operator from the building of an engine to its second step.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halocline.plan import Plan
from halocline.runtime import Engine, World

WIDTH, MICROBATCH, MICROBATCHES, LAYERS = 512, 64, 8, 8
THEIRS = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


class LiveBytes(TorchDispatchMode):
    """Counts what tensors made inside occupy, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in given and key not in self._known:
                    self._known.add(key)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
        return result

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def our_step(plan: Plan, x: Tensor, y: Tensor) -> Callable[[], Any]:
    engine = Engine(plan, [layer] * LAYERS, loss=F.mse_loss, optimizer=optimizer, world=World.join(deadline=60))
    return lambda: engine.step(x, y)


def their_step(schedule: str, x: Tensor, y: Tensor) -> Callable[[], Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    module = nn.Sequential(*(layer() for _ in range(LAYERS // size)))
    given = torch.empty(MICROBATCH, WIDTH, requires_grad=rank > 0)  # it reads from these what has a gradient
    made_of_it = torch.empty(MICROBATCH, WIDTH, requires_grad=True)
    stage = PipelineStage(module, rank, size, torch.device("cpu"), input_args=(given,), output_args=(made_of_it,))
    made = THEIRS[schedule](stage, MICROBATCHES, loss_fn=F.mse_loss)
    update = optimizer(module.parameters())

    def step() -> None:
        update.zero_grad()
        if rank == 0:
            made.step(x)
        elif rank == size - 1:
            losses: list[Tensor] = []
            made.step(target=y, losses=losses)
            sum(loss.item() for loss in losses)
        else:
            made.step()
        update.step()

    return step


def measure(rank: int, size: int, store: str, schedules: list[str], steps: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    x, y = torch.randn(MICROBATCH * MICROBATCHES, WIDTH), torch.randn(MICROBATCH * MICROBATCHES, WIDTH)
    for schedule in schedules:
        plan = Plan.from_flags(split_size=size, parts=MICROBATCHES, layers=LAYERS, schedule=schedule)
        ways = {"ours": our_step(plan, x, y), "theirs": their_step(schedule, x, y)}
        times: dict[str, list[float]] = {name: [] for name in ways}
        work: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(steps + 3):
            for name, step in ways.items():
                dist.barrier()
                begin, busy = time.perf_counter(), time.process_time()
                step()
                busy = time.process_time() - busy
                dist.barrier()
                if number >= 3:
                    times[name].append(time.perf_counter() - begin)
                    work[name].append(busy)
        peaks = {}
        makers = {
            "ours": lambda plan=plan: our_step(plan, x, y),
            "theirs": lambda name=schedule: their_step(name, x, y),
        }
        for name, make in makers.items():
            with LiveBytes() as live:
                step = make()
                step()
                step()
            peaks[name] = live.peak
            del step
        gathered: list[Any] = [None] * size
        dist.all_gather_object(gathered, (peaks, {name: statistics.median(found) for name, found in work.items()}))
        if rank == 0:
            results.put((size, schedule, times, gathered))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="2,4")
    parser.add_argument("--schedules", default="1f1b,gpipe")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    schedules = options.schedules.split(",")
    context = torch.multiprocessing.get_context("spawn")
    sizes = f"{LAYERS} layers of width {WIDTH}, {MICROBATCHES} microbatches of {MICROBATCH}"
    print(f"{os.cpu_count()} cores, torch {torch.__version__}, {sizes}")
    for size in map(int, options.processes.split(",")):
        results = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as directory:
            store = os.path.join(directory, "store")
            torch.multiprocessing.spawn(measure, (size, store, schedules, options.steps, results), nprocs=size)
        for _ in schedules:
            _, schedule, times, ranks = results.get()
            ours, theirs = (statistics.median(times[name]) for name in ("ours", "theirs"))
            busy = sum(work["ours"] for _, work in ranks) / sum(work["theirs"] for _, work in ranks)
            memory = " ".join(f"{peaks['ours'] / peaks['theirs']:.2f}" for peaks, _ in ranks)
            print(
                f"{schedule:6s} {size} processes: {ours * 1e3:7.2f} ms, theirs {theirs * 1e3:7.2f} ms; ratio "
                f"{ours / theirs:.3f} wall, {busy:.3f} CPU time; peak memory by rank, ratio {memory}"
            )


if __name__ == "__main__":
    main()
