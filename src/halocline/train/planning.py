"""From settings to a model and a plan for it: what the flags leave open follows from the model.

Knows settings, models and plans; starts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models import hf
from halocline.models.count import answer, count, shape_of, work
from halocline.models.model import CLASSIFICATION, Layer, Model, make, options_of
from halocline.plan.plan import Plan
from halocline.runtime.layers import named_layers, own_randomness
from halocline.tiling.untouched import untouched
from halocline.train.settings import Settings

BATCH = 32
"""Samples of a replica's batch where nothing is said."""


def named(settings: Settings) -> Settings:
    """The settings with the model named where only --from-hf says which it is."""
    if settings.model.name is not None or settings.model.from_hf is None:
        return settings
    address, options = hf.describe(settings.model.from_hf)
    said = {**{k: v for k, v in options.items() if v is not None}, **settings.options_of_model}
    return settings.but(model=address, model_options=",".join(f"{name}={value}" for name, value in said.items()))


def model_of(settings: Settings) -> Model:
    """The model that the settings name. One that is built at once is built from the same random numbers everywhere."""
    name = settings.model.name
    if name is None:
        raise ValueError(
            "no model to train: write halocline train MODEL, e.g. resnet-v1-20 or package.module:callable; "
            "halocline models lists them"
        )
    options, counted = options_for(settings, name)
    classes = None
    if ":" in name and "num_classes" not in options_of(name):
        classes = options.pop("num_classes", None)  # a model of one's own need not be told what it answers
    with own_randomness(settings.run.seed):
        model = make(name, **options)
    if classes is not None:
        model = replace(model, classes=classes)
    if ":" in name and model.task == CLASSIFICATION and model.loss is F.cross_entropy:
        model = _classifier(settings, model)
    found = len(named_layers(model.layers))
    if counted not in (None, found):
        raise ValueError(f"--layers {counted} but {name} has {found} layers: leave out --layers")
    return model


def as_model(settings: Settings, given: Model | nn.Sequential | Sequence[Layer], own_data: bool) -> Model:
    """A model that is at hand; bare layers are taken for a classifier, of images if there is no data of its own."""
    if isinstance(given, Model):
        return given
    model = Model("model", given)
    return model if own_data else _classifier(settings, model)


def _classifier(settings: Settings, model: Model) -> Model:
    """A model of one's own, with as many classes as it answers with: data and loss must not ask for more."""
    image, asked = settings.plan.image, settings.model.num_classes
    with as_it_was(model):
        found = answer(model, None if image is None else (image[0], image[1]))
    if found is None:
        return model  # it tells nothing without data
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ValueError(
            f"{model.name} answers an image with {shape_of(found)}, and a classifier with a number per class: return a "
            f"halocline.Model that names its task and its loss"
        )
    classes = found.shape[1]
    if asked is not None and classes < asked:
        raise ValueError(
            f"--num-classes {asked} but {model.name} answers with {classes}: give it an option "
            f"num_classes, or leave out --num-classes"
        )
    # Ten is what a model has of which nothing was said.
    said = asked is not None or model.classes != Model.classes
    return replace(model, classes=min(classes, model.classes) if said else classes)


def options_for(settings: Settings, model: str) -> tuple[dict[str, Any], int | None]:
    """What the model is made with, and how many layers the settings say it has, where that is no option of it."""
    options = settings.options_of_model
    if "layers" in options and "layers" not in options_of(model):
        return options, options.pop("layers")  # as for a plan without a model
    return options, None


def plan_of(settings: Settings, model: Model, stages: int = 1) -> Plan:
    """The plan that the settings describe for a model. `stages` where nothing is said of them: a schedule, passes of
    gems or a way to share out layers want two."""
    said = settings.plan
    if said.stages is None and any(word is not None for word in (said.schedule, said.passes, said.balance)):
        stages = 2
    # A transformer's --layers counts its blocks.
    words = replace(said, layers=None)
    return words.plan(layers=len(named_layers(model.layers)), stages=stages, **known_of(settings, model))


def plan_to_train(settings: Settings, model: Model, samples: int | None = None) -> Plan:
    """The plan of a training run, for images of two dims, with a batch: of `samples` a step (all replicas) where a run
    goes on that had so many, and the settings say nothing else."""
    plan = plan_of(settings, model)
    dims = len(plan.stages[0].tiles) if plan.image is None else len(plan.image)
    if dims != 2:
        raise ValueError(
            f"{settings.plan.file or 'the plan'} is for images of {dims} dims, and the data that halocline train reads "
            f"has 2: train others from Python with halocline.Engine, whose plans may have 1, 2 or 3"
        )
    if plan.batch is None and samples is not None:
        if samples % plan.replicas or samples // plan.replicas < plan.microbatches:
            raise ValueError(
                f"the run took {samples} samples a step, which {plan.replicas} replicas x {plan.microbatches} "
                f"microbatches cannot share alike: give --batch-size, or other replicas and microbatches"
            )
        return replace(plan, batch=samples // plan.replicas)
    return with_batch(plan, settings.plan.accumulate)


def with_batch(plan: Plan, accumulated: int = 1) -> Plan:
    """The plan with a batch, where it leaves that open."""
    if plan.batch is not None:
        return plan
    least = plan.microbatches // accumulated * max(stage.lanes for stage in plan.stages)
    return replace(plan, batch=-(-BATCH // least) * least * accumulated)


def as_it_was(model: Model) -> AbstractContextManager[None]:
    """For a run without data: layers that are built already are to be trained afterwards."""
    built = (layer for layer in model.layers if isinstance(layer, nn.Module))
    return untouched(module for layer in built for module in layer.modules())


def known_of(settings: Settings, model: Model) -> dict[str, Any]:
    """What the way of sharing out layers wants to know of them."""
    method = (settings.plan.balance or "").partition(":")[0]
    if method == "parameters":
        return {"parameters": [layer.parameters for layer in count(model, activations=False).layers]}
    if method in ("profile", "autopipe"):
        with as_it_was(model):
            return {"costs": [layer.flops for layer in work(model, settings.plan.image)]}
    if method == "uniform_transformer":
        if not model.kinds:
            raise ValueError(
                f"balance = {method!r} is for transformers, and {model.name} does not say which of its layers are "
                f"blocks: use uniform, parameters or profile, or give your Model its kinds"
            )
        return {"kinds": model.kinds}
    return {}
