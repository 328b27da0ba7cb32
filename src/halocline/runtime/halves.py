"""A backward in two halves that together cost one: the gradients of a stage's inputs first, those of its parameters
later. Knows autograd's graph; nothing of stages.

The first half follows the paths to the inputs alone. It notes the gradients that arrive where paths to parameters
branch off, and the second half starts there instead of at the loss:

    loss -- norm -- relu -- conv -- input        the trunk: first half
              |               |
            weight          weight               branches: second half
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward, get_gradient_edge


class Branch(NamedTuple):
    """Where paths to parameters leave the trunk."""

    edges: list[GradientEdge]
    gradients: list[Tensor]
    parameters: list[Tensor]


def input_half(
    roots: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor], parameters: Iterable[Tensor]
) -> tuple[list[Tensor | None], list[Branch]]:
    """The gradients of `inputs`, which are leaves, and what `weight_half` needs."""
    leaves = [t for t in inputs if t.requires_grad]
    if not roots or not leaves:
        ends = [get_gradient_edge(root) for root in roots]
        given = [torch.ones_like(r) if g is None else g for r, g in zip(roots, gradients)]
        return [None] * len(inputs), [Branch(ends, given, list(parameters))] if roots else []
    reached = _branches([root.grad_fn for root in roots if root.grad_fn is not None], leaves, parameters)
    uses: dict[Tensor, int] = {}
    for found in reached.values():
        for parameter in found:
            uses[parameter] = uses.get(parameter, 0) + 1
    # One that several branches lead to could be reached along the trunk as well: its gradient is found at once.
    shared = [parameter for parameter, count in uses.items() if count > 1]
    own = {node: [p for p in found if uses[p] == 1] for node, found in reached.items()}
    # A node's `_input_metadata` has an entry for each tensor that it made in the forward.
    edges = [(node, GradientEdge(node, i)) for node in own if own[node] for i in range(len(node._input_metadata))]
    asked: list[Any] = [*leaves, *shared, *(edge for _, edge in edges)]
    noted = list(torch.autograd.grad(roots, asked, gradients, retain_graph=True, allow_unused=True))
    for_leaves = iter(noted[: len(leaves)])
    for parameter, gradient in zip(shared, noted[len(leaves) :]):
        if gradient is not None:
            # Through its own accumulation, so that its hooks are called and it is added up.
            torch.autograd.backward([get_gradient_edge(parameter)], [gradient], inputs=[parameter])
    branches = {node: Branch([], [], found) for node, found in own.items()}
    for (node, edge), gradient in zip(edges, noted[len(leaves) + len(shared) :]):
        if gradient is not None:
            branches[node].edges.append(edge)
            branches[node].gradients.append(gradient)
    return [next(for_leaves) if t.requires_grad else None for t in inputs], [b for b in branches.values() if b.edges]


def weight_half(branches: Iterable[Branch]) -> None:
    """Add the gradients of the parameters to their `.grad`."""
    for edges, gradients, parameters in branches:
        # Past the comparison of shapes in torch.autograd.backward: a model's own function is given tiles, and the shape
        # of a tile is that of the whole.
        given: tuple[Any, ...] = tuple(edges), tuple(gradients), False, False, tuple(parameters)
        _engine_run_backward(*given, allow_unreachable=True, accumulate_grad=True)


def _branches(roots: Sequence[Node], leaves: Sequence[Tensor], parameters: Iterable[Tensor]) -> dict[Node, set[Tensor]]:
    """Node of the trunk, or root beside it -> the parameters that paths beside the trunk lead to from there."""
    inputs = {get_gradient_edge(leaf).node for leaf in leaves}
    ends = {get_gradient_edge(p).node: p for p in parameters}
    trunk: set[Node] = set(inputs)
    beside: dict[Node, set[Tensor]] = {}
    found: dict[Node, set[Tensor]] = {}
    for node in _in_order(roots):
        followers = [follower for follower, _ in node.next_functions if follower is not None]
        reach = {ends[node]} if node in ends else set()
        for follower in followers:
            reach |= beside.get(follower, set())
        if node in trunk or any(follower in trunk for follower in followers):
            trunk.add(node)
            if reach:
                found[node] = reach
        else:
            beside[node] = reach
    return found | {root: beside[root] for root in roots if beside.get(root)}


def _in_order(roots: Sequence[Node]) -> list[Node]:
    """All nodes, each after those that its gradients go to."""
    done: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, left = stack.pop()
        if left:
            done.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(follower, False) for follower, _ in node.next_functions if follower is not None]
    return done
