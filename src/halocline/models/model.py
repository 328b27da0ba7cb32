"""A model as everything else sees it: a sequence of layers, a loss, and what goes in.

Plain single-device modules; nothing here or in them knows of ranks, tiles or plans.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.losses import token_loss
from halocline.models.zoo import find

Layer = nn.Module | Callable[[], nn.Module]
"""A layer, or a function that makes it."""

CLASSIFICATION, SEGMENTATION = "classification", "segmentation"
CAUSAL, MASKED, SPANS = "causal", "masked", "spans"
"""What a model is for, which says what data it takes: images with a class each, images with a class per pixel, tokens
that predict the next, tokens some of which are hidden, and tokens with spans cut out (encoder and decoder)."""


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str
    layers: nn.Sequential | Sequence[Layer]
    """Each takes what the one before returns, a tensor or a tuple of tensors. Functions that make layers are best: a
    rank then builds only what it holds."""
    task: str = CLASSIFICATION
    loss: Callable[[Any, Any], Tensor] = F.cross_entropy
    """(output, target) -> the mean over samples. Left out: cross-entropy, of tokens within each sample first."""
    classes: int = 10
    """Classes of an image or a pixel, or words of the vocabulary."""
    channels: int = 3
    """Of an image."""
    image: tuple[int, int] = (32, 32)
    """The size that suits it where none is asked for."""
    sequence: int = 0
    """Tokens of a sample; 0 for images."""
    tied: tuple[tuple[str, str], ...] = ()
    """Pairs of parameter names, `layer.parameter`, that are one parameter, e.g. ("0.weight", "26.weight"). One that has
    several copies comes first in each of its pairs."""
    kinds: tuple[str, ...] = ()
    """Of a transformer, what each layer is: embedding, block (or encoder, decoder) or head."""
    architecture: object = None
    """What the layers were made from, for whoever writes the model in another program's form."""

    def __post_init__(self) -> None:
        if self.task in (CAUSAL, MASKED, SPANS) and self.loss is F.cross_entropy:
            object.__setattr__(self, "loss", token_loss)

    @staticmethod
    def of(name: str, **options: Any) -> Model:
        """A model that `halocline models` lists, or of an address, `package.module:callable`, made with options."""
        return make(name, **options)

    def net(self) -> nn.Sequential:
        """The whole model on one device, for what was trained or exported to be loaded into it."""
        if isinstance(self.layers, nn.Sequential):
            return tie(self.layers, self.tied)
        return tie(nn.Sequential(*(x if isinstance(x, nn.Module) else x() for x in self.layers)), self.tied)

    def inputs(self, samples: int, image: tuple[int, int] | None = None) -> list[Tensor]:
        """Empty input tensors on the meta device, for whoever needs their shapes."""
        with torch.device("meta"):
            if self.task == SPANS:
                return [torch.empty(samples, self.sequence, dtype=torch.int64) for _ in range(2)]
            if self.sequence:
                return [torch.empty(samples, self.sequence, dtype=torch.int64)]
            return [torch.empty(samples, self.channels, *(image or self.image))]


def tie(layers: nn.Sequential, tied: Sequence[tuple[str, str]]) -> nn.Sequential:
    """Make each pair of parameters one: the second becomes the first. On one device."""
    for first, second in tied:
        kept = layers.get_parameter(first)
        if kept.shape != layers.get_parameter(second).shape:
            raise ValueError(
                f"{first} is {tuple(kept.shape)} and {second} is {tuple(layers.get_parameter(second).shape)}: only "
                f"parameters of one shape can be tied"
            )
        module, _, name = second.rpartition(".")
        setattr(layers.get_submodule(module), name, kept)
    return layers


def make(name: str, **options: Any) -> Model:
    """The model of a name (see `zoo`) or of an address, `package.module:callable`.

    Options go to the callable, which must name them. A callable that returns bare layers is taken for a classifier; its
    options num_classes and channels, where it has them, say how many.
    """
    entry = find(name)
    found = _found(entry.address)
    if isinstance(found, nn.Module) or not callable(found):
        made, given = found, {}
    else:
        given = {**entry.options, **options}
        _check(name, found, given)
        made = found(**given)
    if isinstance(made, Model):
        return replace(made, name=name)
    listed = isinstance(made, (list, tuple)) and made and all(callable(layer) for layer in made)
    if not listed and not isinstance(made, nn.Sequential):
        raise ValueError(
            f"{name} gave a {type(made).__name__}: it must return a halocline.Model, an nn.Sequential, or "
            f"a list of layers or of functions that make them, each taking what the one before returns; [module] is a "
            f"list of one"
        )
    # Bare layers say no more of themselves than the options they were made with.
    said = {**options_of(name), **given}
    classes, channels = said.get("num_classes"), said.get("channels")
    return Model(name, made, classes=classes or Model.classes, channels=channels or Model.channels)


def options_of(name: str) -> dict[str, Any]:
    """What may be said of a model when it is made: option -> the value it has where nothing is said."""
    entry = find(name)
    found = _found(entry.address)
    if isinstance(found, nn.Module) or not callable(found):
        return {}
    known = inspect.signature(found).parameters.values()
    defaults = {p.name: p.default for p in known if p.default is not inspect.Parameter.empty}
    return {**defaults, **entry.options}


def _check(name: str, found: Any, given: dict[str, Any]) -> None:
    known = inspect.signature(found).parameters
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for needed in (p for p in known.values() if p.default is p.empty and p.kind not in free):
        if needed.name not in given:
            raise ValueError(
                f"{name} needs {needed.name} and was given {', '.join(given) or 'nothing'}: write --model-options "
                f"{needed.name}=..., or give it a default"
            )
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        return
    for option in given:
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            takes = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise ValueError(f"{name} has no option {option}: {takes}")


def _found(address: str) -> Any:
    module, _, attribute = address.partition(":")
    if not module or not attribute:
        raise ValueError(f"{address!r} is no address: write package.module:callable")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        # A module that builds layers while it is imported builds the same in every process, and whoever makes a model
        # draws the same random numbers whether this is the first time or not.
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if not f"{module}.".startswith(f"{missing}."):
            raise ValueError(f"{address}: {module} needs {missing}, which is not there: install it") from error
        raise ValueError(
            f"{address}: there is no module {missing}: install its package, or start in the directory that holds it"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{address}: {module} has no {part}: give the name of a function that returns layers")
        found = getattr(found, part)
    return found
