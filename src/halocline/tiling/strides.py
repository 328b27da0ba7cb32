"""How a tensor lies in memory, where torch's kernels could read it in two ways. Knows nothing of tiles.

The stride of a dim of size 1 says nothing, so a tensor may be contiguous in a memory format without the strides that
the format gives to its shape. Batch norm's kernels for gradients take such a tensor for one in the other format, and
the statistics for contiguous ones, whatever they are: they then read other values than are meant.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

Ints = tuple[int, ...]

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By number of dims, the memory format of images whose channels lie side by side."""


@lru_cache(maxsize=4096)
def contiguous_strides(shape: Ints) -> Ints:
    """The strides of a new tensor of this shape."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)
def channels_last_strides(shape: Ints) -> Ints:
    """The strides of a new tensor of this shape, batch and channels first, in the format channels_last."""
    samples, *pixels, channels = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return samples, channels, *pixels


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
