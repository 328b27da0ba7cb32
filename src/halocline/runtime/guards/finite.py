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


class Search:
    """Notes the first place of one microbatch's way where a value is not finite, while the step is run once more."""

    def __init__(self, executor: Executor, modules: Stages, microbatch: int | None) -> None:
        self.executor, self.modules = executor, modules
        self.microbatch = microbatch
        """Counted in this replica; None if another replica has it."""
        self.first: tuple[int, str] | None = None
        """Stage and layer; the layer is empty where the stage's inputs are not finite already."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for stage, layers in self.modules.items():
                hooks.enter_context(layers[0][1].register_forward_pre_hook(partial(self._look, stage, "")))
                for name, layer in layers:
                    hooks.enter_context(layer.register_forward_hook(partial(self._look, stage, name)))
            yield

    def _mine(self, stage: int) -> bool:
        now = self.executor.current
        return (
            self.first is None
            and now is not None
            and now.kind == FORWARD
            and (now.stage, now.microbatch) == (stage, self.microbatch)
        )

    def _look(self, stage: int, name: str, module: nn.Module, args: Any, output: Any = None) -> None:
        """A layer has made its output; or, without a name, the first one is given its inputs."""
        if self._mine(stage) and not _finite(output if name else args):
            self.first = stage, name


def _finite(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_finite, value))
    if isinstance(value, TileTensor):
        value = value.owned
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return bool(torch.isfinite(shard(value)).all())


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
    search = Search(engine.executor, engine.modules, microbatch if replica == engine.replica else None)
    executor = engine.executor
    told = executor.events, executor.simulated
    executor.events, executor.simulated = Events(), None  # they have been told of this step
    try:
        with search.looking():
            engine.run(work, lambda: None)
    finally:
        executor.events, executor.simulated = told
    # Of all ranks the earliest place counts: 2 x layer for a layer's output, one less for its input.
    names = [name for name, _ in engine.named]
    found = torch.zeros(2 * len(names) + 1, dtype=torch.float64, device=engine.world.device)
    if search.first is not None:
        stage, layer = search.first
        found[2 * names.index(layer) + 1 if layer else 2 * engine.plan.stages[stage].layers[0]] = 1
    places = engine.world.sum(found, label="sum of places").nonzero().flatten().tolist()
    stage, name = len(engine.plan.stages) - 1, None
    if places:
        layer_number, after = divmod(places[0], 2)
        name = names[layer_number] if after else ""
        stage = next(s for s, p in enumerate(engine.plan.stages) if p.layers[0] <= layer_number < p.layers[1])
    return NotFinite(story(work.number + 1, float(parts.sum()), stage, number, name))
