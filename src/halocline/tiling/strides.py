"""How a tensor lies in memory: in which order its dims follow each other. Knows nothing of tiles.

The stride of a dim of size 1 says nothing to most of torch, so a tensor may be contiguous in a memory format without
the strides that the format gives to its shape. Batch norm's kernels for gradients take such a tensor for one in the
other format: they then read other values than are meant. And a tile of one pixel must still know how the whole lies,
as torch draws random numbers in the order of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

Ints = tuple[int, ...]

is_alias_of: Callable[[Tensor, Tensor], bool] = getattr(torch._C, "_is_alias_of")  # noqa: B009
"""Whether two tensors lie in the same memory."""

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dims, the memory format of images whose channels lie side by side."""


@lru_cache(maxsize=4096)
def contiguous_strides(shape: Ints) -> Ints:
    """The strides of a new tensor of this shape."""
    return tuple(prod(max(n, 1) for n in shape[d + 1 :]) for d in range(len(shape)))


@lru_cache(maxsize=4096)
def strides_in(order: Ints, shape: Ints) -> Ints:
    """The strides of a new tensor of this shape whose dims lie in memory in this order, the outermost first."""
    strides = dict(zip(order, contiguous_strides(tuple(shape[d] for d in order))))
    return tuple(strides[d] for d in range(len(shape)))


@lru_cache(maxsize=4096)
def held_strides(order: Ints, shape: Ints) -> Ints:
    """The same of the part of a tensor. Torch's kernels would take one pixel of a tensor that lies in no memory format
    for channels_last, and make a result that lies so; with these strides they do not."""
    strides = strides_in(order, shape)
    if len(shape) not in CHANNELS_LAST or order == (0, *range(2, len(shape)), 1) or max(shape[2:]) > 1:
        return strides
    return tuple(a if n > 1 else b for n, a, b in zip(shape, strides, contiguous_strides(shape)))


def channels_last_strides(shape: Ints) -> Ints:
    """The strides of a new tensor of this shape, batch and channels first, in the format channels_last."""
    return strides_in((0, *range(2, len(shape)), 1), shape)


def memory_format(shape: Ints, strides: Ints) -> torch.memory_format:
    """The memory format that gives a new tensor of this shape these strides; to preserve them, where none does."""
    if strides == contiguous_strides(shape):
        return torch.contiguous_format
    if len(shape) in CHANNELS_LAST and strides == channels_last_strides(shape):
        return CHANNELS_LAST[len(shape)]
    return torch.preserve_format


@lru_cache(maxsize=4096)
def _order(shape: Ints, strides: Ints) -> Ints:
    sizes = [max(n, 1) for n in shape]
    if any(n > 1 and not s for n, s in zip(shape, strides)):  # repeated: torch knows where a copy puts such a dim
        strides = torch.empty_like(torch.empty_strided(sizes, strides, device="meta")).stride()
    # A dim of size 1 lies outside of all the others that would fit into its stride, as the memory formats have it.
    return tuple(sorted(range(len(sizes)), key=lambda d: (-strides[d] * sizes[d], sizes[d] > 1)))


def memory_order(tensor: Tensor) -> Ints:
    """The dims of a tensor as they lie in memory, the outermost first: as noted of it, or as its strides say."""
    noted: Ints | None = getattr(tensor, "lies", None)
    return _order(tuple(tensor.shape), tensor.stride()) if noted is None else noted


def noted(tensor: Tensor, order: Ints) -> Tensor:
    """The same tensor, of which we know that its dims lie in memory in this order: strides do not tell it of a dim of
    size 1, which may be one of many in the whole tensor."""
    tensor.lies = order  # type: ignore[attr-defined]
    return tensor


def empty_as(like: Tensor, size: Sequence[int]) -> Tensor:
    """An uninitialised tensor of another size whose dims lie in memory as those of `like` do."""
    order = memory_order(like)
    return noted(
        torch.empty_strided(size, held_strides(order, tuple(size)), dtype=like.dtype, device=like.device), order
    )


def in_format_of(out: Tensor, *like: Tensor) -> Tensor:
    """The same values in the memory format that torch's operators give to what they make from `like`; a copy of it."""
    formats = {suggested_format(t) for t in like}
    form = formats.pop() if len(formats) == 1 else torch.contiguous_format
    return laid_out(apart(out.contiguous(memory_format=form), *like), strides_of(form, tuple(out.shape)))


