"""Convolution in 1, 2 and 3 dims: any kernel, stride, padding, dilation and groups.

`padding_mode` other than zeros reaches here as a pad before a convolution without padding. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.boxes import Window
from halocline.tiling.geometry import Geometry
from halocline.tiling.lanes import per_sample
from halocline.tiling.local_operator import Grads
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.window import windowed

Ints = tuple[int, ...]


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


def tuples(value: Any, dims: int) -> Ints:
    """One int per dim, from an int or a sequence of 1 or `dims` ints, as torch reads them."""
    if not isinstance(value, (list, tuple)):
        return (value,) * dims
    result = tuple(value)
    if len(result) not in (1, dims):
        raise ValueError(f"{result} must be one number, or {dims}, one per dim")
    return result * dims if len(result) == 1 else result


@lru_cache(maxsize=4096)
def _plan(
    size: Ints, weight: Ints, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[tuple[Window, ...], Convolution]:
    """The windows and the local operator of a kernel of shape `weight` on an image of `size`."""
    kernel, dims = weight[2:], len(size)
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


def as_autocast(input: Tensor, *params: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in the dtype that autocast gives an operator of its lower-precision list (but for float64)."""
    device = input.device.type
    if not torch.is_autocast_enabled(device):
        return input, *params
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t is not None and t.dtype in _AUTOCAST else t for t in (input, *params))


_AUTOCAST = (torch.float32, torch.float16, torch.bfloat16)


def _convolution(function: Callable[..., Tensor], dims: int) -> None:
    @rule(function)
    @per_sample(function, dims)
    def convolution(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> TileTensor:
        check_image(function, input, dims)
        assert isinstance(input, TileTensor)
        if isinstance(weight, TileTensor) or isinstance(bias, TileTensor):
            raise untiled(function, (input, weight, bias), why="a kernel cannot be cut into tiles")
        if input.dtype.is_complex:
            return in_parts(function, input, weight, bias, stride, padding, dilation, groups)
        local, kernel = input.local, weight.shape
        if local.shape[-dims - 1] != kernel[1] * groups:
            raise ValueError(
                f"the kernel {tuple(kernel)} with groups={groups} needs {kernel[1] * groups} input "
                f"channels but the tensor {tuple(input.shape)} has {input.shape[-dims - 1]}"
            )
        if bias is not None and tuple(bias.shape) != (kernel[0],):
            raise ValueError(f"the kernel {tuple(kernel)} needs a bias of {kernel[0]} numbers, got {tuple(bias.shape)}")
        if local.ndim == dims + 1:  # without a batch dim, which the local operator needs
            batch = TileTensor.wrap(input.local.unsqueeze(0), input.spec)
            out = convolution(batch, weight, bias, stride, padding, dilation, groups)
            return TileTensor.wrap(out.local.squeeze(0), out.spec)
        windows, operator = _plan(
            input.spec.size, tuple(kernel), hashable(stride), hashable(padding), hashable(dilation), int(groups)
        )
        cast, weight_, bias_ = as_autocast(local, *all_for_tiles((weight, bias), input.spec.exchanger))
        if cast is not None and cast is not local:
            input = TileTensor.wrap(cast, input.spec)
        return windowed(input, windows, operator, (weight_, bias_), linear=True)


def in_parts(function: Callable[..., Any], input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Any:
    """A convolution of complex numbers, made of four of real ones."""
    (a, b), (c, d) = ((t.real.clone(), t.imag.clone()) for t in (input, weight))

    def convolve(x: Tensor, kernel: Tensor) -> Tensor:
        return function(x, kernel, None, *settings)

    out = torch.complex(convolve(a, c) - convolve(b, d), convolve(a, d) + convolve(b, c))
    return out if bias is None else out + bias.view(-1, *(1,) * (weight.ndim - 2))


def hashable(value: Any) -> Any:
    """Numbers, numpy's and tensors' too, as ints and tuples of them, to look up what was planned for them."""
    if value is None or type(value) in (int, str):
        return value
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else int(value)


def check_image(function: Any, input: Any, dims: int) -> None:
    """Refuse a tensor whose spatial dims are not the last `dims` ones."""
    if not isinstance(input, TileTensor):
        raise untiled(function, (input,), why="its input is not tiled but another argument is")
    if input.spec.dims != tuple(range(-dims, 0)):
        grid = (1,) * (dims - len(input.spec.dims)) + input.spec.grid
        raise untiled(
            function,
            (input,),
            why=f"it works on the last {dims} dims but the dims {input.spec.dims} are cut; tile with grid={grid}"
            if len(input.spec.dims) < dims
            else f"it works on the last {dims} dims but the dims {input.spec.dims} are cut",
        )


_convolution(torch.conv1d, 1)
_convolution(torch.conv2d, 2)
_convolution(torch.conv3d, 3)
