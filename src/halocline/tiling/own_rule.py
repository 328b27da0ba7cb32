"""A user's own rule: registered like any other, and held to the one thing that cannot be seen in its results.

A plain tensor has whole gradients (see plain.py). A rule that uses one together with what this rank holds of a tile
must say so with `for_tiles`; else its gradient would be one rank's. That shows in autograd's graph, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from halocline.tiling.tensor import Rule, TileTensor, find_tiles, untiled
from halocline.tiling.tensor import rule as register_rule

# The nodes of plain.py at which a graph, followed back, leaves what is plain for what ranks hold, and comes back.
_TO_HELD = ("_AllSumBackward", "_GatherBackward", "_OfAllLanesBackward")
_TO_PLAIN = ("_ForTilesBackward", "_CutBackward")


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Register how torch functions run on tiles: `@tiling.rule(torch.foo, torch.Tensor.foo)`.

    The decorated function is called with the arguments of the call, at least one of them a TileTensor (or a list
    holding one), and returns what the whole tensor's result is: a TileTensor, or a plain tensor equal on every rank.
    A plain tensor with a gradient that it uses on `local` first goes through `tiling.for_tiles(plain, spec.exchanger)`.
    """

    def register(function: Rule) -> Rule:
        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            given = _tensors((args, tuple(kwargs.values())))
            plain = [t for t in given if not isinstance(t, TileTensor) and t.requires_grad]
            spec = next((t.spec for t in find_tiles(given)), None)
            if plain and spec is not None and spec.exchanger.size > 1:
                name = getattr(function, "__name__", "rule")
                for tensor in _tensors((result,)):
                    held = isinstance(tensor, TileTensor)
                    if _reaches((tensor.local if held else tensor).grad_fn, plain, given, held):  # type: ignore[attr-defined]
                        why = (
                            f"the rule {name!r} uses a plain tensor on `local`: pass it through tiling.for_tiles first"
                        )
                        raise untiled(functions[0], args, kwargs, why=why)
            return result

        register_rule(*functions)(checked)
        return function

    return register


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _reaches(node: Any, plain: list[Tensor], given: list[Tensor], held: bool) -> bool:
    """Whether a graph, followed back from a node, comes to one of the plain tensors from what a rank holds."""
    ends = {id(t.grad_fn) for t in given if t.grad_fn is not None}
    wanted = {id(t.grad_fn) for t in plain if t.grad_fn is not None}
    seen: set[tuple[int, bool]] = set()
    ahead = [(node, held)]
    while ahead:
        node, held = ahead.pop()
        if node is None or (id(node), held) in seen:
            continue
        seen.add((id(node), held))
        variable = getattr(node, "variable", None)
        if held and (id(node) in wanted or any(variable is t for t in plain)):
            return True
        if id(node) in ends or variable is not None:
            continue
        name = type(node).__name__
        below = True if name in _TO_HELD else False if name in _TO_PLAIN else held
        ahead += [(before, below) for before, _ in node.next_functions]
    return False
