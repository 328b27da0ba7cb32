"""A family of models as Hugging Face's files describe it: which builder makes it, with which options, and where its
parameters are. One file per family fills this in.

Our names of parameters are `layer.parameter` of the sequence of layers. Queries, keys and values are kept head by head
here and one after the other there; some of their matrices are transposed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Config = Mapping[str, Any]
"""What config.json holds."""


@dataclass(frozen=True)
class Weight:
    """A parameter of ours and the tensors it is made of there."""

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[Sequence[Tensor]], Tensor]
    """Theirs -> ours."""
    write: Callable[[Tensor], Sequence[Tensor]]
    """Ours -> theirs."""


@dataclass(frozen=True)
class Family:
    """One value of `model_type`."""

    model_type: str
    architecture: type
    """Of `Model.architecture`."""
    address: str
    """Of the builder."""
    table: str
    """Their name of the token table."""
    head: str
    """Their name of the head's matrix, which files leave out where it is the table."""
    prefix: str
    """What their names begin with, except in files of models that were saved without a head."""
    settings: Mapping[str, tuple[str, Any]]
    """A size of the architecture -> the setting in config.json, and its value where that does not say it."""
    options: Callable[[Config, dict[str, Any]], dict[str, Any]]
    """config.json, and the builder's options found in it by `settings` -> those that take more to find. Refuses what
    the model here cannot be."""
    config: Callable[[Any], dict[str, Any]]
    """The architecture -> what config.json holds beside `settings`."""
    weights: Callable[[Any], Iterable[Weight]]
    """The architecture -> all its parameters, copies of tied ones included."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Their name of a tensor or setting -> another under which files may hold it."""

    def options_in(self, config: Config) -> dict[str, Any]:
        """The builder's options, except `tied`."""
        found = {
            ours: config.get(theirs, config.get(self.aliases.get(theirs, theirs), default))
            for ours, (theirs, default) in self.settings.items()
        }
        return found | self.options(config, found)

    def config_of(self, architecture: Any) -> dict[str, Any]:
        """config.json."""
        sizes = {theirs: getattr(architecture, ours) for ours, (theirs, _) in self.settings.items()}
        tied = {"tie_word_embeddings": architecture.tied}
        return {"model_type": self.model_type} | sizes | tied | self.config(architecture)


def require(config: Config, key: str, known: tuple[Any, ...]) -> None:
    """A setting, of which the first of those known is Hugging Face's default; others are refused."""
    value = config.get(key, known[0])
    if value not in known:
        raise ValueError(
            f"config.json has {key} = {value!r} and the model here knows {' or '.join(map(repr, known))}: bring yours "
            f"as package.module:callable"
        )


def plain(ours: str, theirs: str) -> Weight:
    """The same on both sides."""
    return Weight(ours, (theirs,), lambda given: given[0], lambda tensor: [tensor])


def module(ours: str, theirs: str) -> list[Weight]:
    """The weight and bias of a module, the same on both sides."""
    return [plain(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")]


def transposed(ours: str, theirs: str) -> Weight:
    """A matrix that there stands (input, output)."""
    return Weight(ours, (theirs,), lambda given: given[0].T, lambda tensor: [tensor.T])


def head_by_head(ours: str, theirs: Sequence[str], heads: int, *, turned: bool = False) -> Weight:
    """Queries, keys and values of all heads: three tensors there, or one that holds them one after the other (`turned`:
    transposed)."""

    def read(given: Sequence[Tensor]) -> Tensor:
        whole = torch.cat([t.T if turned else t for t in given])
        return whole.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)

    def write(tensor: Tensor) -> Sequence[Tensor]:
        whole = tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        return [t.T if turned else t for t in whole.chunk(len(theirs))]

    return Weight(ours, tuple(theirs), read, write)
