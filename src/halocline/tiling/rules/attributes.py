"""What can be asked of a tile without reading its pixels, and changed: dtype, device, order in memory, hooks, parts.

What changes the order in memory, the dtype or the device returns the tensor itself where it is already as asked for:
what is written to the result is then seen in the tensor, and else it is not. A tile of one pixel lies as asked for more
often than the whole does. So where a rank holds less than two pixels of a dim, ranks agree in one small collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from halocline.tiling.rules.elementwise import named, part_of
from halocline.tiling.strides import is_alias_of, memory_order
from halocline.tiling.tensor import TileTensor, rule, rules, untiled
from halocline.tiling.view import data_of
from halocline.tiling.whole_order import likeness, unclear

_PROPERTIES = (
    "dtype device layout is_cuda is_cpu is_mps is_meta is_sparse is_sparse_csr is_quantized is_mkldnn is_nested "
    "is_xpu is_xla itemsize is_ipu is_maia is_vulkan is_mtia output_nr _version names _backward_hooks"
)
_METHODS = "is_floating_point is_complex is_signed element_size get_device is_inference is_pinned is_conj is_neg"


_NEW = "new_zeros new_ones new_full new_empty"
"""Plain tensors of the shape asked for, equal on every rank; only dtype and device are the tile's."""


@rules(named(f"{_METHODS} {_NEW}", Tensor, torch))
@rules(getattr(Tensor, name).__get__ for name in _PROPERTIES.split() if hasattr(Tensor, name))
def of_held(function: Callable[..., Any], input: TileTensor, *args: Any, **kwargs: Any) -> Any:
    return function(input.local, *args, **kwargs)


for _name in ("shape", "ndim", "requires_grad", "is_leaf", "grad_fn", "grad"):
    rule(getattr(Tensor, _name).__get__)(getattr(TileTensor, _name).fget)
rule(Tensor.size)(TileTensor.size)
rule(torch.numel, Tensor.numel, Tensor.nelement)(TileTensor.numel)
rule(Tensor.dim, Tensor.ndimension)(TileTensor.dim)
rule(Tensor.__len__)(TileTensor.__len__)


@rule(getattr(Tensor, "_base").__get__)  # noqa: B009
def base(input: TileTensor) -> None:
    if input.local._base is not None:
        raise untiled(getattr(Tensor, "_base").__get__, (input,), why="what a tile is a view of is no tile")  # noqa: B009


def data(input: TileTensor) -> TileTensor:
    """The rule of `Tensor.data`, which replacements.py registers."""
    return TileTensor.wrap(data_of(input.local), input.spec)


MARGINS = "the gradient of a tile with margins is not whole before they are returned"


@rule(Tensor.register_hook)
def register_hook(input: TileTensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
    """The hook sees the gradient as a tile, and returns one, or nothing."""
    if not input.spec.bare:
        raise untiled(Tensor.register_hook, (input, hook), why=f"{MARGINS}; set the hook outside of fused()")

    def on_tile(grad: Tensor) -> Tensor | None:
        new = hook(TileTensor.wrap(grad, input.spec))
        if new is None:
            return None
        return new.retiled(input.spec).local if isinstance(new, TileTensor) else part_of(new, input.spec)

    return input.local.register_hook(on_tile)


_SET_HOOKS = getattr(Tensor, "_backward_hooks").__set__  # noqa: B009


@rule(_SET_HOOKS)
def forget_hooks(input: TileTensor, hooks: Any) -> None:
    """Autograd itself asks this of a tensor whose `local` has been changed in place."""
    with torch._C.DisableTorchFunction():
        _SET_HOOKS(input, hooks)


@rules((getattr(Tensor, "real").__get__, getattr(Tensor, "imag").__get__))  # noqa: B009
def part(get: Callable[[Tensor], Tensor], input: TileTensor) -> TileTensor:
    """A view of the same numbers; of real ones, the tile itself."""
    part = get(input.local)
    return input if part is input.local else TileTensor.wrap(part, input.spec)


# --------------------------------------------------------------------------------------- order in memory, dtype, device


def _lies(input: TileTensor, memory_format: torch.memory_format, ask: Callable[[Tensor], bool]) -> bool:
    """Whether the whole tensor lies as asked for on one device. Every rank calls this."""
    local, spec, lacking = input.local, input.spec, unclear(input.spec)
    whole = likeness(input)
    if whole is not None:
        return ask(whole)
    lies = ask(local)
    if not any(lacking) or isinstance(local, FakeTensor):
        return lies
    # Those who can see it say whether it does, and the one who sees most in which order the dims lie.
    seen = lies or bool(lacking[spec.exchanger.rank])
    said = spec.exchanger.all_gather(torch.tensor([seen, *memory_order(local)], device=local.device)).tolist()
    order = said[lacking.index(min(lacking))][1:]
    asked = [*range(local.ndim)] if memory_format is torch.contiguous_format else [0, *range(2, local.ndim), 1]
    orders = [[d for d in dims if input.shape[d] > 1] for dims in (order, asked)]
    return all(seen for seen, *_ in said) and orders[0] == orders[1]


def _agreed(input: TileTensor, memory_format: torch.memory_format, give: Callable[[Tensor], Tensor]) -> TileTensor:
    """The tile of what is asked for: `input` itself, or a copy, as on one device and on the other ranks."""
    if _lies(input, memory_format, lambda part: is_alias_of(give(part), part)):
        return input
    out = give(input.local)
    return TileTensor.wrap(out.clone(memory_format=memory_format) if out is input.local else out, input.spec)


@rule(Tensor.is_contiguous)
def is_contiguous(input: TileTensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    """That of the whole: ranks that answered for what they hold would go different ways."""
    return _lies(input, memory_format, lambda part: part.is_contiguous(memory_format=memory_format))


@rule(Tensor.contiguous)
def contiguous(input: TileTensor, memory_format: torch.memory_format = torch.contiguous_format) -> TileTensor:
    return _agreed(input, memory_format, lambda part: part.contiguous(memory_format=memory_format))


@rules((Tensor.to, Tensor.type_as, Tensor.type))
def convert(function: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Another tensor among the arguments only gives its dtype and device: it may be of any shape."""
    args = tuple(a.local if isinstance(a, TileTensor) else a for a in args)
    kwargs = {k: a.local if isinstance(a, TileTensor) else a for k, a in kwargs.items()}
    if not isinstance(input, TileTensor):
        return function(input, *args, **kwargs)
    out = function(input.local, *args, **kwargs)
    if not isinstance(out, Tensor):  # type() without arguments
        return out
    asked = kwargs.get("memory_format")
    if asked not in (None, torch.preserve_format) and out.dtype == input.dtype and out.device == input.device:
        if not kwargs.get("copy"):
            return _agreed(input, asked, lambda part: part.to(memory_format=asked))
    return input if out is input.local else TileTensor.wrap(out, input.spec)
