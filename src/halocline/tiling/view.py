"""A view that had to be gathered: a plain tensor, whole on every rank, that stays at one with the tile it shows.

On one device a view shares the memory of its tensor. A row of pixels or pixels in one long dim, gathered, cannot. So
what is written to such a view is written to the tile as well, and what was written to the tile since is gathered again
before the view is used. Views of it are such views too; whatever else is made of it is an ordinary tensor. Whether
reshape or contiguous make a view is asked of a tensor without data that lies in memory as one device's view does.

Knows nothing of tiles: what it shows is an `Origin`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.strides import is_alias_of, is_expanded

_UNSURE = "whether it is a view of its tensor or a copy depends on strides that are not known; use view, or clone it"


@dataclass(eq=False)
class Origin:
    """Where a gathered view comes from. Every rank has one, and all of them use it in the same order."""

    local: Tensor
    """What this rank holds of the tile."""
    gather: Callable[[], Tensor]
    part: Callable[[Tensor], Tensor]
    """What this rank holds of a whole tensor."""
    refuse: Callable[[str], Exception]

    def __post_init__(self) -> None:
        self.whole = self.gather()
        self._seen = _writes(self.local), _writes(self.whole)

    def read(self, sure: bool) -> None:
        """See what was written to the tile since the last time; for a view of which it is `sure` that it is one."""
        writes = _writes(self.local)
        if writes is None:
            if not torch.allclose(self.part(self.whole), self.local, 0, 0, equal_nan=True):
                raise self.refuse("its tensor was written to after this view was taken, in inference mode")
        elif writes != self._seen[0]:
            if not sure:
                raise self.refuse(f"its tensor was written to since, and {_UNSURE}")
            with torch.enable_grad():  # whoever looks first, the view has its tensor's history
                self.whole.copy_(self.gather())
            self._seen = writes, _writes(self.whole)
        elif _uncounted(self.local):
            self.whole.data.copy_(self.gather().detach())

    def write(self, sure: bool) -> None:
        """Let the tile see what was written to the whole."""
        if not sure:
            raise self.refuse(_UNSURE)
        # torch says so only where there are pixels, and the other ranks would go on.
        if is_expanded(self.local):
            raise self.refuse("it is expanded, and several of its elements are one in memory: clone() it before")
        if self.whole.is_inference() or _writes(self.whole) != self._seen[1]:
            self.local.copy_(self.part(self.whole))
        else:  # to its data: autograd is not to know
            data_of(self.local).copy_(self.part(self.whole.detach()))
        self._seen = _writes(self.local), _writes(self.whole)


def data_of(local: Tensor) -> Tensor:
    """The data of what is held of a tile. Nobody counts what is written to it, so views gathered from this memory look
    again whenever they are used."""
    local.untyped_storage().uncounted = True  # type: ignore[attr-defined]
    return local.data


def _uncounted(local: Tensor) -> bool:
    return getattr(local.untyped_storage(), "uncounted", False)


class GatheredView(Tensor):
    """Part of the whole tensor that an `Origin` has gathered, as a view of it."""

    origin: Origin
    _plain: Tensor
    like: Tensor | None
    """One device's view without data, to ask what else is one; None where nobody knows how that lies in memory."""
    sure: bool
    """Whether one device has a view here, and not a copy."""

    @staticmethod
    def of(plain: Tensor, origin: Origin, like: Tensor | None, sure: bool) -> Tensor:
        """The same values; a gathered view if `plain` shares the memory of the origin's whole tensor."""
        if not is_alias_of(plain, origin.whole):
            return plain
        view = plain.as_subclass(GatheredView)
        view.origin, view._plain, view.like, view.sure = origin, plain, like, sure
        return view

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return on_plain(func, args, kwargs or {})


_DESCRIBES = frozenset("__get__ size dim ndimension numel nelement stride __len__ is_contiguous __hash__".split())
"""What reads no values, so that one rank may ask it alone."""


_IF_NEED_BE = frozenset("reshape reshape_as view_as flatten ravel contiguous to".split())
"""What makes a view where it can, and else a copy."""


def on_plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function makes of its arguments, gathered views as the plain tensors they are."""
    views: list[GatheredView] = []
    opened = _opened(args, views, "_plain")
    named = {name: _opened(value, views, "_plain") for name, value in kwargs.items()}
    if getattr(function, "__name__", "") not in _DESCRIBES:
        for view in views:
            view.origin.read(view.sure)
    before = [_writes(view._plain) for view in views]
    result = function(*opened, **named)
    for view, writes in zip(views, before):
        if _may_write(function, named) if writes is None else _writes(view._plain) != writes:
            view.origin.write(view.sure)
    if function is Tensor.__iter__:
        result = tuple(result)
    if any(is_alias_of(r, view.origin.whole) for r in _tensors(result) for view in views):
        result = _closed(result, _of_likes(function, args, kwargs, views), views, function)
    return iter(result) if function is Tensor.__iter__ else result


def _of_likes(function: Any, args: Any, kwargs: dict[str, Any], views: list[GatheredView]) -> Any:
    """What a function that makes views would make of one device's; None where that is not known."""
    name = getattr(function, "__name__", "")
    if any(view.like is None for view in views) or name == "apply" or _may_write(function, kwargs):
        return None  # a model's own function is not to run twice
    try:
        made = function(*_opened(args, [], "like"), **{name: _opened(v, [], "like") for name, v in kwargs.items()})
    except RuntimeError:  # a view that cannot be made on one device
        return None
    return tuple(made) if function is Tensor.__iter__ else made


def _opened(value: Any, found: list[GatheredView], name: str) -> Any:
    if isinstance(value, GatheredView):
        found.append(value)
        return getattr(value, name)
    if type(value) in (list, tuple):
        return type(value)(_opened(v, found, name) for v in value)
    return value


def _tensors(result: Any) -> Iterable[Tensor]:
    if isinstance(result, Tensor):
        return (result,)
    return [t for r in result for t in _tensors(r)] if type(result) in (list, tuple) else ()


def _closed(result: Any, like: Any, views: list[GatheredView], function: Any) -> Any:
    """Gathered views for what shares their memory; a copy of what would be one on one device."""
    if type(result) in (list, tuple):
        likes = [None] * len(result) if like is None else like
        return type(result)(_closed(r, k, views, function) for r, k in zip(result, likes))
    for view in views if isinstance(result, Tensor) else ():
        if type(result) is Tensor and is_alias_of(result, view.origin.whole):
            if like is not None and view.like is not None and not is_alias_of(like, view.like):
                return result.clone()
            if result is view._plain:
                if view.like is not None and view.like.shape != result.shape:  # by unsqueeze_ and its kin
                    view.like = None
                return view
            known = like is not None or getattr(function, "__name__", "") not in _IF_NEED_BE
            return GatheredView.of(result, view.origin, like, view.sure and known)
    return result


def _writes(tensor: Tensor) -> int | None:
    """How often a tensor was written to; None in inference mode, where nobody counts."""
    return None if tensor.is_inference() else tensor._version


def _may_write(function: Any, kwargs: dict[str, Any]) -> bool:
    name = getattr(function, "__name__", "")
    in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
    return in_place or name == "__setitem__" or bool(kwargs.get("inplace")) or "out" in kwargs
