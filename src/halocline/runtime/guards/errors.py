"""Errors in the plan's words: which layers torch's and Python's own come from, and which rank is out of memory, what it
held, and which plan would need half.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from halocline.plan.plan import Plan
from halocline.runtime.layers import Layers, parameters_of
from halocline.schedule.instruction import COMPUTE, Instruction

if TYPE_CHECKING:
    from halocline.runtime.executor import Executor

KNOWN = {
    "'tuple' object has no attribute": (
        "asks what it is given for an attribute, and a stage is given a plain tuple of what the one before returned: "
        "take its parts by number, or put both layers into one stage"
    ),
    "_apply(): Couldn't swap": (
        "makes a module in its forward and moves it, which a run without data cannot: make it in __init__"
    ),
    "modified by an inplace operation": (
        "write in a forward to what a backward needs, perhaps that of an earlier microbatch: change parameters between "
        "steps and other tensors not in place, or use one microbatch"
    ),
    "torch.utils.checkpoint is incompatible with .grad()": (
        "call torch.utils.checkpoint with use_reentrant=True, and zb-h1 runs a backward in two halves: pass "
        "use_reentrant=False, or use another schedule"
    ),
}
"""What such an error says -> what layers do then, and a way out."""


def tell(error: Exception, who: str, where: str = "") -> None:
    """Say which layers an error came from, and why if the plan is the reason."""
    for sign, reason in KNOWN.items():
        if sign in str(error):
            raise ValueError(f"{who} {reason}") from error
    error.__notes__ = [*getattr(error, "__notes__", ()), f"in {who}{where}"]  # as Python 3.11's add_note does


def named(layers: Layers) -> str:
    return f"layers {layers[0][0]} to {layers[-1][0]}"


class OutOfMemory(RuntimeError):
    """This rank's memory does not suffice for its part of the plan."""

    def __init__(self, executor: Executor) -> None:
        instruction, device, held = executor.current, executor.world.device, executor.held
        assert instruction is not None
        owned = [p for runner in executor.runners.values() for p in parameters_of(runner.layers)]
        weights = _bytes(owned)
        gradients = _bytes([p.grad for p in owned if p.grad is not None])
        edges = _bytes([t for h in held.values() for t in (*h.inputs, *h.outputs)])
        parts = [
            f"{_readable(weights)} of parameters and {_readable(gradients)} of gradients",
            f"{len(held)} microbatches at work with {_readable(edges)} of inputs and outputs",
            f"{_readable(_bytes(executor.flight.sent))} being sent",
        ]
        if device.type == "cuda":
            allocated = torch.cuda.memory_allocated(device)
            parts.append(f"{_readable(allocated)} of GPU memory in all")
        stage = f"stage {instruction.stage} " if instruction.kind in COMPUTE else ""
        super().__init__(
            f"rank {executor.world.rank} is out of memory on {device} in {instruction} ({stage}holds "
            f"{', '.join(parts)}): "
            + advice(executor.layout.plan, instruction, executor.work.samples, weights + gradients > edges)
        )


def advice(plan: Plan, instruction: Instruction, samples: Sequence[int], weights_weigh_more: bool) -> str:
    """A change of the plan that halves what weighs most on this rank."""
    stage = plan.stages[instruction.stage]
    name = f"stages[{instruction.stage}]"
    layers = stage.layers[1] - stage.layers[0]
    if weights_weigh_more and layers > 1:
        return (
            f"parameters weigh most: cut {name} ({layers} layers) into two stages of {layers - layers // 2} and "
            f"{layers // 2} layers"
        )
    largest = max(samples, default=1)
    if largest > 1:
        return (
            f"activations weigh most: {2 * plan.microbatches} microbatches instead of {plan.microbatches} halve them "
            f"({largest} -> {-(-largest // 2)} samples each)"
        )
    if not stage.recompute:
        return f"activations weigh most and a microbatch is one sample: set {name}.recompute to keep inputs only"
    wider = list(stage.tiles)
    wider[max(d for d, parts in enumerate(wider) if parts == min(wider))] *= 2
    return (
        f"activations weigh most and a microbatch is one sample: give {name} tiles = {wider} instead of "
        f"{list(stage.tiles)}"
    )


def is_shortage(error: BaseException) -> bool:
    """Whether an allocator, and not something else, has failed."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text)


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Of the memory behind tensors, counted once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _readable(size: int) -> str:
    power = min(3, max(0, size.bit_length() - 1) // 10)
    return f"{size / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
