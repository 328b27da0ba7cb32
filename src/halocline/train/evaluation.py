"""What a model is worth on samples it has not trained on: the loss and the scores of its task, as sums that add up
exactly over microbatches, tiles and ranks. Knows outputs and targets; nothing of files.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from halocline.data.dataset import IGNORED
from halocline.data.loader import Step
from halocline.models.model import CLASSIFICATION, SEGMENTATION, Model
from halocline.runtime.engine import Engine

Measures = Mapping[str, Callable[[Any, Any], Tensor]]
"""Name -> (output, target) -> a sum over samples or pixels."""


def measures(model: Model) -> Measures:
    """What is measured of a model's task beside its loss."""
    if model.task == CLASSIFICATION:
        return {"correct": _correct, "counted": _counted}
    if model.task == SEGMENTATION:
        return _Regions(model.classes).measures()
    return {}


def evaluate(engine: Engine, batches: Iterable[Step], model: Model) -> dict[str, float]:
    """The loss (mean over samples) and the scores. Every rank calls this and gets the same."""
    asked = measures(model)
    totals = dict.fromkeys(asked, 0.0)
    loss, samples = 0.0, 0
    for step in batches:
        found = engine.evaluate(step.inputs, step.target, asked)
        loss += found.loss * found.samples
        samples += found.samples
        for name, value in found.totals.items():
            totals[name] += value
    return {"loss": loss / max(1, samples), **scores(model, loss / max(1, samples), totals)}


def scores(model: Model, loss: float, totals: Mapping[str, float]) -> dict[str, float]:
    """From sums to scores. Dice and IoU are means over the classes that occur in targets or predictions."""
    if model.task == CLASSIFICATION:
        return {"accuracy": _share(totals["correct"], totals["counted"])}
    if model.task == SEGMENTATION:
        dice, iou = [], []
        for c in range(model.classes):
            both, either = totals[f"both {c}"], totals[f"predicted {c}"] + totals[f"actual {c}"]
            if either:
                dice.append(2 * both / either)
                iou.append(both / (either - both))
        right = sum(totals[f"both {c}"] for c in range(model.classes))
        pixels = sum(totals[f"actual {c}"] for c in range(model.classes))
        return {
            "dice": sum(dice) / max(1, len(dice)),
            "iou": sum(iou) / max(1, len(iou)),
            "accuracy": _share(right, pixels),
        }
    return {"perplexity": math.exp(min(loss, 700.0))}


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _correct(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).sum()


def _counted(output: Tensor, target: Tensor) -> Tensor:
    return (target != IGNORED).sum()


class _Regions:
    """For each class: pixels that have it in the prediction, in the target, and in both."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self._last: tuple[Any, Tensor] | None = None

    def measures(self) -> Measures:
        found: dict[str, Callable[[Any, Any], Tensor]] = {}
        for c in range(self.classes):
            found[f"both {c}"] = partial(self._both, c)
            found[f"predicted {c}"] = partial(self._predicted, c)
            found[f"actual {c}"] = partial(self._actual, c)
        return found

    def _both(self, c: int, output: Tensor, target: Tensor) -> Tensor:
        return ((self._of(output) == c) & (target == c)).sum()

    def _predicted(self, c: int, output: Tensor, target: Tensor) -> Tensor:
        return ((self._of(output) == c) & (target != IGNORED)).sum()

    def _actual(self, c: int, output: Tensor, target: Tensor) -> Tensor:
        return (target == c).sum()

    def _of(self, output: Tensor) -> Tensor:
        """The predicted class of each pixel, found once for all measures of an output."""
        if self._last is None or self._last[0]() is not output:
            self._last = weakref.ref(output), output.argmax(1).to(torch.int64)
        return self._last[1]
