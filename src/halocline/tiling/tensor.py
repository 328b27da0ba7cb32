"""TileTensor: the part of a tensor that this rank holds, behaving as the whole tensor; and the registry of rules.

Knows no operator: each one is a rule, registered in `rules/` or by a user, and an operator without a rule is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.utils._mode_utils import no_dispatch

from halocline.tiling.boxes import Box, contains, slices
from halocline.tiling.calling import call, writes_to_out
from halocline.tiling.route import index, move
from halocline.tiling.spec import TileSpec
from halocline.tiling.strides import alias, is_alias_of
from halocline.tiling.view import GatheredView, on_plain
from halocline.tiling.whole_order import gathered, note_view, unclear

Rule = TypeVar("Rule", bound=Callable[..., Any])
_RULES: dict[Any, Callable[..., Any]] = {}
_compiling: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback  # set within torch.compile
_tracing: Callable[[], bool] = torch._C._is_tracing
_GRAD_FN: Callable[..., Any] = getattr(Tensor, "grad_fn").__get__  # noqa: B009


class UntiledOperation(NotImplementedError):
    """An operator that has no exact rule for tiles; its result would be that of one tile only."""


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register one of our own rules; own_rule.py says what a rule is."""

    def register(function: Rule) -> Rule:
        for key in functions:
            _RULES[key] = function
        return function

    return register


def rules(functions: Iterable[Any], *given: Any) -> Callable[[Rule], Rule]:
    """Register one of our own rules for each of several functions: it is called with the function and `given` first."""

    def register(run: Rule) -> Rule:
        for key in functions:
            _RULES[key] = partial(run, key, *given)
        return run

    return register