def strides_of(form: torch.memory_format, shape: Ints) -> Ints:
    """The strides of a new tensor of this shape in a memory format."""
    return contiguous_strides(shape) if form is torch.contiguous_format else channels_last_strides(shape)


def suggested_format(like: Tensor) -> torch.memory_format:
    """The memory format in which torch's operators make their results of such a tensor.

    As torch has it, but of one pixel, too, which may be part of an image that lies in no format."""
    order = memory_order(like)
    if like.ndim not in CHANNELS_LAST or order != (0, *range(2, like.ndim), 1) or not all(like.stride()):
        return torch.contiguous_format
    return CHANNELS_LAST[like.ndim]


def in_order_of(out: Tensor, like: Tensor, function: Callable[..., Tensor], *args: Any) -> Tensor:
    """The same values, lying in memory as the result of torch's `function(like, *args)` does, which keeps the dims."""
    return laid_out(out, strides_in(_asked(function, args, memory_order(like), like.device), tuple(out.shape)))


def laid_out(out: Tensor, strides: Ints) -> Tensor:
    """The same values with these strides: copied only where a dim of more than one value has another stride."""
    if out.stride() == strides:
        return out
    if out.numel() and any(n > 1 and a != b for n, a, b in zip(out.shape, out.stride(), strides)):
        return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device).copy_(out)
    out.data = out.data.as_strided(out.shape, strides)  # in place, as autograd would not let others write to a view
    return out


@lru_cache(maxsize=1024)
def _asked(function: Callable[..., Tensor], args: tuple[Any, ...], order: Ints, device: torch.device) -> Ints:
    """Asked of torch, on a few pixels."""
    shape = (5,) * len(order)
    with torch.no_grad(), unset_fake_temporarily():
        return memory_order(function(torch.empty_strided(shape, strides_in(order, shape), device=device), *args))


def alias(tensor: Tensor) -> Tensor:
    """The same memory with its very strides: `view_as` gives dims of size 1 others, of no memory format."""
    return noted(tensor.detach(), memory_order(tensor))


def apart(out: Tensor, *given: Tensor) -> Tensor:
    """The same values, copied if they lie in the memory of what an operator was given, whose results do not on one
    device: what is written to the one must not be seen in the other."""
    return out.clone() if any(is_alias_of(out, g) for g in given) else out


def definite(tensor: Tensor) -> Tensor:
    """The same values, not copied, with the strides of the one memory format in which the tensor is contiguous.

    One that is so in both reads alike in both, and of one that is so in none the kernels heed the strides.
    """
    last = CHANNELS_LAST.get(tensor.ndim)
    contiguous = tensor.is_contiguous()
    if last is None or contiguous == tensor.is_contiguous(memory_format=last):
        return tensor
    shape = tuple(tensor.shape)
    strides = contiguous_strides(shape) if contiguous else channels_last_strides(shape)
    return tensor if tensor.stride() == strides else tensor.as_strided(shape, strides)


def with_definite_gradient(out: Tensor, contiguous: bool = False) -> Tensor:
    """The same tensor; a gradient that arrives at it is made definite (and contiguous) for the kernel that made it."""
    if out.requires_grad:
        out.register_hook((lambda grad: definite(grad.contiguous())) if contiguous else definite)
    return out


def is_expanded(tensor: Tensor) -> bool:
    """Whether several elements are one in memory. Without any, channels_last has strides of 0, too."""
    if not any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape)):
        return False
    last = CHANNELS_LAST.get(tensor.ndim)
    if tensor.numel() or last is None:
        return True
    return tensor.stride() != torch.empty(tensor.shape, device="meta", memory_format=last).stride()


def ask_of_expanded(write: Callable[..., Any], local: Tensor, *others: Any) -> None:
    """Let torch refuse to write to an expanded tensor where no pixels are held, too: else other ranks fail alone."""
    if local.numel() or not is_expanded(local):
        return

    def some(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.numel():
            return value
        return value.new_zeros(1).as_strided([max(n, 1) for n in value.shape], [0] * value.ndim)

    write(some(local.detach()), *map(some, others))
