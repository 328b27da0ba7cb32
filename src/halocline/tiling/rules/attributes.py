"""What can be asked of a tile without reading its pixels: dtype, device, layout and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.tensor import TileTensor, rule, untiled
from halocline.tiling.view import data_of

_PROPERTIES = (
    "dtype device layout is_cuda is_cpu is_mps is_meta is_sparse is_sparse_csr is_quantized is_mkldnn is_nested "
    "is_xpu is_xla itemsize is_ipu is_maia is_vulkan is_mtia output_nr _version names _backward_hooks"
)
_METHODS = "is_floating_point is_complex is_signed element_size get_device is_inference is_pinned"


def _pass_through(name: str) -> None:
    @rule(getattr(Tensor, name).__get__)
    def attribute(input: TileTensor) -> Any:
        return getattr(input.local, name)


def _ask(name: str) -> None:
    functions = [getattr(space, name) for space in (Tensor, torch) if hasattr(space, name)]

    @rule(*functions)
    def ask(input: TileTensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(input.local, name)(*args, **kwargs)


for _name in _PROPERTIES.split():
    if hasattr(getattr(Tensor, _name, None), "__get__"):
        _pass_through(_name)
for _name in _METHODS.split():
    if hasattr(Tensor, _name):
        _ask(_name)

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


@rule(Tensor.register_hook)
def register_hook(input: TileTensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
    """The hook sees the gradient as a tile, and returns one, or nothing."""
    if not input.spec.bare:
        why = (
            "the gradient of a tile with margins is not whole before they are returned; set the hook outside of fused()"
        )
        raise untiled(Tensor.register_hook, (input, hook), why=why)

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
