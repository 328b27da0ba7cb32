"""From settings to data: the training and the evaluation samples that a model takes. Knows no ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from halocline.data.augment import parse_augment
from halocline.data.dataset import EVALUATION, TRAIN, Dataset
from halocline.data.opening import CIFAR, FOLDER, LESION, SYNTHETIC, open_dataset
from halocline.models.model import SPANS, Model
from halocline.plan.plan import Plan
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
        # Files say how large they are, and so do lesions and CIFAR-10; synthetic images suit the model.
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


def source_of(text: str) -> tuple[str, str | None]:
    """What --data names: a kind of data, and where it lies."""
    if text in GENERATED:
        return GENERATED[text], None
    if text.startswith(words.CIFAR):
        return CIFAR, text.removeprefix(words.CIFAR)
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
