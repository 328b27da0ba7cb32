"""Tokens per second of a tiny GPT in a pipe, against torch.distributed.pipelining: the same layers, cut, microbatches
and schedule (1F1B), on gloo processes of this machine. Prints ours, theirs and the ratio (ours / theirs; 1.0 or more is
the aim).

    python benchmarks/gpt_speed.py [--processes 2] [--steps 40] [--hidden 128]

Both live in the same processes, begin with the same weights and take turns step by step, each going first as often, so
that they meet the same machine; their losses must agree. The ratio is the median over turns of the ratio of a turn's
two times. CPU time is the sum over ranks and hardly depends on what else runs. The head has a table of its own, because
torch.distributed.pipelining ties no weights between stages.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from halocline.models.model import Model, make
from halocline.plan import Plan
from halocline.runtime import Engine, World

BLOCKS, HEADS, VOCAB, SEQUENCE, MICROBATCH, MICROBATCHES = 6, 4, 1024, 64, 4, 8
WARMUP = 3


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def our_step(engine: Engine, x: Tensor, y: Tensor) -> Callable[[], float]:
    return lambda: engine.step(x, y).loss


def their_step(engine: Engine, model: Model, plan: Plan, width: int, x: Tensor, y: Tensor) -> Callable[[], float]:
    """Its stage begins with the weights of ours."""
    rank, size = dist.get_rank(), dist.get_world_size()
    first, stop = plan.stages[rank].layers
    module = nn.Sequential(*(layer() for layer in model.layers[first:stop]))  # type: ignore[operator]
    ours = [layer for _, layer in engine.modules[rank]]
    for theirs, own in zip(module, ours):
        theirs.load_state_dict(own.state_dict())
    hidden = torch.empty(MICROBATCH, SEQUENCE, width, requires_grad=True)
    words = torch.empty(MICROBATCH, SEQUENCE, dtype=torch.int64)
    scores = torch.empty(MICROBATCH, SEQUENCE, VOCAB, requires_grad=True)
    stage = PipelineStage(
        module,
        rank,
        size,
        torch.device("cpu"),
        input_args=(words if rank == 0 else hidden,),
        output_args=(scores if rank == size - 1 else hidden,),
    )
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=model.loss)
    update = optimizer(module.parameters())

    def step() -> float:
        update.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        update.step()
        return sum(loss.item() for loss in losses) / MICROBATCHES

    return step


def measure(rank: int, size: int, store: str, hidden: int, steps: int, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model = make("gpt3-small", layers=BLOCKS, hidden=hidden, heads=HEADS, vocab=VOCAB, seq=SEQUENCE, tied=False)
    flags = f"--pp {size} --partition_method uniform_transformer --microbatches {MICROBATCHES}".split()
    plan = Plan.from_flags(flags, schedule="1f1b", layers=len(model.layers), kinds=model.kinds)
    engine = Engine(plan, model.layers, loss=model.loss, optimizer=optimizer, world=World.join(deadline=120))
    torch.manual_seed(0)
    x, y = (torch.randint(0, VOCAB, (MICROBATCH * MICROBATCHES, SEQUENCE)) for _ in range(2))
    ways = {"ours": our_step(engine, x, y), "theirs": their_step(engine, model, plan, hidden, x, y)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    work: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WARMUP + steps):
        for name in ways if number % 2 else reversed(ways):
            dist.barrier()
            begin, busy = time.perf_counter(), time.process_time()
            loss = ways[name]()
            busy = time.process_time() - busy
            dist.barrier()
            losses[name].append(loss)
            if number >= WARMUP:
                times[name].append(time.perf_counter() - begin)
                work[name].append(busy)
    if rank == size - 1:
        for ours, theirs in zip(losses["ours"], losses["theirs"]):
            assert abs(ours - theirs) < 1e-3 * theirs, f"the two do not train alike: {ours} and {theirs}"
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {name: statistics.median(found) for name, found in work.items()})
    if rank == 0:
        results.put((times, {name: sum(found[name] for found in gathered) for name in ways}))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} cores, torch {torch.__version__}: GPT of {BLOCKS} blocks, width {options.hidden}, "
        f"{SEQUENCE} tokens, {MICROBATCHES} microbatches of {MICROBATCH}, {options.processes} processes"
    )
    context = torch.multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        arguments = (options.processes, os.path.join(directory, "store"), options.hidden, options.steps, results)
        torch.multiprocessing.spawn(measure, arguments, nprocs=options.processes)
    times, work = results.get()
    tokens = MICROBATCH * MICROBATCHES * SEQUENCE
    ours, theirs = (tokens / statistics.median(times[name]) for name in ("ours", "theirs"))
    ratio = statistics.median(b / a for a, b in zip(times["ours"], times["theirs"]))
    print(
        f"ours {ours:,.0f} tokens/s, torch.distributed.pipelining {theirs:,.0f}: ratio {ratio:.3f} wall, "
        f"{work['theirs'] / work['ours']:.3f} CPU time"
    )


if __name__ == "__main__":
    main()
