"""From settings to data: the training and the evaluation samples that a model takes. Knows no ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from halocline.data.augment import parse_augment
from halocline.data.dataset import EVALUATION, TARGET, TRAIN, Dataset, Spec
from halocline.data.opening import FOLDER, LESION, SYNTHETIC, open_dataset
from halocline.models.model import SPANS, Model
from halocline.plan.plan import Plan
from halocline.runtime.layers import derived_seed, own_randomness
from halocline.tiling.boxes import Box
from halocline.train import settings as words
from halocline.train.settings import Settings

GENERATED = {words.SYNTHETIC: SYNTHETIC, words.LESIONS: LESION}
BATCHES = 10
"""Generated data: batches of an epoch where nothing is said."""


def with_samples(settings: Settings, plan: Plan) -> Settings:
    """The settings with the number of generated samples, so that a run which goes on with other batches has the same
    data."""
    assert plan.batch is not None
    return settings.but(samples=settings.data.samples or BATCHES * plan.batch * plan.replicas)


def open_datasets(
    settings: Settings,
    plan: Plan,
    model: Model,
    known_bad: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Dataset, Dataset | None]:
    """The samples to train on and those to evaluate on, if any. `known_bad` files are left out unchecked."""
    app, datapath = source_of(settings.data.source)
    settings = with_samples(settings, plan)
    given: dict[str, Any] = {
        "task": _task(settings, model),
        "classes": model.classes,
        "channels": model.channels,
        # Files say how large they are, and so do lesions and CIFAR; synthetic images suit the model.
        "image": plan.image or (model.image if app == SYNTHETIC else None),
        "samples": settings.data.samples,
        "seed": settings.run.seed,
        "evaluation_fraction": settings.data.evaluation_fraction,
        "bad": settings.data.bad_files,
        "known_bad": known_bad,
        "level": settings.data.level,
        "mean": _numbers("mean", settings.data.mean),
        "std": _numbers("std", settings.data.std),
        "augment": parse_augment(settings.data.augment or ""),
        "sequence": model.sequence,
        "tokenizer": settings.data.tokenizer,
        "progress": progress,
    }
    trained = open_dataset(app, datapath, split=TRAIN, **given)
    if not settings.data.evaluation_fraction:
        return trained, None
    if not model.sequence:
        given["image"] = trained.inputs[0].pixels  # where files say it, a folder for evaluation might say another
    return trained, open_dataset(app, datapath, split=EVALUATION, **given)


class Items:
    """A dataset of torch's kind, where `items[sample]` is (input, target), each a tensor, a number or several: read by
    box, like every other. What it draws by chance is the same on every rank, and another in every epoch."""

    def __init__(self, items: Any, classes: int, seed: int) -> None:
        self.items, self.classes, self.seed = items, classes, seed
        self._last: tuple[tuple[int, int], list[list[Tensor]]] | None = None
        self.inputs, self.targets = (tuple(Spec(tuple(t.shape), t.dtype) for t in each) for each in self._at(0, 0))

    def __len__(self) -> int:
        return len(self.items)

    def read(self, sample: int, what: str, box: Box | None = None, *, part: int = 0, epoch: int = 0) -> Tensor:
        value = self._at(sample, epoch)[what == TARGET][part]
        wanted = (self.targets if what == TARGET else self.inputs)[part].shape
        if value.shape != wanted:
            raise ValueError(
                f"sample {sample} has a {what} of shape {list(value.shape)} and sample 0 one of {list(wanted)}: bring "
                f"all to one size"
            )
        for dim, (start, stop) in enumerate(box or (), value.ndim - len(box or ())):
            value = value.narrow(dim, start, stop - start)
        return value

    def _at(self, sample: int, epoch: int) -> list[list[Tensor]]:
        """Inputs and targets of a sample, which several boxes and parts are read of one after the other."""
        if self._last is None or self._last[0] != (sample, epoch):
            with own_randomness(derived_seed(self.seed, "sample", epoch, sample)):
                pair = self.items[sample]
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ValueError(f"sample {sample} is a {type(pair).__name__}, not an (input, target): return the two")
            tensors = [[torch.as_tensor(v) for v in (e if isinstance(e, (tuple, list)) else [e])] for e in pair]
            self._last = (sample, epoch), tensors
        return self._last[1]


def as_dataset(given: Any, model: Model, seed: int) -> Any:
    """A dataset that is at hand, if there is one: of ours, or of torch's kind."""
    return given if given is None or hasattr(given, "read") else Items(given, model.classes, seed)


def source_of(text: str) -> tuple[str, str | None]:
    """What --data names: a kind of data, and where it lies."""
    if text in GENERATED:
        return GENERATED[text], None
    if text.startswith(words.CIFAR):
        kind, _, folder = text.partition(":")
        return kind, folder
    return FOLDER, text


def _task(settings: Settings, model: Model) -> str:
    """What the data is for. Spans are two sequences, an encoder's and a decoder's; every other task has one input."""
    asked = settings.data.objective or model.task
    if asked != model.task and (SPANS in (asked, model.task) or not model.sequence):
        raise ValueError(
            f"objective = {asked} and {model.name} is for {model.task}, which has other inputs: leave out --objective"
        )
    return asked


def _numbers(name: str, text: str | None) -> list[float] | None:
    """One number per channel."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} = {text} is not a list of numbers: write one per channel, e.g. 0.5,0.5,0.5") from None
