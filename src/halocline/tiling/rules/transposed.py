"""Transposed convolution in 1, 2 and 3 dims: any kernel, stride, padding, output padding, dilation and groups.

Each tile convolves the pixels that write into its outputs and keeps those outputs only. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.boxes import Box, TransposedWindow, is_empty, shape
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Grads
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.rules.convolution import as_autocast, check_image, hashable, in_parts, tuples
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

Ints = tuple[int, ...]


@dataclass(frozen=True)
class Fit:
    """How a local transposed convolution gives just the outputs wanted."""

    nothing: bool
    """Whether the inputs write none of the outputs."""
    padding: Ints
    """Outputs cut off at both ends by the operator itself."""
    output_padding: Ints
    """Outputs it adds again at the far end."""
    crop: Ints
    """Outputs to drop (add, if negative) afterwards, as F.pad counts them."""


@lru_cache(maxsize=4096)
def fit(windows: tuple[TransposedWindow, ...], given: Box, out: Box) -> Fit:
    """The outputs written by the inputs `given` begin before `out` and end before or after it: cut or lengthen."""
    if is_empty(given):
        return Fit(True, (), (), ())
    lengths = tuple((b - 1) * w.stride + w.span for w, (_, b) in zip(windows, ((0, b - a) for a, b in given)))
    before = tuple(c - a * w.stride + w.padding for w, (a, _), (c, _) in zip(windows, given, out))
    after = tuple(n - lo - (d - c) for n, lo, (c, d) in zip(lengths, before, out))
    assert min(before) >= 0, (windows, given, out)
    if any(lo >= n for lo, n in zip(before, lengths)):
        return Fit(True, (), (), ())
    zeros = (0,) * len(windows)
    more = tuple(max(0, lo - hi) for lo, hi in zip(before, after))
    if all(m < max(w.stride, w.dilation) for m, w in zip(more, windows)):
        excess = [max(0, hi - lo) for lo, hi in zip(before, after)]
        return Fit(False, before, more, tuple(n for e in reversed(excess) for n in (0, e)))
    # Torch would not add that many: let it write all and cut afterwards.
    return Fit(False, zeros, zeros, tuple(n for ends in zip(reversed(before), reversed(after)) for n in ends))


@dataclass(frozen=True)
class TransposedConvolution:
    """The local operator; its parameters are (weight, bias)."""

    windows: tuple[TransposedWindow, ...]
    stride: Ints
    dilation: Ints
    groups: int

    def forward(self, padded: Tensor, where: Geometry, params: Sequence[Tensor | None]) -> Tensor:
        weight, bias = params
        assert weight is not None
        way = fit(self.windows, where.in_box, where.out_box)
        if way.nothing:
            out = padded.new_zeros(len(padded), self.channels(params, 0), *shape(where.out_box))
            # Nothing, but part of the graph: peers wait for its backward, and a weight unused here is used elsewhere.
            out = out + padded.flatten()[:0].sum() + weight.flatten()[:0].sum()
            return out if bias is None else out + self._along(bias)
        late = any(n < 0 for n in way.crop)  # outputs added afterwards have a bias, too
        args = self.stride, way.padding, self.dilation, True, way.output_padding, self.groups
        out = torch.convolution(padded, weight, None if late else bias, *args)
        if any(way.crop):
            out = F.pad(out, [-n for n in way.crop])
        return out + self._along(bias) if late and bias is not None else out

    def backward(
        self, grad: Tensor, padded: Tensor, where: Geometry, params: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Grads:
        weight, bias = params
        assert weight is not None
        way = fit(self.windows, where.in_box, where.out_box)
        grad_bias = grad.sum([0, *range(2, grad.ndim)]) if bias is not None and wanted[2] else None
        if way.nothing:
            return torch.zeros_like(padded), torch.zeros_like(weight), grad_bias
        written = F.pad(grad, way.crop) if any(way.crop) else grad
        args = self.stride, way.padding, self.dilation, True, way.output_padding, self.groups
        asked = wanted[0], wanted[1], False
        grads = torch.ops.aten.convolution_backward(written, padded, weight, None, *args, asked)
        return grads[0], grads[1], grad_bias

    def _along(self, bias: Tensor) -> Tensor:
        return bias.view(-1, *(1,) * len(self.stride))

    def channels(self, params: Sequence[Tensor | None], given: int) -> int:
        weight = params[0]
        assert weight is not None
        return weight.shape[1] * self.groups


@lru_cache(maxsize=1024)
def _plan(
    kernel: Ints, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> TransposedConvolution:
    dims = len(kernel)
    strides, pads, dilations = tuples(stride, dims), tuples(padding, dims), tuples(dilation, dims)
    extra = tuples(output_padding, dims)
    for o, s, d in zip(extra, strides, dilations):
        if not 0 <= o < max(s, d):
            raise ValueError(f"output_padding={extra} must be smaller than stride={strides} or dilation={dilations}")
    windows = tuple(TransposedWindow(*numbers) for numbers in zip(kernel, strides, pads, extra, dilations))
    return TransposedConvolution(windows, strides, dilations, groups)


def _transposed(function: Callable[..., Tensor], dims: int) -> None:
    @rule(function)
    @per_sample(function, dims)
    def conv_transpose(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> TileTensor:
        check_image(function, input, dims)
        assert isinstance(input, TileTensor)
        if isinstance(weight, TileTensor) or isinstance(bias, TileTensor):
            raise untiled(function, (input, weight, bias), why="a kernel cannot be cut into tiles")
        if input.dtype.is_complex:
            return in_parts(function, input, weight, bias, stride, padding, output_padding, groups, dilation)
        if input.shape[-dims - 1] != weight.shape[0]:
            raise ValueError(
                f"the kernel {tuple(weight.shape)} needs {weight.shape[0]} input channels but the tensor "
                f"{tuple(input.shape)} has {input.shape[-dims - 1]}"
            )
        if input.ndim == dims + 1:  # without a batch dim, which the local operator needs
            batch = TileTensor.wrap(input.local.unsqueeze(0), input.spec)
            out = conv_transpose(batch, weight, bias, stride, padding, output_padding, groups, dilation)
            return TileTensor.wrap(out.local.squeeze(0), out.spec)
        numbers = hashable(stride), hashable(padding), hashable(output_padding)
        operator = _plan(tuple(weight.shape[2:]), *numbers, int(groups), hashable(dilation))
        sizes = tuple(w.out_size(n) for w, n in zip(operator.windows, input.spec.size))
        if 0 in sizes:
            raise ValueError(f"padding={padding} leaves no output of the image {tuple(input.shape)}; use less")
        local, weight_, bias_ = as_autocast(input.local, *all_for_tiles((weight, bias), input.spec.exchanger))
        assert local is not None
        if local is not input.local:
            input = TileTensor.wrap(local, input.spec)
        return windowed(input, operator.windows, operator, (weight_, bias_))


_transposed(torch.conv_transpose1d, 1)
_transposed(torch.conv_transpose2d, 2)
_transposed(torch.conv_transpose3d, 3)
