"""Convolution and transposed convolution in 1, 2 and 3 dims: any kernel, stride, padding, dilation and groups.

`padding_mode` other than zeros reaches here as a pad before a convolution without padding. Transposed, each tile
convolves the pixels that write into its outputs and keeps those outputs only. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.boxes import Box, Reach, TransposedWindow, Window, is_empty, shape
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Grads, LocalOperator
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

Ints = tuple[int, ...]


def tuples(value: Any, dims: int) -> Ints:
    """One int per dim, from an int or a sequence of 1 or `dims` ints, as torch reads them."""
    if not isinstance(value, (list, tuple)):
        return (value,) * dims
    result = tuple(value)
    if len(result) not in (1, dims):
        raise ValueError(f"{result} must be one number, or {dims}, one per dim")
    return result * dims if len(result) == 1 else result


def hashable(value: Any) -> Any:
    """Numbers, numpy's and tensors' too, as ints and tuples of them, to look up what was planned for them."""
    if value is None or type(value) in (int, str):
        return value
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else int(value)


@dataclass(frozen=True)
class Convolution:
    """The local operator; its parameters are (weight, bias)."""

    stride: Ints
    dilation: Ints
    groups: int

    def forward(self, padded: Tensor, where: Geometry, params: Sequence[Tensor | None]) -> Tensor:
        weight, bias = params
        assert weight is not None
        zeros = (0,) * len(self.stride)
        return torch.convolution(
            padded, weight, bias, self.stride, where.padding, self.dilation, False, zeros, self.groups
        )

    def backward(
        self, grad: Tensor, padded: Tensor, where: Geometry, params: Sequence[Tensor | None], wanted: Sequence[bool]
    ) -> Grads:
        weight, bias = params
        assert weight is not None
        return torch.ops.aten.convolution_backward(
            grad,
            padded,
            weight,
            None if bias is None else bias.shape,
            self.stride,
            where.padding,
            self.dilation,
            False,
            (0,) * len(self.stride),
            self.groups,
            wanted,
        )

    def channels(self, params: Sequence[Tensor | None], given: int) -> int:
        weight = params[0]
        assert weight is not None
        return weight.shape[0]


def _check_channels(weight: Ints, groups: int, needed: int, given: int) -> None:
    if given != needed:
        raise ValueError(
            f"the kernel {weight} with groups={groups} needs {needed} input channels but the tensor has {given}"
        )


@lru_cache(maxsize=4096)
def _plan(
    channels: int, size: Ints, weight: Ints, bias: Ints | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[tuple[Window, ...], Convolution]:
    """The windows and the local operator of a kernel of shape `weight` on an image of `size`."""
    kernel, dims = weight[2:], len(size)
    _check_channels(weight, groups, weight[1] * groups, channels)
    if bias not in (None, weight[:1]):
        raise ValueError(f"the kernel {weight} needs a bias of {weight[0]} numbers, got {tuple(bias or ())}")
    strides, dilations = tuples(stride, dims), tuples(dilation, dims)
    if padding == "valid":
        pads = [(0, 0)] * dims
    elif padding == "same":
        if any(s != 1 for s in strides):
            raise ValueError(f"padding='same' is not supported for strided convolutions, stride {stride}; use a number")
        spans = [d * (k - 1) for k, d in zip(kernel, dilations)]
        pads = [(span // 2, span - span // 2) for span in spans]
    else:
        pads = [(p, p) for p in tuples(padding, dims)]
    windows = tuple(Window(k, s, lo, hi, d) for k, s, (lo, hi), d in zip(kernel, strides, pads, dilations))
    if any(w.out_size(n) < 1 for w, n in zip(windows, size)):
        raise ValueError(f"the kernel {weight} with padding {padding} is larger than the padded image of size {size}")
    return windows, Convolution(strides, dilations, groups)


# ---------------------------------------------------------------------------------------------------------- transposed


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


@lru_cache(maxsize=4096)
def _plan_transposed(
    channels: int,
    size: Ints,
    weight: Ints,
    bias: Ints | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> tuple[tuple[TransposedWindow, ...], TransposedConvolution]:
    _check_channels(weight, groups, weight[0], channels)
    dims = len(size)
    strides, pads, dilations = tuples(stride, dims), tuples(padding, dims), tuples(dilation, dims)
    extra = tuples(output_padding, dims)
    for o, s, d in zip(extra, strides, dilations):
        if not 0 <= o < max(s, d):
            raise ValueError(f"output_padding={extra} must be smaller than stride={strides} or dilation={dilations}")
    windows = tuple(TransposedWindow(*numbers) for numbers in zip(weight[2:], strides, pads, extra, dilations))
    if any(w.out_size(n) == 0 for w, n in zip(windows, size)):
        raise ValueError(f"padding={padding} leaves no output of an image of {size} pixels; use less")
    return windows, TransposedConvolution(windows, strides, dilations, groups)


# --------------------------------------------------------------------------------------------------------------- rules


def _in_parts(function: Callable[..., Any], input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Any:
    """A convolution of complex numbers, made of four of real ones."""
    (a, b), (c, d) = ((t.real.clone(), t.imag.clone()) for t in (input, weight))

    def convolve(x: Tensor, kernel: Tensor) -> Tensor:
        return function(x, kernel, None, *settings)

    out = torch.complex(convolve(a, c) - convolve(b, d), convolve(a, d) + convolve(b, c))
    return out if bias is None else out + bias.view(-1, *(1,) * (weight.ndim - 2))


def _as_autocast(input: Tensor, *params: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the dtype that autocast gives an operator of its lower-precision list (but for float64)."""
    device = input.device.type
    if not torch.is_autocast_enabled(device):
        return input, *params
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t is not None and t.dtype in _AUTOCAST else t for t in (input, *params))


