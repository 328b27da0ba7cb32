"""How the whole tensor lies in memory, of which a rank holds a tile: torch fills memory with random numbers in order.

A rank's own strides say it, but for dims in which it holds one pixel or none. Where any rank does, all take the word of
the one that holds most, in one small collective. Where no rank holds two pixels of a dim, that is what was noted of the
part held when it was made (`strides.noted`), or else what its stride says. Knows nothing of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from halocline.tiling.boxes import shape
from halocline.tiling.plain import gather
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import Ints, held_strides, laid_out, memory_order, noted, strides_in

if TYPE_CHECKING:
    from halocline.tiling.tensor import TileTensor


@lru_cache(maxsize=4096)
def unclear(spec: TileSpec) -> Ints:
    """By rank, how many pixels it lacks to show how the whole lies: two of each dim, or one where there is but one."""
    return tuple(sum(max(min(n, 2) - held, 0) for held, n in zip(shape(box), spec.size)) for box in spec.have)


def whole_order(x: TileTensor) -> Ints:
    """The dims of the whole tensor as they lie in memory on one device, the outermost first. Every rank calls this."""
    local, spec = x.local, x.spec
    order = memory_order(local)
    lacking = unclear(spec)
    if any(lacking) and not isinstance(local, FakeTensor):  # a shape without data needs no such care
        said = spec.exchanger.all_gather(torch.tensor(order, device=local.device))
        order = tuple(said[lacking.index(min(lacking))].tolist())
    return order


def whole_strides(x: TileTensor) -> Ints:
    """The strides that a new tensor in the likeness of the whole one has on one device. Every rank calls this."""
    return strides_in(whole_order(x), tuple(x.shape))


def as_on_whole(
    out: Tensor,
    spec: TileSpec,
    function: Callable[..., Tensor],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    always: bool = False,
) -> Tensor:
    """What `function` made of the parts held, lying in memory as what it makes of the whole `args` on one device.

    Torch forgets how dims of size 1 lie. So a rank with less than two pixels of a dim (or one that is `always` to) asks
    it what becomes of a few pixels that lie as the whole does: what is forgotten here may be all that is known later.
    """
    if not always and not unclear(spec)[spec.exchanger.rank]:
        return out
    kwargs = kwargs or {}
    values = tuple(_sketch(a) if isinstance(a, Tensor) else a for a in (*args, *kwargs.values()))
    try:
        order = _order_of_result(function, len(args), tuple(kwargs), values)
    except TypeError:  # an argument that no cache can keep, as a list
        order = _order_of_result.__wrapped__(function, len(args), tuple(kwargs), values)
    except RuntimeError:  # a function that refuses the value of our pixels
        return out
    return noted(laid_out(out, held_strides(order, tuple(out.shape))), order)


def note_view(
    view: TileTensor,
    look: Callable[..., Any],
    x: TileTensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> None:
    """Note how the view `look(x, ...)` of the whole lies, where what is held of it cannot show it."""
    local, spec = view.local, view.spec
    if not unclear(spec)[spec.exchanger.rank] or isinstance(local, FakeTensor):
        return
    if local is x.local or hasattr(local, "lies"):
        return
    whole = _pixels(_sketch(x, few=False), torch.device("meta"))
    try:
        order = memory_order(look(whole, *args, **(kwargs or {})))
    except (RuntimeError, TypeError):  # what makes no view of a tensor without data
        return
    strides = zip(local.shape, local.stride(), held_strides(order, tuple(local.shape)))
    noted(laid_out(local, tuple(a if n > 1 else b for n, a, b in strides)), order)


class _Sketch(NamedTuple):
    """How a tensor lies in memory, in few pixels."""

    shape: Ints
    strides: Ints
    dtype: torch.dtype
    device: torch.device


def _sketch(tensor: Tensor, few: bool = True) -> _Sketch:
    local = getattr(tensor, "local", tensor)
    shape = tuple(min(n, 3) if few else n for n in tensor.shape)
    dense = strides_in(memory_order(local), shape)
    strides = tuple(0 if n > 1 and not s else d for n, s, d in zip(local.shape, local.stride(), dense))
    return _Sketch(shape, strides, tensor.dtype, tensor.device)


@lru_cache(maxsize=4096)
def _order_of_result(function: Callable[..., Tensor], count: int, names: tuple[str, ...], values: Any) -> Ints:
    with torch.no_grad(), unset_fake_temporarily():
        few = [_pixels(v, v.device) if isinstance(v, _Sketch) else v for v in values]
        return memory_order(function(*few[:count], **dict(zip(names, few[count:]))))


def _pixels(sketch: _Sketch, device: torch.device) -> Tensor:
    size = 1 + sum((n - 1) * s for n, s in zip(sketch.shape, sketch.strides))
    pixels = torch.full((size,), 1, dtype=sketch.dtype, device=device)
    return pixels.as_strided(sketch.shape, sketch.strides)


def gathered(x: TileTensor) -> Tensor:
    """The whole tensor, plain, lying in memory on every rank as it does on one device. Every rank calls this."""
    whole = gather(x.local, x.spec)
    if x.spec.exchanger.size == 1:
        return whole
    size = tuple(whole.shape)
    order = whole_order(x)
    if _seen(memory_order(whole), size) == _seen(order, size):
        return whole
    return torch.empty_strided(size, strides_in(order, size), dtype=whole.dtype, device=whole.device).copy_(whole)


def _seen(order: Ints, size: Ints) -> Ints:
    return tuple(d for d in order if size[d] > 1)


def likeness(x: TileTensor) -> Tensor | None:
    """The whole as it lies on one device, without data, if `x` is a view of a slice of pixels: there it has gaps, which
    what is held here need not show. Else None: `local` shows it. Every rank calls this."""
    if x.seen_by is None:
        return None
    look, tile, args, kwargs = x.seen_by
    base = likeness(tile)
    if base is None:
        base = torch.empty_strided(tuple(tile.shape), whole_strides(tile), dtype=tile.dtype, device="meta")
    return look(base, *args, **kwargs)
