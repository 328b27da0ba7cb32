"""gpt3-medium on one GPU in one process: Halocline's engine against a loop written by hand over Hugging Face's GPT-2
with SDPA. bf16 autocast over float32 parameters, 1024 tokens, fused AdamW, the same weights and words.

    python benchmarks/gpt_gpu.py [--batch 8] [--microbatches 1] [--compile] [--steps 20]

Prints tokens/s, model flops utilisation, peak memory and the ratio of speeds (ours / theirs; 0.98 or more is the aim);
with --compile both once more with torch.compile, and what that gains. The ways take turns, a few steps at a time, so
that they meet the same clocks; their losses must agree. Utilisation counts the operations of matrix products, three
times the forward's, against the GPU's dense bf16 peak (--peak names another). Needs transformers. Any sizes, and
--device cpu, serve to try the script.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models import hf
from halocline.models.count import work
from halocline.models.model import Model, make
from halocline.plan import Plan
from halocline.runtime import Engine, World
from halocline.simulation.speed import COMPUTE, KNOWN

TURN = 4
"""Steps that one way takes before the next has its turn."""

Step = Callable[[Tensor, Tensor], float]


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    parameters = list(parameters)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=parameters[0].is_cuda)


def our_step(model: Model, options: argparse.Namespace, compiled: bool) -> tuple[Step, Engine]:
    plan = Plan.from_flags(split_size=1, microbatches=options.microbatches, layers=len(model.layers))
    engine = Engine(
        plan,
        model.layers,
        loss=model.loss,
        optimizer=optimizer,
        tied=model.tied,
        world=World(0, 1, torch.device(options.device)),
        autocast=torch.bfloat16,
        compile=compiled,
    )
    return lambda x, y: engine.step(x, y).loss, engine


def their_step(folder: str, options: argparse.Namespace, compiled: bool) -> Step:
    """What one would write by hand: zero, forward, backward, step."""
    from transformers import AutoModelForCausalLM

    # GPT-2's activation as one operator: its folder's own name for it takes eight.
    net: nn.Module = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="sdpa", activation_function="gelu_pytorch_tanh"
    ).to(options.device)
    net.train()
    update = optimizer(net.parameters())
    if compiled:
        net.compile()

    def step(x: Tensor, y: Tensor) -> float:
        update.zero_grad(set_to_none=True)
        total = 0.0
        for words, targets in zip(x.chunk(options.microbatches), y.chunk(options.microbatches)):
            with torch.autocast(x.device.type, torch.bfloat16):
                logits = net(words, use_cache=False).logits
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / options.microbatches
            loss.backward()
            total += loss.detach()
        update.step()
        return float(total)

    return step


def weights(engine: Engine) -> Iterator[tuple[str, Tensor]]:
    """The engine's parameters by their one-device names."""
    for layers in engine.modules.values():
        for name, layer in layers:
            for key, parameter in layer.named_parameters():
                yield f"{name}.{key}", parameter.detach().cpu()


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_memory(step: Step, x: Tensor, y: Tensor) -> float:
    """GiB that the GPU holds at the peak of a step beyond what it holds between steps."""
    if not x.is_cuda:
        return math.nan
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(x, y)
    wait("cuda")
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def measure(ways: dict[str, Step], x: Tensor, y: Tensor, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of a step of each way, the median of its turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, max(1, options.steps // TURN)):  # the first turn is for warming up, and for compilers
        for name in ways if turn % 2 else reversed(ways):
            wait(options.device)
            begin = time.perf_counter()
            for _ in range(TURN):
                losses[name].append(ways[name](x, y))
            wait(options.device)
            if turn >= 0:
                times[name].append((time.perf_counter() - begin) / TURN)
    first = next(iter(losses.values()))
    for name, found in losses.items():
        for a, b in zip(first, found):
            assert abs(a - b) < 0.02 * a, f"{name} does not train as the first way does: losses {b} and {a}"
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 24), ("hidden", 1024), ("heads", 16), ("vocab", 50257), ("seq", 1024)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--batch", type=int, default=8, help="samples of a step")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    sizes = {name: getattr(options, name) for name in ("layers", "hidden", "heads", "vocab", "seq")}
    model = make("gpt3-medium", **sizes)
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    known = [name for name in KNOWN if name in device.lower()]
    peak = KNOWN[max(known, key=len)].compute["bf16"] / COMPUTE if known else math.nan
    peak = options.peak * 1e12 if options.peak else peak
    flops = 3 * options.batch * sum(layer.flops for layer in work(model))
    print(f"{device}, torch {torch.__version__}: GPT {sizes}, batch {options.batch} in {options.microbatches}, bf16")

    torch.manual_seed(0)
    words = torch.randint(0, options.vocab, (options.batch, options.seq + 1), device=options.device)
    x, y = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    ways: dict[str, Step] = {}
    with tempfile.TemporaryDirectory() as folder:
        ways["ours"], engine = our_step(model, options, compiled=False)
        hf.save(folder, model, weights(engine))
        ways["theirs"] = their_step(folder, options, compiled=False)
        if options.compile:
            ways["ours compiled"], _ = our_step(model, options, compiled=True)
            ways["theirs compiled"] = their_step(folder, options, compiled=True)
    times = measure(ways, x, y, options)
    for name, seconds in times.items():
        speed, used = options.batch * options.seq / seconds, flops / seconds / peak
        memory = peak_memory(ways[name], x, y)
        print(f"{name:16s} {speed:12,.0f} tokens/s  {seconds * 1e3:9.2f} ms  MFU {used:6.1%}", end="")
        print(f"  {memory:.2f} GiB more at the peak of a step")
    print(f"ours / theirs: {times['theirs'] / times['ours']:.3f}")
    if options.compile:
        print(f"compiled, ours / theirs: {times['theirs compiled'] / times['ours compiled']:.3f}")
        print(f"what torch.compile gains: ours {times['ours'] / times['ours compiled']:.3f}", end="")
        print(f", theirs {times['theirs'] / times['theirs compiled']:.3f}")


if __name__ == "__main__":
    main()
