"""Which inputs of a stage get a gradient. A stage whose layers detach what they are given leaves the parameters of the
stages before it without gradients, and none is not zero: an optimizer passes over such a parameter, and a zero it would
decay. A stage's first backward shows it, and the stage before is told so once, through the process group's store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from halocline.plan.layout import Layout
from halocline.runtime.boundary.relay import heard, store
from halocline.runtime.processes.world import World


class Reached:
    """What backwards of this rank's stages have shown, and those of the stages after them have told."""

    _made = 0

    def __init__(self, world: World, layout: Layout) -> None:
        self.world, self.layout = world, layout
        self.replica = world.rank // layout.ranks_per_replica
        self._known: dict[tuple[int, int], str] = {}
        """(pipe, stage) -> for each input 1 or 0."""
        Reached._made += 1
        self._name = f"halocline/reached/{Reached._made}/{self.replica}"

    def tell(self, pipe: int, stage: int, gradients: Sequence[Tensor | None]) -> None:
        """A backward of a stage gave its inputs these gradients."""
        now = "".join("01"[gradient is not None] for gradient in gradients)
        was = self._known.get((pipe, stage))
        if was is None:
            self._known[pipe, stage] = now
            if self.world.rank == self.layout.team(pipe, stage, self.replica)[0]:
                store().set(f"{self._name}/{pipe}/{stage}", now)
        elif was != now:
            raise ValueError(
                f"of the {len(now)} inputs of stage {stage} {was.count('1')} got a gradient in an earlier microbatch "
                f"and {now.count('1')} in this one, and stages agree once on who gets none: detach always or never, or "
                f"put those layers and the ones before them into one stage"
            )

    def parts(self, pipe: int, stage: int, gradients: Sequence[Any]) -> list[Any]:
        """The gradients that a stage sent back, with None for what has none."""
        if (pipe, stage) not in self._known:
            story = f"rank {self.world.rank} waits for what stage {stage} says of its gradients"
            self._known[pipe, stage] = heard(self.world, f"{self._name}/{pipe}/{stage}", story)
        return [g if known == "1" else None for g, known in zip(gradients, self._known[pipe, stage])]
