"""From settings to a model and a plan for it: what the flags leave open follows from the model.

Knows settings, models and plans; starts nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models import hf
from halocline.models.answer import answer, shape_of
from halocline.models.count import count
from halocline.models.model import CLASSIFICATION, Model, make, options_of
from halocline.models.work import work
from halocline.plan.flags import Flags
from halocline.plan.plan import Plan
from halocline.runtime.layers import named_layers, own_randomness
from halocline.tiling.untouched import untouched
from halocline.train.config import PLAN_FLAGS, Config

BATCH = 32
"""Samples of a replica's batch where nothing is said."""


def named(config: Config) -> Config:
    """The settings with the model named where only --from-hf says which it is."""
    if config.model is not None or config.from_hf is None:
        return config
    address, options = hf.describe(config.from_hf)
    said = {**{k: v for k, v in options.items() if v is not None}, **config.options_of_model}
    return replace(config, model=address, model_options=",".join(f"{name}={value}" for name, value in said.items()))


def model_of(config: Config) -> Model:
    """The model that the settings name. One that is built at once is built from the same random numbers everywhere."""
    if config.model is None:
        raise ValueError(
            "no model to train: write halocline train MODEL, e.g. resnet-v1-20 or package.module:callable; "
            "halocline models lists them"
        )
    options, counted = options_for(config, config.model)
    classes = None
    if ":" in config.model and "num_classes" not in options_of(config.model):
        classes = options.pop("num_classes", None)  # a model of one's own need not be told what it answers
    with own_randomness(config.seed):
        model = make(config.model, **options)
    if classes is not None:
        model = replace(model, classes=classes)
    if ":" in config.model and model.task == CLASSIFICATION and model.loss is F.cross_entropy:
        model = _classifier(config, model)
    found = len(named_layers(model.layers))
    if counted not in (None, found):
        raise ValueError(f"--layers {counted} but {config.model} has {found} layers: leave out --layers")
    return model


def _classifier(config: Config, model: Model) -> Model:
    """A model of one's own, with as many classes as it answers with: data and loss must not ask for more."""
    image = Plan.from_flags(image_size=config.image_size).image
    with as_it_was(model):
        found = answer(model, None if image is None else (image[0], image[1]))
    if found is None:
        return model  # it tells nothing without data
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ValueError(
            f"{model.name} answers an image with {shape_of(found)}, and a classifier with a number per class: return a "
            f"halocline.models.model.Model that names its task and its loss"
        )
    classes = found.shape[1]
    if config.num_classes is not None and classes < config.num_classes:
        raise ValueError(
            f"--num-classes {config.num_classes} but {model.name} answers with {classes}: give it an option "
            f"num_classes, or leave out --num-classes"
        )
    # Ten is what a model has of which nothing was said.
    said = config.num_classes is not None or model.classes != Model.classes
    return replace(model, classes=min(classes, model.classes) if said else classes)


def options_for(config: Config, model: str) -> tuple[dict[str, Any], int | None]:
    """What the model is made with, and how many layers the settings say it has, where that is no option of it."""
    options = config.options_of_model
    if "layers" in options and "layers" not in options_of(model):
        return options, options.pop("layers")  # as for a plan without a model
    return options, None


def plan_of(config: Config, model: Model) -> Plan:
    """The plan that the settings describe, with a batch, and batches accumulated."""
    if config.plan is None:
        layers = len(named_layers(model.layers))
        plan = Plan.from_flags(config.flags, layers=layers, **known_of(config, model))
    else:
        plan = _loaded(config, config.plan)
        dims = len(plan.stages[0].tiles) if plan.image is None else len(plan.image)
        if dims != 2:
            raise ValueError(
                f"{config.plan} is for images of {dims} dims, and the data that halocline train reads has 2: train "
                f"others from Python with halocline.Engine, whose plans may have 1, 2 or 3"
            )
    return accumulated(with_batch(plan), config.accumulate)


def with_batch(plan: Plan) -> Plan:
    """The plan with a batch, where it leaves that open."""
    if plan.batch is not None:
        return plan
    least = plan.microbatches * max(stage.lanes for stage in plan.stages)
    return replace(plan, batch=-(-BATCH // least) * least)


def accumulated(plan: Plan, times: int) -> Plan:
    """The plan of a step that sums up several batches: more microbatches of the same size."""
    if times == 1:
        return plan
    return replace(
        plan,
        microbatches=plan.microbatches * times,
        passes=None if plan.passes is None else plan.passes * times,
        batch=None if plan.batch is None else plan.batch * times,
    )


def as_it_was(model: Model) -> AbstractContextManager[None]:
    """For a run without data: layers that are built already are to be trained afterwards."""
    built = (layer for layer in model.layers if isinstance(layer, nn.Module))
    return untouched(module for layer in built for module in layer.modules())


def known_of(config: Config, model: Model) -> dict[str, Any]:
    """What the method of cutting a model into stages wants to know of its layers."""
    method = (config.partition_method or "").partition(":")[0]
    if method == "parameters":
        return {"parameters": [layer.parameters for layer in count(model, activations=False).layers]}
    if method in ("profile", "autopipe"):
        image = Plan.from_flags(image_size=config.image_size).image
        with as_it_was(model):
            return {"costs": [layer.flops for layer in work(model, image)]}
    if method == "uniform_transformer":
        if not model.kinds:
            raise ValueError(
                f"partition_method = {method!r} is for transformers, and {model.name} does not say which of its layers "
                f"are blocks: use uniform, parameters or autopipe, or give your Model its kinds"
            )
        return {"kinds": model.kinds}
    return {}


def _loaded(config: Config, path: str) -> Plan:
    """A plan.toml, which says everything but for the batch and the image that it may leave out."""
    plan = Plan.load(Path(path))
    defaults = {field.name: field.default for field in fields(Flags)}
    for name in PLAN_FLAGS:
        value = getattr(config, name)
        if value != defaults[name] and name not in ("batch_size", "image_size"):
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} {value} beside --plan {path}, which says everything: leave out {flag}")
    image = Plan.from_flags(image_size=config.image_size).image if config.image_size is not None else None
    for flag, name, value in (("--batch-size", "batch", config.batch_size), ("--image-size", "image", image)):
        said = getattr(plan, name)
        if value is not None and said is not None and value != said:
            raise ValueError(f"{flag} {value} contradicts {path}, which has {name} = {said}: leave out {flag}")
    return replace(plan, batch=config.batch_size or plan.batch, image=image or plan.image)
