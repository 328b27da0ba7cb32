"""Functions that act on each pixel alone: unary, binary and more, with broadcasting, in place or not.

They act on all the pixels held, margins included. Tiles cut differently are brought to the first one's cuts; a plain
tensor of the whole image's size is sliced to the pixels held. Knows nothing of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from halocline.tiling.plain import for_tiles
from halocline.tiling.route import index
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import ask_of_expanded
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.whole_order import as_on_whole

_UNARY = """
abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh bitwise_not ceil clone cos
cosh deg2rad detach digamma erf erfc erfinv exp exp2 expm1 fix floor frac isfinite isinf isnan isneginf isposinf isreal
i0 lgamma log log10 log1p log2 logical_not logit mvlgamma nan_to_num neg negative positive rad2deg reciprocal round
rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc zero_ fill_
celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus
softshrink softsign tanhshrink threshold
float double half bfloat16 int long short bool byte char cpu cuda
zeros_like ones_like full_like empty_like real imag conj angle
conj_physical resolve_conj resolve_neg cfloat cdouble chalf
airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx expit gammaln i0e i1 i1e log_ndtr modified_bessel_i0
modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri psi scaled_modified_bessel_k0
scaled_modified_bessel_k1 spherical_bessel_j0
__neg__ __pos__ __abs__ __invert__
"""
_NARY = """
add addcdiv addcmul arctan2 atan2 bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift clamp
clamp_max clamp_min clip complex copysign div divide eq fmax fmin fmod float_power floor_divide ge greater greater_equal
gt heaviside hypot isclose le ldexp lerp less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor lt
masked_fill maximum minimum mul multiply ne nextafter not_equal polar pow remainder rsub sub subtract true_divide
xlogy copy_
chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w gammainc gammaincc
hermite_polynomial_h hermite_polynomial_he igamma igammac laguerre_polynomial_l legendre_polynomial_p
shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
shifted_chebyshev_polynomial_w xlog1py zeta
__add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
__div__ __rdiv__ __idiv__ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__
__and__ __rand__ __iand__ __or__ __ror__ __ior__ __xor__ __rxor__ __ixor__ __lshift__ __rshift__ __rlshift__
__rrshift__ __ilshift__ __irshift__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
"""


def unary(function: Callable[..., Any]) -> Callable[..., TileTensor]:
    """The rule of a function of one tensor (and of numbers)."""

    def on_pixels(input: TileTensor, *args: Any, **kwargs: Any) -> TileTensor:
        local = input.local
        out = function(local, *args, **kwargs)
        if out is local:
            return input
        return TileTensor.wrap(as_on_whole(out, input.spec, function, (input, *args), kwargs), input.spec)

    return on_pixels


def nary(function: Callable[..., Any], in_place: bool) -> Callable[..., Tensor]:
    """The rule of a function of several tensors that broadcast against each other."""

    def on_pixels(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        if in_place and not isinstance(first, TileTensor):  # what is plain stays whole
            return function(*map(_whole, args), **{name: _whole(value) for name, value in kwargs.items()})
        if len(args) > 1 and not kwargs and isinstance(first, TileTensor):
            others = args[1:]
            spec = first.spec
            for other in others:  # the common case: tiles alike and numbers
                if isinstance(other, Tensor) and not (isinstance(other, TileTensor) and other.spec is spec):
                    break
            else:
                local, others = first.local, tuple(o.local if isinstance(o, TileTensor) else o for o in others)
                if in_place:
                    ask_of_expanded(function, local, *others)
                out = function(local, *others)
                if out is NotImplemented:  # as of x == None, to which Python has an answer
                    return out
                return first if out is local else TileTensor.wrap(as_on_whole(out, spec, function, args), spec)
        names = list(kwargs)
        values, spec = align((*args, *kwargs.values()), function, in_place)
        positional = values[: len(args)]
        if in_place:
            ask_of_expanded(function, *positional)
        out = function(*positional, **dict(zip(names, values[len(args) :])))
        if not isinstance(out, Tensor):  # where(condition) lists pixels
            raise untiled(function, args, kwargs)
        if in_place:
            return first
        # A plain image was sliced, after which it lies in no memory format.
        sliced = any(
            isinstance(v, Tensor) and not isinstance(v, TileTensor) and v.ndim for v in (*args, *kwargs.values())
        )
        return TileTensor.wrap(as_on_whole(out, spec, function, args, kwargs, always=sliced), spec)

    return on_pixels


def _whole(value: Any) -> Any:
    return value.full() if isinstance(value, TileTensor) else value


def align(values: Iterable[Any], function: Any, in_place: bool = False) -> tuple[list[Any], TileSpec]:
    """Plain tensors for the tensors among `values` that all cover the same box, and the spec of their result.

    The result is cut as the first tile is, and holds what all tiles hold; in place, what the first one holds.
    """
    values = list(values)
    tiles = [v for v in values if isinstance(v, TileTensor)]
    # A tile that is one pixel in a dim in which others are more is broadcast: every rank needs that pixel.
    size = tuple(max(sizes) for sizes in zip(*(t.spec.size for t in tiles)))
    lead = next((t for t in tiles if t.spec.size == size), None)
    if lead is None or any(t.spec.dims != lead.spec.dims for t in tiles):
        raise untiled(function, values, why="the tiles differ in which dims are cut, or broadcast against each other")
    if in_place and values[0] is not lead and lead.spec != getattr(values[0], "spec", None):
        raise untiled(function, values, why="the tensor written in place is not a tile of the result's size")
    spec = lead.spec
    copies: dict[int, Tensor] = {}
    for i, value in enumerate(values):
        if isinstance(value, TileTensor):
            if value.spec.exchanger is not spec.exchanger:
                raise untiled(function, values, why="the tiles belong to different groups of ranks")
            if value.spec.size != size:
                if any(a not in (1, b) for a, b in zip(value.spec.size, size)):
                    raise ValueError(f"shapes {[tuple(t.shape) for t in tiles]} do not broadcast")
                values[i] = copies[i] = value.everywhere()
            elif value.spec.cuts != spec.cuts or value.spec.ranks != spec.ranks:
                values[i] = value.retiled(spec if in_place else spec.without_margin())
    for value in values:
        if isinstance(value, TileTensor) and not in_place:
            spec = spec.common(value.spec)
    for i, value in enumerate(values):
        if isinstance(value, TileTensor):
            values[i] = value.fetched(spec.have).local
        elif isinstance(value, Tensor):
            values[i] = _sliced(value, spec) if i in copies else part_of(value, spec)
    return values, spec


def part_of(plain: Tensor, spec: TileSpec) -> Tensor:
    """The pixels held under `spec` of a plain tensor that broadcasts against the whole tile tensor."""
    return _sliced(for_tiles(plain, spec.exchanger), spec)


def _sliced(plain: Tensor, spec: TileSpec) -> Tensor:
    parts, dims = [], []
    for dim, size, (start, stop) in zip(spec.dims, spec.size, spec.held):
        if plain.ndim < -dim or (plain.shape[dim] == 1 and size != 1):  # broadcasts
            continue
        if plain.shape[dim] != size:
            raise ValueError(
                f"a tensor of shape {tuple(plain.shape)} does not broadcast against a tiled one of size {spec.size} "
                f"in dims {spec.dims}; give a tensor of the whole size, or 1 there"
            )
        parts.append(slice(start, stop))
        dims.append(dim)
    return plain[index(parts, tuple(dims))] if dims else plain


def named(names: str, *spaces: Any) -> list[Callable[..., Any]]:
    """The functions and methods of these names."""
    found = [
        getattr(space, name, None) for name in names.split() for space in spaces or (torch, F, Tensor, torch.special)
    ]
    return [f for f in dict.fromkeys(found) if callable(f) and not isinstance(f, torch.dtype)]


def works_in_place(function: Callable[..., Any]) -> bool:
    name = function.__name__
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


for _name in _UNARY.split():
    for _function in named(f"{_name} {_name}_"):
        rule(_function)(unary(_function))
for _name in _NARY.split():
    for _function in named(f"{_name} {_name}_"):
        rule(_function)(nary(_function, works_in_place(_function)))


for _function in (Tensor.polygamma, Tensor.polygamma_):
    rule(_function)(unary(_function))
rule(torch.polygamma, torch.special.polygamma)(lambda n, input: unary(Tensor.polygamma)(input, n))


@rule(torch.frexp, Tensor.frexp)
def frexp(input: TileTensor) -> Any:
    mantissa, exponent = torch.frexp(input.local)
    both = TileTensor.wrap(mantissa, input.spec), TileTensor.wrap(exponent, input.spec)
    return torch.return_types.frexp(both)  # type: ignore[attr-defined]


@rule(torch.isin)
def isin(elements: Any, test_elements: Any, **kwargs: Any) -> TileTensor:
    """Whether each pixel's value is one of a plain tensor's."""
    if not isinstance(elements, TileTensor) or isinstance(test_elements, TileTensor):
        raise untiled(torch.isin, (elements, test_elements), kwargs, why="the values to look for must be plain")
    return TileTensor.wrap(torch.isin(elements.local, test_elements, **kwargs), elements.spec)


@rule(torch.prelu, F.prelu, Tensor.prelu)
def prelu(input: Tensor, weight: Tensor) -> TileTensor:
    """Its weight has one value, or one per channel, dim 1, and does not broadcast as other operands do."""
    cut = isinstance(input, TileTensor) and weight.numel() > 1 and 1 - input.ndim in input.spec.dims
    if not isinstance(input, TileTensor) or isinstance(weight, TileTensor) or cut:
        raise untiled(F.prelu, (input, weight), why="its weight must be plain and its channels, dim 1, uncut")
    out = F.prelu(input.local, for_tiles(weight, input.spec.exchanger))
    return TileTensor.wrap(as_on_whole(out, input.spec, F.prelu, (input, weight)), input.spec)


@rule(F.glu)
def glu(input: TileTensor, dim: int = -1) -> Tensor:
    """One half of a dim gates the other; halves of pixels lie on other tiles than the pixels they gate."""
    first, second = torch.chunk(input, 2, dim)
    return first * torch.sigmoid(second)
