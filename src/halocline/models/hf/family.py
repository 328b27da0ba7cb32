"""A family of models as Hugging Face's files describe it: which builder makes it, with which options, and where its
parameters are.

Our names of parameters are `layer.parameter` of the sequence of layers. Queries, keys and values are kept head by head
here and one after the other there; some of their matrices are transposed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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


class Family(ABC):
    """One value of `model_type`."""

    model_type: str
    architecture: type
    """Of `Model.architecture`."""
    address: str
    """Of the builder."""
    written_as: str
    """Their class, which config.json names."""
    table: str
    """Their name of the token table."""
    head: str
    """Their name of the head's matrix, which files leave out where it is the table."""
    prefix: str
    """What their names begin with, except in files of models that were saved without a head."""
    settings: ClassVar[dict[str, tuple[str, Any]]]
    """A size of the architecture -> the setting in config.json, and its value where that does not say it."""
    aliases: ClassVar[dict[str, str]] = {}
    """Their name of a tensor or setting -> another under which files may hold it."""

    @abstractmethod
    def options(self, config: Config, found: dict[str, Any]) -> dict[str, Any]:
        """The builder's options beside those `found` in config.json by `settings`. Refuses what the model here cannot
        be."""

    @abstractmethod
    def config(self, a: Any) -> dict[str, Any]:
        """The architecture -> what config.json holds beside `settings`."""

    @abstractmethod
    def weights(self, a: Any) -> Iterable[Weight]:
        """The architecture -> all its parameters, copies of tied ones included."""

    def all_options(self, config: Config) -> dict[str, Any]:
        """The builder's options, except `tied`."""
        found = {
            ours: config.get(theirs, config.get(self.aliases.get(theirs, theirs), default))
            for ours, (theirs, default) in self.settings.items()
        }
        return found | self.options(config, found)

    def whole_config(self, a: Any) -> dict[str, Any]:
        """The architecture -> config.json."""
        what = {"architectures": [self.written_as], "model_type": self.model_type, "tie_word_embeddings": a.tied}
        return what | {theirs: getattr(a, ours) for ours, (theirs, _) in self.settings.items()} | self.config(a)


def require(config: Config, key: str, known: tuple[Any, ...]) -> None:
    """A setting, of which the first of those known is Hugging Face's default; others are refused."""
    value = config.get(key, known[0])
    if value not in known:
        raise ValueError(
            f"config.json has {key} = {value!r} and the model here knows {' or '.join(map(repr, known))}: bring yours "
            f"as package.module:callable"
        )


def plain(ours: str, theirs: str, *, turned: bool = False) -> Weight:
    """The same on both sides, or (`turned`) a matrix that there stands (input, output)."""
    return Weight(ours, (theirs,), lambda t: t[0].T if turned else t[0], lambda t: [t.T if turned else t])


def module(ours: str, theirs: str) -> list[Weight]:
    """The weight and bias of a module, the same on both sides."""
    return [plain(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")]


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
