"""What changes a tensor's dims and not its pixels: permute, reshape, squeeze, expand, repeat and their kin.

While every spatial dim stays a dim of its own the result is a tile. When one is merged with others (flatten(2)) the
tensor is gathered: the result is a plain tensor, whole on every rank. Knows nothing of messages.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from halocline.tiling.rules.attributes import contiguous
from halocline.tiling.rules.elementwise import named
from halocline.tiling.rules.gathered import fills_its_memory, view_of
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import apart, is_alias_of, noted
from halocline.tiling.tensor import TileTensor, rule, rules, untiled
from halocline.tiling.whole_order import likeness, note_view, whole_strides

Ints = tuple[int, ...]


@lru_cache(maxsize=4096)
def moved(spec: TileSpec, dims: Ints) -> TileSpec:
    """The same tiles of a tensor whose spatial dims now lie at `dims` (negative); listed in the tensor's order."""
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    if order == list(range(len(dims))):
        return spec if dims == spec.dims else spec.with_dims(dims)
    ranks = spec.permuted_ranks(
        lambda new: [new[order.index(i)] for i in range(len(new))], [spec.grid[i] for i in order]
    )
    cuts = tuple(spec.cuts[i] for i in order)
    have = tuple(tuple(box[i] for i in order) for box in spec.have)
    return TileSpec(cuts, spec.exchanger, tuple(dims[i] for i in order), ranks, have)


def at(spec: TileSpec, positions: Sequence[int], ndim: int) -> TileSpec:
    """The same tiles of a tensor of `ndim` dims whose spatial dims lie at `positions`, counted from the front."""
    return moved(spec, tuple(p - ndim for p in positions))


def ints(args: tuple[Any, ...]) -> Ints:
    """The numbers of a call that takes them one by one or as one sequence."""
    if len(args) == 1 and isinstance(args[0], (tuple, list)):
        args = tuple(args[0])
    return tuple(int(a) for a in args)


def from_front(dim: Any, ndim: int) -> int:
    """A dim, also as a number of numpy's or a tensor, counted from the front."""
    dim = operator.index(dim)
    if not -ndim <= dim < ndim:
        raise IndexError(f"dim {dim} is out of range for a tensor of {ndim} dims; use -{ndim} to {ndim - 1}")
    return dim % ndim


# ------------------------------------------------------------------------------------------------- order of the dims


def permuted(input: TileTensor, order: Ints) -> TileTensor:
    ndim = input.ndim
    order = tuple(from_front(d, ndim) for d in order)
    positions = [order.index(p) for p in input.spec.positions(ndim)]
    out = TileTensor.wrap(input.local.permute(order), at(input.spec, positions, ndim))
    note_view(out, Tensor.permute, input, (order,))
    return out


@rule(torch.permute, Tensor.permute)
def permute(input: TileTensor, *dims: Any) -> TileTensor:
    return permuted(input, ints(dims))