_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


def _convolved(
    function: Callable[..., Tensor],
    plan: Callable[..., tuple[tuple[Reach, ...], LocalOperator]],
    input: TileTensor,
    weight: Tensor,
    bias: Tensor | None,
    *settings: Any,
) -> TileTensor:
    """What both kinds have in common; `plan` gives the windows and the local operator of kernel, image and settings."""
    if isinstance(weight, TileTensor) or isinstance(bias, TileTensor):
        raise untiled(function, (input, weight, bias), why="a kernel cannot be cut into tiles")
    if input.dtype.is_complex:
        return _in_parts(function, input, weight, bias, *settings)
    local, spec = input.local, input.spec
    if local.ndim == weight.ndim - 1:  # without a batch dim, which the local operator needs
        batch = TileTensor.wrap(local.unsqueeze(0), spec)
        out = _convolved(function, plan, batch, weight, bias, *settings)
        return TileTensor.wrap(out.local.squeeze(0), out.spec)
    windows, operator = plan(
        local.shape[1], spec.size, tuple(weight.shape), bias if bias is None else bias.shape, *map(hashable, settings)
    )
    cast, *params = _as_autocast(local, *all_for_tiles((weight, bias), spec.exchanger))
    if cast is not None and cast is not local:
        input = TileTensor.wrap(cast, spec)
    return windowed(input, windows, operator, params, linear=isinstance(operator, Convolution))


def _register(convolution: Callable[..., Tensor], transposed: Callable[..., Tensor], dims: int) -> None:
    @rule(convolution)
    @per_sample(convolution, dims)
    def conv(
        input: TileTensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> TileTensor:
        return _convolved(convolution, _plan, input, weight, bias, stride, padding, dilation, groups)

    @rule(transposed)
    @per_sample(transposed, dims)
    def conv_transpose(
        input: TileTensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> TileTensor:
        settings = stride, padding, output_padding, groups, dilation
        return _convolved(transposed, _plan_transposed, input, weight, bias, *settings)


_register(torch.conv1d, torch.conv_transpose1d, 1)
_register(torch.conv2d, torch.conv_transpose2d, 2)
_register(torch.conv3d, torch.conv_transpose3d, 3)
