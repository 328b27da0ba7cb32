"""A view that had to be gathered: a plain tensor, whole on every rank, that stays at one with the tile it shows.

On one device a view shares the memory of its tensor. A row of pixels or pixels in one long dim, gathered, cannot. So
what is written to such a view is written to the tile as well, and what was written to the tile since is gathered again
before the view is used. Views of it are such views too; whatever else is made of it is an ordinary tensor.

Knows nothing of tiles: what it shows is an `Origin`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.strides import is_alias_of


@dataclass(eq=False)
class Origin:
    """Where a gathered view comes from. Every rank has one, and all of them use it in the same order."""

    local: Tensor
    """What this rank holds of the tile."""
    gather: Callable[[], Tensor]
    part: Callable[[Tensor], Tensor]
    """What this rank holds of a whole tensor."""
    refuse: Callable[[str], Exception]
    sure: bool = True
    """Whether one device would share the memory; where nobody can know, nothing may be written."""

    def __post_init__(self) -> None:
        self.whole = self.gather()
        self._seen = _writes(self.local)

    def read(self) -> None:
        """See what was written to the tile since the last time."""
        writes = _writes(self.local)
        if writes is None:
            if not torch.allclose(self.part(self.whole), self.local, 0, 0, equal_nan=True):
                raise self.refuse("its tensor was written to after this view was taken, in inference mode")
        elif writes != self._seen:
            self.whole.copy_(self.gather())
            self._seen = writes

    def write(self) -> None:
        """Let the tile see what was written to the whole."""
        if not self.sure:
            raise self.refuse("whether writing to it writes to its tensor depends on strides; use view, or clone it")
        self.local.copy_(self.part(self.whole))
        self._seen = _writes(self.local)


class GatheredView(Tensor):
    """Part of the whole tensor that an `Origin` has gathered, as a view of it."""

    origin: Origin
    _plain: Tensor

    @staticmethod
    def of(plain: Tensor, origin: Origin) -> Tensor:
        """The same values; a gathered view if `plain` shares the memory of the origin's whole tensor."""
        if not is_alias_of(plain, origin.whole):
            return plain
        view = plain.as_subclass(GatheredView)
        view.origin, view._plain = origin, plain
        return view

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return on_plain(func, args, kwargs or {})


_DESCRIBES = frozenset("__get__ size dim ndimension numel nelement stride __len__ is_contiguous __hash__".split())
"""What reads no values, so that one rank may ask it alone."""


def on_plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function makes of its arguments, gathered views as the plain tensors they are."""
    views: list[GatheredView] = []
    args = _opened(args, views)
    kwargs = {name: _opened(value, views) for name, value in kwargs.items()}
    if getattr(function, "__name__", "") not in _DESCRIBES:
        for view in views:
            view.origin.read()
    before = [_writes(view._plain) for view in views]
    result = function(*args, **kwargs)
    for view, writes in zip(views, before):
        if _may_write(function, kwargs) if writes is None else _writes(view._plain) != writes:
            view.origin.write()
    if function is Tensor.__iter__:
        return iter(_closed(tuple(result), views))
    return _closed(result, views)


def _opened(value: Any, found: list[GatheredView]) -> Any:
    if isinstance(value, GatheredView):
        found.append(value)
        return value._plain
    if type(value) in (list, tuple):
        return type(value)(_opened(v, found) for v in value)
    return value


def _closed(result: Any, views: list[GatheredView]) -> Any:
    if isinstance(result, Tensor):
        for view in views:
            if result is view._plain:
                return view
            if type(result) is Tensor and is_alias_of(result, view.origin.whole):
                return GatheredView.of(result, view.origin)
    elif type(result) in (list, tuple):
        return type(result)(_closed(r, views) for r in result)
    return result


def _writes(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None in inference mode, where nobody counts."""
    return None if tensor.is_inference() else tensor._version


def _may_write(function: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(function, "__name__", "")
    in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    return in_place or name == "__setitem__" or bool(kwargs.get("inplace")) or "out" in kwargs