@rule(torch.transpose, torch.swapaxes, torch.swapdims, Tensor.transpose, Tensor.swapaxes, Tensor.swapdims)
def transpose(input: TileTensor, dim0: int, dim1: int) -> TileTensor:
    order = list(range(input.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(input, tuple(order))


@rule(torch.movedim, torch.moveaxis, Tensor.movedim, Tensor.moveaxis)
def movedim(input: TileTensor, source: Any, destination: Any) -> TileTensor:
    ndim = input.ndim
    # Where each dim goes is what torch does to a tensor whose sizes are the dims' numbers.
    order = torch.movedim(torch.empty(tuple(range(ndim)), device="meta"), source, destination).shape
    return permuted(input, tuple(order))


@rule(getattr(Tensor, "T").__get__, torch.t, Tensor.t)  # noqa: B009
def reverse_dims(input: TileTensor) -> TileTensor:
    if input.ndim != 2:
        raise untiled(torch.t, (input,), why="a transpose of a tensor without exactly 2 dims; use permute or mH")
    return permuted(input, (1, 0))


rule(getattr(Tensor, "mT").__get__)(lambda input: transpose(input, -2, -1))  # noqa: B009
rule(getattr(Tensor, "mH").__get__, *named("adjoint"))(lambda input: transpose(input, -2, -1).conj())  # noqa: B009
rule(getattr(Tensor, "H").__get__)(lambda input: reverse_dims(input).conj())  # noqa: B009


# ------------------------------------------------------------------------------------------------- sizes of the dims


@lru_cache(maxsize=4096)
def places(shape: Ints, spatial: Ints, target: Ints) -> Ints | None:
    """Where the `spatial` dims of `shape` are found in `target`, each a dim of its own; None if one is merged."""
    found: list[int] = []
    for p in spatial:
        before = prod(shape[:p])
        first = found[-1] + 1 if found else 0
        fits = (q for q in range(first, len(target)) if target[q] == shape[p] and prod(target[:q]) == before)
        place = next(fits, None)
        if place is None:
            return None
        found.append(place)
    return tuple(found)


def whole_sizes(shape: Ints, target: Ints) -> Ints:
    """`target` with its -1, if any, worked out."""
    count, known = prod(shape), prod(n for n in target if n != -1)
    if target.count(-1) == 1 and known and count % known == 0:
        target = tuple(count // known if n == -1 else n for n in target)
    if min(target, default=0) < 0 or prod(target) != count:
        raise ValueError(f"a tensor of shape {shape} with {count} values cannot take the shape {target}")
    return target


def reshaped(input: TileTensor, target: Ints, view: bool = False) -> Tensor:
    shape, spec = tuple(input.shape), input.spec
    target = whole_sizes(shape, target)
    found = places(shape, spec.positions(len(shape)), target) if prod(shape) else None
    whole = None if view else likeness(input)
    shared = view or is_view(shape, whole_strides(input) if whole is None else whole.stride(), target)
    held = input.local
    if found is None:
        # Whether one device makes a view is known of a slice of pixels, and of a tile that is all of its memory.
        known = whole is not None or isinstance(held, FakeTensor) or fills_its_memory(held)
        if view or (known and shared):
            return view_of(input, Tensor.view, target)
        return input.full().contiguous().view(target) if known else view_of(input, Tensor.reshape, target, sure=False)
    out = at(spec, found, len(target))
    local = out.local_shape(target)
    part = held.view(local) if view else held.reshape(local)
    if not shared:
        return TileTensor.wrap(noted(apart(part.contiguous(), held), tuple(range(len(target)))), out)
    tile = TileTensor.wrap(part, out)
    note_view(tile, Tensor.reshape, input, (target,))
    return tile


@lru_cache(maxsize=4096)
def is_view(shape: Ints, strides: Ints, target: Ints) -> bool:
    """Whether a tensor of this shape and strides takes another shape without being copied."""
    with unset_fake_temporarily():
        tensor = torch.empty_strided(shape, strides, device="meta")
        return is_alias_of(tensor.reshape(target), tensor)


@rule(torch.reshape, Tensor.reshape)
def reshape(input: TileTensor, *shape: Any) -> Tensor:
    return reshaped(input, ints(shape))


@rule(Tensor.view)
def view(input: TileTensor, *shape: Any) -> Tensor:
    if any(isinstance(s, torch.dtype) for s in shape):
        raise untiled(Tensor.view, (input, *shape), why="a view as another dtype has no rule")
    return reshaped(input, ints(shape), view=True)


@rule(Tensor.view_as, Tensor.reshape_as)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    if not isinstance(input, TileTensor):
        return input.reshape(other.shape)
    return reshaped(input, tuple(other.shape))


@rule(torch.flatten, Tensor.flatten)
def flatten(input: TileTensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    shape = tuple(input.shape)
    first, last = from_front(start_dim, len(shape)), from_front(end_dim, len(shape))
    if first == last:
        return input
    if first > last:
        raise ValueError(f"flatten needs start_dim <= end_dim, got {start_dim} and {end_dim}")
    return reshaped(input, (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]))


@rule(torch.ravel, Tensor.ravel)
def ravel(input: TileTensor) -> Tensor:
    """A view of what is contiguous only, where reshape(-1) makes one of evenly spaced values, too."""
    return reshaped(contiguous(input), (-1,))


@rule(torch.view_as_real)
def view_as_real(input: TileTensor) -> TileTensor:
    """Pairs of real numbers: the new last dim holds the real and the imaginary part."""
    return TileTensor.wrap(torch.view_as_real(input.local), input.spec.with_dims(tuple(d - 1 for d in input.spec.dims)))


@rule(torch.view_as_complex)
def view_as_complex(input: TileTensor) -> TileTensor:
    if -1 in input.spec.dims:
        raise untiled(torch.view_as_complex, (input,), why="its last dim is cut; move the pairs to an uncut last dim")
    local = torch.view_as_complex(input.local)
    return TileTensor.wrap(local, input.spec.with_dims(tuple(d + 1 for d in input.spec.dims)))


@rule(torch.unflatten, Tensor.unflatten)
def unflatten(input: TileTensor, dim: int, sizes: Sequence[int]) -> Tensor:
    shape = tuple(input.shape)
    dim = from_front(dim, len(shape))
    return reshaped(input, (*shape[:dim], *whole_sizes((shape[dim],), ints((sizes,))), *shape[dim + 1 :]))


# --------------------------------------------------------------------------------------------- dims that come and go


@rule(torch.unsqueeze, Tensor.unsqueeze)
def unsqueeze(input: TileTensor, dim: int) -> TileTensor:
    ndim = input.ndim + 1
    dim = from_front(dim, ndim)
    positions = [p + (p >= dim) for p in input.spec.positions(ndim - 1)]
    return TileTensor.wrap(input.local.unsqueeze(dim), at(input.spec, positions, ndim))


@rule(torch.squeeze, Tensor.squeeze)
def squeeze(input: TileTensor, *dim: Any) -> Tensor:
    shape = tuple(input.shape)
    ndim = len(shape)
    named = ints(dim) if dim else tuple(range(ndim))
    gone = {d for d in (from_front(n, ndim) for n in named) if shape[d] == 1}
    positions = input.spec.positions(ndim)
    if gone.intersection(positions):  # an image of one pixel in this dim is no longer cut in it
        return view_of(input, Tensor.squeeze, tuple(gone))
    kept = [p - len([d for d in gone if d < p]) for p in positions]
    return TileTensor.wrap(input.local.squeeze(tuple(gone)), at(input.spec, kept, ndim - len(gone)))


@rule(Tensor.expand, torch.broadcast_to, Tensor.broadcast_to)
def expand(input: TileTensor, *sizes: Any, implicit: bool = False) -> Tensor:
    target = ints(sizes)
    spec = input.spec
    if any(target[d] not in (-1, n) for d, n in zip(spec.dims, spec.size)):
        return view_of(input, Tensor.expand, target)
    local = list(target)
    for d in spec.dims:
        local[d] = -1
    out = TileTensor.wrap(input.local.expand(local), spec)
    if out.shape != input.shape:
        out.seen_by = (Tensor.expand, input, (target,), {})
    return out


rule(Tensor.expand_as)(lambda input, other: input.expand(tuple(other.shape)))


@rule(torch.broadcast_tensors, torch.functional.broadcast_tensors)
def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    listed = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    shape = torch.broadcast_shapes(*(tuple(t.shape) for t in listed))
    return tuple(t.expand(shape) for t in listed)


@rule(Tensor.repeat)
def repeat(input: TileTensor, *repeats: Any) -> Tensor:
    times = ints(repeats)
    if any(times[d] != 1 for d in input.spec.dims):
        return input.full().repeat(times)
    return TileTensor.wrap(input.local.repeat(times), input.spec)


@rule(torch.tile, Tensor.tile)
def tile(input: TileTensor, *dims: Any) -> Tensor:
    times = ints(dims)
    return repeat(input, (1,) * (input.ndim - len(times)) + times)


@rule(torch.repeat_interleave, Tensor.repeat_interleave)
def repeat_interleave(input: Tensor, repeats: Any, dim: int | None = None, **kwargs: Any) -> Tensor:
    if not isinstance(input, TileTensor) or isinstance(repeats, TileTensor):
        raise untiled(torch.repeat_interleave, (input, repeats), why="a tile cannot say how often to repeat")
    if dim is None or from_front(dim, input.ndim) in input.spec.positions(input.ndim):
        return input.full().repeat_interleave(repeats, dim, **kwargs)
    return TileTensor.wrap(input.local.repeat_interleave(repeats, dim, **kwargs), input.spec)


@rules((torch.atleast_1d,), 1)
@rules((torch.atleast_2d,), 2)
@rules((torch.atleast_3d,), 3)
def at_least(function: Callable[..., Any], ndim: int, *tensors: Any) -> Any:
    listed = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if all(t.ndim >= ndim for t in listed):
        return listed[0] if listed is tensors and len(tensors) == 1 else tuple(listed)
    raise untiled(function, tensors, why=f"a tile of fewer than {ndim} dims has no rule")


# ----------------------------------------------------------------------------------------------- dims changed in place


@rules((Tensor.unsqueeze_,), unsqueeze)
@rules((Tensor.squeeze_,), squeeze)
@rules((Tensor.transpose_, Tensor.swapaxes_, Tensor.swapdims_), transpose)
@rules((Tensor.t_,), reverse_dims)
def in_place(function: Any, changed: Callable[..., Tensor], input: TileTensor, *args: Any) -> TileTensor:
    """The tile becomes what `changed` makes of it; one that would have to be gathered cannot."""
    if input.is_leaf and input.requires_grad:  # as torch itself says
        raise RuntimeError("a leaf that requires grad cannot change in place; write it without the underscore")
    gone = {d for d in input.spec.dims if input.shape[d] == 1} if changed is squeeze else ()
    if gone and (not args or any(d % input.ndim - input.ndim in gone for d in ints(args))):
        raise untiled(function, (input, *args), why="a tile cannot become a whole tensor in place; use squeeze")
    out = changed(input, *args)
    assert isinstance(out, TileTensor)
    if input.seen_by is not None:
        before = TileTensor.wrap(input.local, input.spec)
        before.seen_by = input.seen_by
        input.seen_by = (getattr(Tensor, function.__name__.removesuffix("_")), before, args, {})
    input._local, input.spec = out.local, out.spec
    return input
