"""A model's own autograd.Function on tiles: its forward and its backward see tiles, which behave as whole tensors.

So do those that torch itself is made of: the hooks of modules, and reentrant checkpoints. Autograd knows the parts held
only. So what a function returned is opened, which gives its backward tiles; what its backward returns is closed again.
"""

from __future__ import annotations

from functools import cache, partial, wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, _SingleLevelFunction
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from halocline.tiling.plain import owned_among_zeros
from halocline.tiling.rules.elementwise import part_of
from halocline.tiling.spec import TileSpec
from halocline.tiling.statistics import owned_index
from halocline.tiling.tensor import TileTensor, find_tiles, own_node, untiled
from halocline.tiling.view import GatheredView, on_plain


def apply(cls: Any, *args: Any) -> Any:
    """Function.apply, for tiles too; replacements.py puts it there."""
    if any(isinstance(a, GatheredView) for a in args):
        return on_plain(cls.apply, args, {})
    if not find_tiles(args):
        return super(_SingleLevelFunction, cls).apply(*args)  # type: ignore[misc]
    if issubclass(cls, CheckpointFunction):
        _check_checkpoint(args)
    seen = tuple(_seen(a) if isinstance(a, TileTensor) else a for a in args)
    out = super(_SingleLevelFunction, _on_tiles(cls)).apply(*seen)  # type: ignore[misc]
    returned = list(out) if isinstance(out, tuple) else [out]
    found = [(i, t, own_node(t)) for i, t in enumerate(returned) if isinstance(t, Tensor)]
    moving = [(i, t, node) for i, t, node in found if isinstance(node, BackwardCFunction)]
    if not moving:
        return out
    node = moving[0][2]
    node.register_prehook(partial(_close_last, ref(node), []))
    if not any(isinstance(t, TileTensor) for _, t, _ in moving):
        return out
    parts = super(_SingleLevelFunction, _Opened).apply(*(t for _, t, _ in moving))  # type: ignore[misc]
    for (i, t, _), part in zip(moving, parts):
        given: Any = next((a for a, s in zip(args, seen) if s is t), t)  # if written in place
        returned[i] = _filled(given, part) if isinstance(t, TileTensor) else part
    return tuple(returned) if isinstance(out, tuple) else returned[0]


# To torch.compile it is as little a frame of Python as what stands there in torch.
_frames = torch._C._dynamo.eval_frame
_frames.set_code_exec_strategy(
    apply.__code__, _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)
)


def _seen(tile: TileTensor) -> TileTensor:
    """The tile as autograd is to see it, whose place in the graph is that of the part held. One that was made a leaf
    when it was there has none, and what a function returned has the function's own, before it was opened."""
    node = own_node(tile)
    stale = tile.local.requires_grad and (node is None or isinstance(node, BackwardCFunction))
    return TileTensor.wrap(tile.local, tile.spec) if stale else tile


# ------------------------------------------------------------------------------------------- what the function returned


