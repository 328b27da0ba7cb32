"""Losses that are not finite: the policies, the error, and the search for the layer where it began.

Knows layers, microbatches and executors; changes nothing of a step that goes well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from halocline.runtime.batch import Microbatches
from halocline.runtime.executor import Executor
from halocline.runtime.layers import Stages
from halocline.runtime.parallel.shard import shard
from halocline.schedule.events import Events
from halocline.schedule.instruction import FORWARD
from halocline.tiling.tensor import TileTensor

if TYPE_CHECKING:
    from halocline.runtime.engine import Engine

POLICIES = ("stop", "skip")


class NotFinite(ArithmeticError):
    """The loss of a step is NaN or infinite; parameters are as they were before the step."""


@contextmanager
def search(executor: Executor, modules: Stages, microbatch: int | None) -> Iterator[list[tuple[int, str]]]:
    """Notes where on its way a microbatch (of this replica, or None) is not finite, while the step is run once more:
    the first stage and layer; the layer is empty where the stage's inputs are not finite already."""
    found: list[tuple[int, str]] = []

    def look(stage: int, name: str, module: nn.Module, args: Any, output: Any = None) -> None:
        """A layer has made its output; or, without a name, the first one is given its inputs."""
        now = executor.current
        mine = now is not None and now.kind == FORWARD and (now.stage, now.microbatch) == (stage, microbatch)
        if mine and not found and not _finite(output if name else args):
            found.append((stage, name))

    with ExitStack() as hooks:
        for stage, layers in modules.items():
            hooks.enter_context(layers[0][1].register_forward_pre_hook(partial(look, stage, "")))
            for name, layer in layers:
                hooks.enter_context(layer.register_forward_hook(partial(look, stage, name)))
        yield found


def _finite(value: Any) -> bool:
    parts = [part.owned if isinstance(part, TileTensor) else part for part in tree_leaves(value)]
    numbers = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    return all(bool(torch.isfinite(shard(part)).all()) for part in numbers)


def story(step: int, loss: float, stage: int, microbatch: int, layer: str | None) -> str:
    """What the error says. `layer` is where it began: "" for the inputs, None where only the loss is not finite."""
    if layer is None:
        began, fix = "every layer's output is finite, so the loss itself made it", "look at the loss and its targets"
    elif layer:
        began = f"it began in layer {layer}"
        fix = "lower the learning rate, or clip gradients (--clip 1, clip=1.0)"
    else:
        began, fix = "its inputs are not finite", "look at the data"
    return (
        f"the loss of step {step} is {loss}: microbatch {microbatch}, stage {stage}: {began}; {fix}, or leave "
        f"such steps out (--nan skip, nan='skip')"
    )


def origin(engine: Engine, work: Microbatches, parts: Tensor) -> NotFinite:
    """The error that says where a step's loss went wrong, found by running the step once more. All ranks call it.

    `parts` is what each microbatch (of all replicas) adds to the loss.
    """
    number = int((~torch.isfinite(parts)).nonzero()[0])
    replica, microbatch = divmod(number, engine.plan.microbatches)
    executor = engine.executor
    told = executor.events, executor.simulated
    executor.events, executor.simulated = Events(), None  # they have been told of this step
    try:
        with search(executor, engine.modules, microbatch if replica == engine.replica else None) as seen:
            engine.run(work, lambda: None)
    finally:
        executor.events, executor.simulated = told
    # Of all ranks the earliest place counts: 2 x layer for a layer's output, one less for its input.
    names = [name for name, _ in engine.named]
    found = torch.zeros(2 * len(names) + 1, dtype=torch.float64, device=engine.world.device)
    for stage, layer in seen:
        found[2 * names.index(layer) + 1 if layer else 2 * engine.plan.stages[stage].layers[0]] = 1
    places = engine.world.sum(found, label="sum of places").nonzero().flatten().tolist()
    stage, name = len(engine.plan.stages) - 1, None
    if places:
        layer_number, after = divmod(places[0], 2)
        name = names[layer_number] if after else ""
        stage = next(s for s, p in enumerate(engine.plan.stages) if p.layers[0] <= layer_number < p.layers[1])
    return NotFinite(story(work.number + 1, float(parts.sum()), stage, number, name))
