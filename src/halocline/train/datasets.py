"""From settings to data: the training and the evaluation samples that a model takes. Knows no ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from halocline.data.augment import parse
from halocline.data.dataset import Dataset
from halocline.data.opening import CIFAR, FOLDER, LESION, SYNTHETIC, open_dataset
from halocline.data.split import EVALUATION, TRAIN
from halocline.models.model import SPANS, Model
from halocline.plan.plan import Plan
from halocline.train.config import Config

APPS = {1: FOLDER, 2: CIFAR, 3: SYNTHETIC}
"""now-dl's numbers."""
BATCHES = 10
"""Generated data: batches of an epoch where nothing is said."""


def with_samples(config: Config, plan: Plan) -> Config:
    """The settings with the number of generated samples, so that a run which goes on with other batches has the same
    data."""
    assert plan.batch is not None
    return config if config.samples is not None else replace(config, samples=BATCHES * plan.batch * plan.replicas)


def open_datasets(
    config: Config,
    plan: Plan,
    model: Model,
    known_bad: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Dataset, Dataset | None]:
    """The samples to train on and those to evaluate on, if any. `known_bad` files are left out unchecked."""
    app = LESION if config.lesions else APPS[config.app]
    config = with_samples(config, plan)
    settings: dict[str, Any] = {
        "task": _task(config, model),
        "classes": model.classes,
        "channels": model.channels,
        # Files say how large they are, and so do lesions and CIFAR-10; synthetic images suit the model.
        "image": plan.image or (model.image if app == SYNTHETIC else None),
        "samples": config.samples,
        "seed": config.seed,
        "evaluation_fraction": config.evaluation_fraction,
        "bad": config.bad_files,
        "known_bad": known_bad,
        "level": config.level,
        "mean": _numbers("mean", config.mean),
        "std": _numbers("std", config.std),
        "augment": parse(config.augment or ""),
        "sequence": model.sequence,
        "vocabulary": model.classes,
        "tokenizer": config.tokenizer,
        "objective": config.objective,
        "progress": progress,
    }
    datapath = config.datapath if app in (FOLDER, CIFAR) else None
    trained = open_dataset(app, datapath, split=TRAIN, **settings)
    if not config.evaluation_fraction:
        return trained, None
    if not model.sequence:
        settings["image"] = trained.inputs[0].pixels  # where files say it, a folder for evaluation might say another
    return trained, open_dataset(app, datapath, split=EVALUATION, **settings)


def _task(config: Config, model: Model) -> str:
    """What the data is for. Spans are two sequences, an encoder's and a decoder's; every other task has one input."""
    asked = config.objective or model.task
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