class _Opened(torch.autograd.Function):
    """The owned parts of all the tiles that a function returned, and its plain results, so that its backward is given
    the gradients of all if one has any: autograd itself would make zeros of the parts' shapes."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.specs = [t.spec if isinstance(t, TileTensor) else None for t in tensors]
        parts = (t._local[owned_index(t.spec)] if isinstance(t, TileTensor) else t for t in tensors)
        return tuple(p.detach() for p in parts)  # no views: they may be written

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            grad if spec is None else TileTensor.wrap(owned_among_zeros(grad, spec), spec)
            for grad, spec in zip(grads, ctx.specs)
        )


def _filled(tile: TileTensor, owned: Tensor) -> TileTensor:
    """The same tile, now with its place in the graph; its margin, if any, is fetched anew."""
    tile._local = TileTensor.wrap(owned, tile.spec.without_margin()).fetched(tile.spec.have).local
    return tile


# -------------------------------------------------------------------------------------------- what its backward returns


@cache
def _on_tiles(cls: Any) -> Any:
    """The same function, whose backward is given tiles and returns tiles for tiles, plain tensors for plain ones."""
    forward, setup = cls.forward, cls.setup_context
    back = "backward" if cls.vjp is torch.autograd.Function.vjp else "vjp"
    own = getattr(cls, back)

    def remember(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.tiles = [(a.spec, tuple(a.shape)) if isinstance(a, TileTensor) else None for a in inputs]
        returned = output if isinstance(output, tuple) else (output,)
        ctx.returned = [t.spec if isinstance(t, TileTensor) else None for t in returned]

    @wraps(forward)
    def run(ctx: Any, *args: Any) -> Any:
        out = forward(ctx, *args)
        remember(ctx, args, out)
        return out

    @wraps(setup)
    def set_up(ctx: Any, inputs: Any, output: Any) -> Any:
        remember(ctx, inputs, output)
        return setup(ctx, inputs, output)

    @wraps(own)
    def backward(ctx: Any, *grads: Any) -> Any:
        # Of a tile written in place autograd itself asks for the gradient, by the part held.
        inside = any(type(g) is Tensor and s is not None for g, s in zip(grads, ctx.returned))
        results = own(ctx, *map(_as_tile, grads, ctx.returned))
        listed = results if isinstance(results, tuple) else (results,)
        closed = tuple(map(partial(_like, cls), listed, ctx.tiles))
        return (*(_close(closed, None) if inside else closed), *listed[len(ctx.tiles) :])

    apart = setup is not torch.autograd.Function.setup_context
    halves: dict[str, Any] = {"setup_context": set_up} if apart else {"forward": run}
    members = {name: staticmethod(function) for name, function in {**halves, back: backward}.items()}
    told = type(cls.__name__, (cls,), {**members, "__module__": cls.__module__})
    told._backward_cls.saved_tensors = property(_saved)  # type: ignore[attr-defined]
    return told


_SAVED = getattr(torch._C._FunctionBase, "saved_tensors").__get__  # noqa: B009


def _saved(ctx: Any) -> tuple[Any, ...]:
    """What a function saved, each tile with the place in the graph that it had: of a result of its own, and of what
    went through hooks for saved tensors, autograd gives it back to the tile and not to the part held."""
    return tuple(_placed(t) if isinstance(t, TileTensor) and not t.local.requires_grad else t for t in _SAVED(ctx))


def _placed(tile: TileTensor) -> TileTensor:
    node = own_node(tile)
    if node is None:
        return tile
    if not torch.is_grad_enabled():  # nobody asks where it stands
        tile._local = tile.local.detach().requires_grad_()
        return tile
    if isinstance(node, BackwardCFunction):
        return _filled(tile, super(_SingleLevelFunction, _Opened).apply(tile)[0])  # type: ignore[misc]
    why = "a gradient of a gradient needs what hooks for saved tensors took; take it outside of them and save_on_cpu()"
    raise untiled(torch.autograd.grad, (tile,), why=why)


def _as_tile(grad: Any, spec: TileSpec | None) -> Any:
    if spec is None or type(grad) is not Tensor:
        return grad
    if not spec.bare:  # what this rank found for pixels of others goes to these
        bare = spec.without_margin()
        with torch.enable_grad():
            owned = torch.zeros_like(grad[owned_index(spec)]).requires_grad_()
            held = TileTensor.wrap(owned, bare).fetched(spec.have).local
        grad, spec = torch.autograd.grad(held, owned, grad)[0], bare
    return TileTensor.wrap(grad, spec)


def _like(cls: Any, result: Any, given: tuple[TileSpec, tuple[int, ...]] | None) -> Any:
    """What a backward returned for one argument, of the kind that the argument was."""
    if given is None or result is None:
        return result.full() if isinstance(result, TileTensor) else result
    spec, shape = given
    if tuple(result.shape) != shape or (isinstance(result, TileTensor) and result.spec.dims != spec.dims):
        raise untiled(cls.backward, (result,), why=f"a tile of {list(shape)} needs a gradient of that shape")
    return result.retiled(spec) if isinstance(result, TileTensor) else TileTensor.wrap(part_of(result, spec), spec)


def _close_last(node: Any, last: list[Any], given: Any) -> None:
    """Before a backward: let `_close` be called after all hooks that were set by now."""
    while last:
        last.pop().remove()
    last.append(node().register_hook(_close))


def _close(results: tuple[Tensor | None, ...], given: Any) -> tuple[Tensor | None, ...]:
    """A tile's gradient, as autograd is to see it: that of the pixels held, of which only the owned ones have any."""
    return tuple(owned_among_zeros(r.owned, r.spec) if isinstance(r, TileTensor) else r for r in results)


# ------------------------------------------------------------------------------------------------ reentrant checkpoints


def _check_checkpoint(args: tuple[Any, ...]) -> None:
    """Its backward reads the gradients of its inputs off the leaves that it made of them."""
    tensors = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    if not all(isinstance(t, TileTensor) and t.spec.bare for t in tensors):
        why = (
            "a reentrant one takes tiles without margins and no plain tensors with gradients; give use_reentrant=False"
        )
        raise untiled(checkpoint, tensors, why=why)
