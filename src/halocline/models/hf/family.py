"""A family of models as Hugging Face's files describe it: which builder makes it, with which options, and where its
parameters are. One file per family fills this in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from halocline.models.hf.weight import Weight

Config = Mapping[str, Any]
"""What config.json holds."""


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
    options: Callable[[Config], dict[str, Any]]
    """config.json -> the builder's options, except `tied`."""
    config: Callable[[Any], dict[str, Any]]
    """The architecture -> config.json."""
    weights: Callable[[Any], Iterable[Weight]]
    """The architecture -> all its parameters, copies of tied ones included."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Their name -> another under which files may hold the tensor."""


def require(config: Config, key: str, known: tuple[Any, ...]) -> Any:
    """The value of a setting, of which the first of those known is Hugging Face's default; others are refused."""
    value = config.get(key, known[0])
    if value not in known:
        raise ValueError(
            f"config.json has {key} = {value!r} and the model here knows {' or '.join(map(repr, known))}: bring yours "
            f"as package.module:callable"
        )
    return value
