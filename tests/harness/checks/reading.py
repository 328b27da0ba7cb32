"""What runs on each rank of the tests of reading, evaluating, offloading and observing."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.batch import sample_cuts
from halocline.runtime.layers import derived_seed, one_device
from halocline.runtime.proof import verify
from halocline.schedule.events import Observer, TimeMarks
from halocline.schedule.instruction import COMPUTE, RECEIVE, REDUCE, STEP, Instruction
from halocline.tiling.boxes import shape
from halocline.tiling.patchwork import Patchwork
from halocline.tiling.randomness import seed_randomness
from harness.checks import plans
from harness.plan_models import MODELS


def _engine(model: str, plan: Plan, **options: Any) -> Engine:
    return Engine(
        plan,
        MODELS[model][0](),
        loss=F.cross_entropy,
        optimizer=plans.optimizer,
        seed=3,
        dtype=torch.float64,
        world=plans.world(),
        **options,
    )


def _pieces(tensor: Tensor, boxes: Any) -> Patchwork:
    pieces = [(box, tensor[tuple(slice(a, b) for a, b in box)].clone()) for box in boxes]
    return Patchwork(tensor.shape, tensor.dtype, pieces)


def by_pieces(model: str, text: str, samples: int) -> tuple[float, float, float]:
    """Two steps from what the rank reads of each batch: the largest difference from one device's gradients and
    parameters, and the share of the images' and of the targets' values it read."""
    plan = Plan.from_toml(text)
    engine = _engine(model, plan)
    known = verify.reference(
        MODELS[model][0](),
        plan,
        [plans.batch(model, samples, step) for step in range(2)],
        loss=F.cross_entropy,
        optimizer=plans.optimizer,
        seed=3,
        dtype=torch.float64,
    )
    worst = 0.0
    for step in range(2):
        x, y = plans.batch(model, samples, step)
        reads = engine.reads(samples, [(tuple(x.shape[1:]), x.dtype)], [(tuple(y.shape[1:]), y.dtype)])
        result = engine.step(_pieces(x, reads.inputs[0]), _pieces(y, reads.targets[0]))
        worst = max(worst, abs(result.loss - known.losses[step]))
        for name, parameter in engine.named_parameters():
            if parameter.grad is not None:
                theirs = known.gradients[step][name]
                worst = max(worst, float((parameter.grad - theirs).abs().max() / max(1e-3, float(theirs.abs().max()))))
    read = [
        sum(torch.Size(shape(box)).numel() for box in boxes[0]) / whole.numel()
        for boxes, whole in ((reads.inputs, x), (reads.targets, y))
    ]
    return worst, read[0], read[1]


def right(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).sum()


def evaluated(model: str, text: str, sizes: list[int]) -> list[tuple[float, float]]:
    """For each size of batch, after a training step: the differences of loss and of correct answers from one device;
    before them those of the training step."""
    plan = Plan.from_toml(text)
    engine = _engine(model, plan)
    x, y = plans.batch(model, 8, 0)
    trained = engine.step(x, y, measures={"right": right})
    kept = {name: buffer.clone() for name, buffer in engine.named_buffers()}
    net = one_device(MODELS[model][0](), 3).double()
    at_first = 0.0
    for microbatch, (a, b) in enumerate(cut for replica in sample_cuts(plan, 8) for cut in replica):
        output = x[a:b]
        for name, layer in net.named_children():
            seed_randomness(derived_seed(3, 0, name, microbatch), x.device)
            output = layer(output)
        at_first += float(right(output, y[a:b]))
    known = verify.reference(
        MODELS[model][0](),
        plan,
        [(x, y)],
        loss=F.cross_entropy,
        optimizer=plans.optimizer,
        seed=3,
        dtype=torch.float64,
    )
    net.load_state_dict({**known.parameters, **known.buffers})
    net.eval()
    found = [(abs(trained.loss - known.losses[0]), abs(trained.totals["right"] - at_first))]
    for size in sizes:
        x, y = plans.batch(model, size, 5)
        result = engine.evaluate(x, y, {"right": right})
        with torch.no_grad():
            output = net(x)
        assert result.samples == size
        mean = float(F.cross_entropy(output, y))
        found.append((abs(result.loss - mean), abs(result.totals["right"] - float(right(output, y)))))
    for name, buffer in engine.named_buffers():
        assert torch.equal(buffer, kept[name]), f"evaluating changed {name}"
    assert all(layer.training for held in engine.modules.values() for _, layer in held)
    return found


class _Watcher(Observer):
    marks = TimeMarks(time.monotonic)

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.times: list[float] = []

    def _see(self, event: str, what: Any, mark: float) -> None:
        self.seen.append((event, what))
        self.times.append(mark)

    def step_begins(self, step: int, mark: float) -> None:
        self._see("step begins", step, mark)

    def begin(self, instruction: Instruction, mark: float) -> None:
        self._see("begin", instruction, mark)

    def wait(self, instruction: Instruction, mark: float) -> None:
        self._see("wait", instruction, mark)

    def ready(self, instruction: Instruction, mark: float) -> None:
        self._see("ready", instruction, mark)

    def end(self, instruction: Instruction, mark: float) -> None:
        self._see("end", instruction, mark)

    def step_ends(self, step: int, mark: float) -> None:
        self._see("step ends", step, mark)


ON = (RECEIVE, REDUCE)


def observed(model: str, text: str) -> bool:
    """Whether an observer is told of every instruction in order: its begin and end, and in between what it waits for.
    Receives and reductions go on after their end."""
    watcher = _Watcher()
    engine = _engine(model, Plan.from_toml(text), observers=[watcher])
    expected: list[Any] = []
    going_on: list[Any] = []
    for step in range(2):
        engine.step(*plans.batch(model, 8, step))
        expected.append(("step begins", step))
        for instruction in engine.schedule.ranks[engine.local]:
            waits = instruction.kind in COMPUTE or instruction.kind == STEP
            events = ("begin", "wait", "ready", "end") if waits else ("begin", "end")
            expected += [(event, instruction) for event in events]
            going_on += [(event, instruction) for event in ("wait", "ready") if instruction.kind in ON]
        expected.append(("step ends", step))
    later = [seen for seen in watcher.seen if seen[0] in ("wait", "ready") and seen[1].kind in ON]
    assert [seen for seen in watcher.seen if seen not in later] == expected
    assert sorted(map(str, later)) == sorted(map(str, going_on))
    for event, instruction in later:
        assert watcher.seen.index((event, instruction)) > watcher.seen.index(("end", instruction))
    ended = {seen for seen in later if seen[0] == "ready" and seen[1].kind == REDUCE}  # its moment was noted before
    times = [time for seen, time in zip(watcher.seen, watcher.times) if seen not in ended]
    return times == sorted(times)


def offloaded(model: str, text: str) -> dict[str, float]:
    """Differences from one device with activations kept in host memory, however small."""
    import halocline.runtime.offload as offload

    offload.SMALL = 0
    try:
        found: dict[str, float] = plans.compare(model, text, [8, 8], offload=True)
    finally:
        offload.SMALL = 1 << 16
    return found