class TileTensor(Tensor):
    """This rank's part of a tensor cut into tiles.

    `shape` and everything else that describes it are those of the whole tensor. `local` is the part held here, as a
    plain tensor; `owned` is `local` without its margin; `full()` is the whole tensor, gathered; `spec` says what is
    where. It is an alias of `local`, on which all rules work: autograd needs to know nothing of tiles.
    """

    spec: TileSpec
    _local: Tensor
    seen_by: tuple[Any, TileTensor, tuple[Any, ...], dict[str, Any]] | None = None
    """Of a slice, and of views of it: function, tile and arguments that made it. See whole_order.likeness."""

    @staticmethod
    def wrap(local: Tensor, spec: TileSpec) -> TileTensor:
        """The tile whose held part is `local`."""
        if local.requires_grad and not torch.is_grad_enabled():  # a view, which would still have its gradient
            local = alias(local)
        tile = (_stand_in(local) if isinstance(local, FakeTensor) else local).as_subclass(TileTensor)
        tile._local = local
        tile.spec = spec
        return tile

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if GatheredView in types:  # as the plain tensors that rules know
            return on_plain(func, args, kwargs or {})
        found = _RULES.get(func)
        if _compiling() or _tracing():
            raise _unrecorded(func, args, kwargs)
        if found is None:
            raise untiled(func, args, kwargs)
        if not kwargs:
            result = found(*args)
        elif kwargs.get("out") is not None and writes_to_out(func):
            raise untiled(func, args, kwargs, why="out= has no rule; assign the result instead")
        else:
            result = call(func, found, args, kwargs)
        if args and result is not args[0] and isinstance(result, TileTensor) and isinstance(args[0], TileTensor):
            _look_after_view(func, args[0], args[1:], kwargs or {}, result)
        return result

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Called for what torch does to this alias without asking `__torch_function__`, as torch.tensor and vmap do."""
        if func is torch.ops.aten.detach.default:  # as autograd saves the result of a custom function
            return TileTensor.wrap(args[0]._local.detach(), args[0].spec)
        if func is torch.ops.aten.isnan.default and torch.is_anomaly_enabled():  # as it looks at a function's gradients
            return args[0]._local.isnan()
        if func is torch.ops.aten.add.Tensor and not torch.is_grad_enabled():  # as autograd sums a function's gradients
            if all(isinstance(a, TileTensor) and a.spec == args[0].spec for a in args):
                return TileTensor.wrap(args[0]._local + args[1]._local, args[0].spec)
        raise untiled(func, args, kwargs, why="it would take the part held here for the whole tensor")

    @property
    def local(self) -> Tensor:
        """The part held on this rank, as a plain tensor; part of the autograd graph."""
        return self._local

    @property
    def owned(self) -> Tensor:
        """The part owned by this rank, as a plain tensor."""
        return self.cropped(self.spec.without_margin()).local

    def full(self) -> Tensor:
        """The whole tensor on every rank, as a plain tensor; differentiable."""
        return gathered(self)

    def everywhere(self) -> Tensor:
        """The whole tensor on every rank, to be used together with what ranks hold of tiles: each rank's copy has a
        gradient of its own, and they add up."""
        spec = self.spec
        whole = tuple((0, n) for n in spec.size)
        return move(self.local, spec.own, (whole,) * spec.exchanger.size, spec.exchanger, spec.dims, spec.held)

    def cropped(self, spec: TileSpec) -> TileTensor:
        """The same tile holding only what `spec` holds, which is part of what is held now."""
        if spec is self.spec or spec.have == self.spec.have:
            return self
        assert contains(self.spec.held, spec.held), (self.spec.held, spec.held)
        return TileTensor.wrap(self.local[index(slices(spec.held, self.spec.held), spec.dims)], spec)

    def fetched(self, have: tuple[Box, ...]) -> TileTensor:
        """The same tile holding the boxes `have` (by rank, inside the image, around what it owns), in one exchange."""
        spec = self.spec
        if have == spec.have:
            return self
        if all(contains(held, box) for held, box in zip(spec.have, have)):
            return self.cropped(spec.with_have(have))
        local = move(self.local, spec.own, have, spec.exchanger, spec.dims, spec.held)
        return TileTensor.wrap(local, spec.with_have(have))

    def retiled(self, spec: TileSpec) -> TileTensor:
        """The same tensor held as `spec` (of the same size, group and dims) says, in one exchange."""
        if spec == self.spec:
            return self
        if spec.cuts == self.spec.cuts and spec.ranks == self.spec.ranks:
            return self.fetched(spec.have)
        local = move(self.local, self.spec.own, spec.have, spec.exchanger, spec.dims, self.spec.held)
        return TileTensor.wrap(local, spec)

    # What describes a tensor is that of the whole; defined here rather than by rules, as models ask for it often.

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return torch.Size(self.spec.whole_shape(self._local.shape))

    def size(self, dim: int | None = None) -> Any:  # type: ignore[override]
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        return self.shape.numel()

    nelement = numel

    def dim(self) -> int:
        return self._local.ndim

    ndimension = dim

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self._local.ndim

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._local.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._local.device

    def __len__(self) -> int:
        return self.shape[0]

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        spec = self.spec
        box = ", ".join(f"{a}:{b}" for a, b in spec.box)
        margin = "" if spec.bare else f", holds [{', '.join(f'{a}:{b}' for a, b in spec.held)}]"
        return (
            f"TileTensor(shape={tuple(self.shape)}, rank {spec.exchanger.rank} of {spec.exchanger.size} owns [{box}]"
            f"{margin}, dims={spec.dims}, dtype={self.dtype}, device={self.device})"
        )

    def __format__(self, form: str) -> str:
        if form:
            raise untiled(Tensor.__format__, (self, form), why="it would print the values of one tile")
        return repr(self)

    def set_(self, *args: Any, **kwargs: Any) -> Any:  # which torch does not ask `__torch_function__` about
        raise untiled(Tensor.set_, (self, *args), kwargs)

    # Autograd's view of the tensor is that of `local`, not of this alias of it.

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return self.local.requires_grad

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> TileTensor:
        self.local.requires_grad_(requires_grad)
        return self

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        node = own_node(self)
        return node if isinstance(node, BackwardCFunction) else self.local.grad_fn

    @property
    def is_leaf(self) -> bool:  # type: ignore[override]
        return self.local.is_leaf

    @property
    def grad(self) -> Tensor | None:
        grad = self.local.grad
        return None if grad is None else TileTensor.wrap(grad, self.spec)

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        if grad is not None and not (isinstance(grad, TileTensor) and grad.spec == self.spec):
            raise ValueError(f"the gradient of {self} cannot be {_describe(grad)}; give None, or a tile cut alike")
        self.local.grad = None if grad is None else grad.local

    def retain_grad(self) -> None:
        self.local.retain_grad()


def _look_after_view(func: Any, x: TileTensor, args: tuple[Any, ...], kwargs: dict[str, Any], view: TileTensor) -> None:
    """Have a view of a tile, if it is one, know how it lies in memory on one device."""
    blind = unclear(view.spec)[view.spec.exchanger.rank]
    if (x.seen_by is None and not blind) or not is_alias_of(view._local, x._local):
        return
    if x.seen_by is not None and view.seen_by is None:
        view.seen_by = (func, x, args, kwargs)
    if blind:
        note_view(view, func, x, args, kwargs)


def own_node(tensor: Tensor) -> Any:
    """The place in the graph of a tensor itself; None of a tile that was written since a function returned it, of which
    autograd knows no more than that it is a view."""
    with torch._C.DisableTorchFunction():
        try:
            return _GRAD_FN(tensor)
        except RuntimeError:
            return None


def _stand_in(fake: Tensor) -> Tensor:
    """A fake tensor (a shape without data) cannot be seen as a tile; rules only touch `local`, so anything will do."""
    with no_dispatch():
        return torch.empty(fake.shape, dtype=fake.dtype, device="meta")


def untiled(func: Any, args: Any = (), kwargs: Any = None, why: str = "") -> UntiledOperation:
    """The error that refuses an operator: its name, where the model calls it, the shapes, and the way out."""
    name = _name(func)
    shapes = ", ".join(_describe(a) for a in (*args, *(kwargs or {}).values()))
    where = _module_path()
    reason = why or "it has no rule for tiled tensors, and its result on one tile alone would be wrong"
    if isinstance(func, torch._C.ScriptMethod):
        reason = SCRIPTED
    return UntiledOperation(
        f"{name}({shapes}){f' in module {where}' if where else ''}: {reason}. Gather the tensor first (x.full()), or "
        f"register an exact rule: @halocline.tiling.rule({name})"
    )


SCRIPTED = "TorchScript does not know tiles; run what was given to torch.jit.script or torch.jit.trace"


def _unrecorded(func: Any, args: Any, kwargs: Any) -> UntiledOperation:
    compiler = torch._C._dynamo.eval_frame.set_eval_frame(None)  # or it compiles the words of the error
    try:
        why = "torch.jit.trace would record one tile's numbers; run the module untraced"
        if not _tracing():
            why = "torch.compile does not know tiles; run the module uncompiled"
        return untiled(func, args, kwargs, why=why)
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(compiler)


def _name(func: Any) -> str:
    if isinstance(func, torch._C.ScriptMethod):
        return f"{func.owner._type().qualified_name().removeprefix('__torch__.')}.{func.name}"
    if isinstance(func, torch.jit.ScriptFunction):
        return func.qualified_name.removeprefix("__torch__.")
    owner = getattr(func, "__self__", None)  # the getter of a property is bound to its descriptor
    if owner is not None and hasattr(owner, "__objclass__"):
        return f"torch.Tensor.{owner.__name__}.{func.__name__}"
    name = getattr(func, "__name__", repr(func))
    if getattr(func, "__objclass__", None) is not None or getattr(Tensor, name, None) is func:
        return f"torch.Tensor.{name}"
    for space in (F, torch.linalg, torch.fft, torch.special):  # by the name that users call it by
        short = name.removeprefix(space.__name__.rpartition(".")[2] + "_")
        if getattr(space, short, None) is func:
            return f"{space.__name__}.{short}"
    module = getattr(func, "__module__", None) or "torch"
    return name if module == "builtins" else f"{module.removesuffix('._C')}.{name}"


def _describe(value: Any) -> str:
    if isinstance(value, TileTensor):
        return f"tile of {list(value.shape)} holding {list(value.local.shape)}"
    if isinstance(value, Tensor):
        return f"tensor {list(value.shape)}"
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
        return f"[{', '.join(_describe(v) for v in value)}]"
    return repr(value)[:40]


def _module_path() -> str:
    """The path of the innermost module whose forward is running, found on the Python stack when an error is made."""
    running: list[nn.Module] = []
    frame = sys._getframe(1)
    while frame is not None:  # type: ignore[redundant-expr]
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and (not running or running[-1] is not owner):
            running.append(owner)
        frame = frame.f_back  # type: ignore[assignment]
    if not running:
        return ""
    inner, root = running[0], running[-1]
    path = next((name for name, module in root.named_modules() if module is inner), "")
    return f"{path or '(root)'} ({type(inner).__name__})"


def find_tiles(args: Iterable[Any]) -> list[TileTensor]:
    """The tiles among the arguments of a call, containers included, in order."""
    found: list[TileTensor] = []
    for value in args:
        if isinstance(value, TileTensor):
            found.append(value)
        elif isinstance(value, (list, tuple, dict)):
            found.extend(find_tiles(value.values() if isinstance(value, dict) else value))
    return found


_wrap = TileTensor.wrap


def _wrap_first(local: Tensor, spec: TileSpec) -> TileTensor:
    """`TileTensor.wrap` until a process has a tile: later ones, which are many, are not to ask whether they are it."""
    from halocline.tiling.replacements import install

    install()
    TileTensor.wrap = staticmethod(_wrap)  # type: ignore[method-assign]
    return _wrap(local, spec)


TileTensor.wrap = staticmethod(_wrap_first)  # type: ignore[method-assign]
