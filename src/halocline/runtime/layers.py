"""Building a stage's layers on the rank that holds them: from modules, from factories, or from meta-device modules.

Each layer's parameters come from a seed derived from its name, so every layout starts from the same weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from halocline.tiling.randomness import kept_randomness, seed_randomness

Layer = nn.Module | Callable[[], nn.Module]
"""A layer, or a function that makes it."""
Layers = Sequence[tuple[str, nn.Module]]
"""Layers that are built, with their names."""
Stages = Mapping[int, Layers]
"""Stage -> its layers."""


def named_layers(layers: nn.Sequential | Sequence[Layer]) -> list[tuple[str, Layer]]:
    """The layers with their names: a Sequential's own, else their numbers."""
    if isinstance(layers, nn.Sequential):
        named: list[tuple[str, Layer]] = list(zip(layers._modules, layers))  # a module that is there twice included
    elif isinstance(layers, nn.Module):
        raise ValueError(
            f"the model is a {type(layers).__name__}, not a sequence of layers: pass an nn.Sequential or a list of "
            f"layers, each taking what the one before returns"
        )
    else:
        named = [(str(number), layer) for number, layer in enumerate(layers)]
    for name, layer in named:
        if not callable(layer):
            raise ValueError(
                f"layer {name} is a {type(layer).__name__}: give an nn.Module, or a function that makes one"
            )
    return named


def modules_in(layers: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Every module inside layers, with its full name."""
    for name, layer in layers:
        for path, module in layer.named_modules():
            yield ".".join(filter(None, (name, path))), module


def parameters_of(layers: Layers) -> list[nn.Parameter]:
    """The parameters of layers, each once."""
    return list(dict.fromkeys(parameter for _, layer in layers for parameter in layer.parameters()))


def derived_seed(*parts: object) -> int:
    """A seed that depends on all its parts and on nothing else, the same on every machine."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Random numbers from `seed` inside, the caller's own afterwards."""
    with kept_randomness(torch.device("cpu")):
        seed_randomness(seed, torch.device("cpu"))
        yield


def build(name: str, layer: Layer, seed: int) -> nn.Module:
    """The layer itself. A module that is already built keeps its weights; a factory's or a meta module's are seeded."""
    if isinstance(layer, nn.Module):
        on_meta = any(t.is_meta for t in (*layer.parameters(), *layer.buffers()))
        if not on_meta:
            return layer
        with own_randomness(derived_seed(seed, name)):
            layer = layer.to_empty(device="cpu")
            for module in layer.modules():
                own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
                if not own:
                    continue
                reset = getattr(module, "reset_parameters", None)
                if reset is None:
                    raise ValueError(
                        f"layer {name} holds a {type(module).__name__} on the meta device without reset_parameters(): "
                        f"give it one, or pass a factory (a function that makes the layer)"
                    )
                reset()
        return layer
    with own_randomness(derived_seed(seed, name)):
        made = layer()
    if not isinstance(made, nn.Module):
        raise ValueError(f"the factory of layer {name} returned a {type(made).__name__}, not an nn.Module")
    return made


def one_device(layers: nn.Sequential | Sequence[Layer], seed: int = 0) -> nn.Sequential:
    """The whole model, built on this process alone with the weights every layout starts from: the reference."""
    model = nn.Sequential()
    for name, layer in named_layers(layers):
        model.add_module(name, build(name, layer, seed))
    return model
