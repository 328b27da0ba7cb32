"""Models in Hugging Face's form: GPT-2, BERT, T5 and Bloom read from and written to folders of config.json and
safetensors. Needs nothing of transformers; what it writes, `from_pretrained` loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halocline.models.hf.families import FAMILIES
from halocline.models.hf.family import Config, Family
from halocline.models.hf.folder import INDEX, SINGLE, Reader, read_config, write
from halocline.models.model import Model, make

__all__ = ["FAMILIES", "describe", "load", "save"]

OF_TRAINING = ("dropout", "attention_dropout")
"""Settings that may differ between a folder and the model that takes its weights."""


def describe(directory: str | Path) -> tuple[str, dict[str, Any]]:
    """The model of a folder: its builder's address and options, for `models.model.make`."""
    config = read_config(directory)
    family = _family(directory, config)
    return family.address, {**family.all_options(config), "tied": _tied(directory, family, config)}


def load(directory: str | Path, model: Model, names: Container[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """The parameters of `model` from a folder, one at a time, by their names in the sequence of layers; with `names`
    only those. Tied parameters come under each of their names. Tensors have the file's dtype."""
    family = _agreeing(directory, model)
    return _read(Reader(directory, family.prefix, family.aliases), family, model, names)


def _read(reader: Reader, family: Family, model: Model, names: Container[str] | None) -> Iterator[tuple[str, Tensor]]:
    shapes, _ = _shapes(model)
    for weight in family.weights(model.architecture):
        if names is not None and weight.ours not in names:
            continue
        tensor = weight.read([reader.read(name) for name in weight.theirs])
        if not tensor.is_floating_point():
            raise ValueError(
                f"{reader.directory}: {weight.theirs[0]} holds {str(tensor.dtype).removeprefix('torch.')}, as "
                f"quantized models do: save it in float32, float16 or bfloat16"
            )
        if tensor.shape != shapes[weight.ours]:
            raise ValueError(
                f"{reader.directory}: {' + '.join(weight.theirs)} gives {tuple(tensor.shape)} and {weight.ours} is "
                f"{tuple(shapes[weight.ours])}: its config.json is of another model than its tensors"
            )
        yield weight.ours, tensor


def save(
    directory: str | Path, model: Model, tensors: Iterable[tuple[str, Tensor]], *, shard_bytes: int = 5 * 10**9
) -> None:
    """Write parameters, given in any order by their names in the sequence of layers, as a folder that transformers
    loads. A tied parameter is wanted under the first of its names; its copies, and buffers, may be given or not."""
    family = _family_of(model)
    copies = {second for _, second in model.tied}
    weights = {w.ours: w for w in family.weights(model.architecture) if w.ours not in copies}
    shapes, buffers = _shapes(model)
    missing = dict.fromkeys(weights)

    def theirs() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            if name in buffers:
                continue  # made anew from the settings
            if name not in shapes:
                raise ValueError(f"{name} is no parameter of {model.name}: give those of its sequence of layers")
            if tensor.shape != shapes[name]:
                raise ValueError(
                    f"{name} is {tuple(tensor.shape)} and {model.name} has {tuple(shapes[name])}: give whole parameters"
                )
            if name in missing:
                del missing[name]
                yield from zip(weights[name].theirs, weights[name].write(tensor))
        if missing:
            raise ValueError(f"{len(missing)} parameters are missing, e.g. {next(iter(missing))}: give all of them")

    write(directory, family.whole_config(model.architecture), theirs(), shard_bytes)


# -- families ------------------------------------------------------------------------------------------------------


def _family(directory: str | Path, config: Config) -> Family:
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(
            f"{directory} holds a model of type {kind!r} and {', '.join(FAMILIES)} can be read: bring it as "
            f"package.module:callable"
        )
    return FAMILIES[kind]


def _family_of(model: Model) -> Family:
    for family in FAMILIES.values():
        if isinstance(model.architecture, family.architecture):
            return family
    raise ValueError(f"{model.name} has no form of Hugging Face's: {', '.join(FAMILIES)} have one")


def _tied(directory: str | Path, family: Family, config: Config) -> bool:
    """Whether the head is the token table. Files may say so and yet hold two different ones; then these count."""
    tied = config.get("tie_word_embeddings", True) is not False
    if not any((Path(directory) / name).is_file() for name in (SINGLE, INDEX)):
        return tied
    reader = Reader(directory, family.prefix, family.aliases)
    if reader.find(family.head) is None:
        return True
    return tied and torch.equal(reader.read(family.head), reader.read(family.table))


def _agreeing(directory: str | Path, model: Model) -> Family:
    """The family of a folder whose settings are the model's."""
    family = _family_of(model)
    address, options = describe(directory)
    if address != family.address:
        raise ValueError(f"{directory} is for {address} and {model.name} was made by {family.address}: use one of both")
    there: Any = make(address, **options).architecture
    for field in dataclasses.fields(there):
        ours, theirs = getattr(model.architecture, field.name), getattr(there, field.name)
        if ours != theirs and field.name not in OF_TRAINING:
            raise ValueError(
                f"{directory} has {field.name} = {theirs} and {model.name} has {field.name} = {ours}: make the model "
                f"with {field.name} = {theirs}"
            )
    return family


def _shapes(model: Model) -> tuple[dict[str, torch.Size], set[str]]:
    """Parameter -> its shape, and the names of buffers."""
    assert not isinstance(model.layers, nn.Sequential)  # the builders of these families give functions
    with torch.device("meta"):
        layers = [(number, layer()) for number, layer in enumerate(model.layers)]
    shapes = {f"{number}.{name}": p.shape for number, layer in layers for name, p in layer.named_parameters()}
    return shapes, {f"{number}.{name}" for number, layer in layers for name, _ in layer.named_buffers()}
