"""From a graph of operations and a curve for each to the network that is solved: a moment where each operation begins
and one where it ends. Prices nothing itself.

Two moments are one where nothing is lost by it: an operation that only one other waits for may end when that one
begins, and one that waits for only one other may begin when that one ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from halocline.energy.frontier.curve import Curve
from halocline.energy.frontier.flow import Network
from halocline.energy.frontier.graph import Graph


class NodeMoments(NamedTuple):
    """The node at which each operation begins, and the one at which it ends."""

    begins: Sequence[int]
    ends: Sequence[int]


def network_of(graph: Graph, curves: Sequence[Curve], latency: int) -> tuple[Network, NodeMoments]:
    """`curves` has one for each operation; messages take `latency` ticks."""
    count = len(graph.operations)
    source, sink = 2 * count, 2 * count + 1
    waiting = Counter(edge.first for edge in graph.edges)
    awaited = Counter(edge.then for edge in graph.edges)
    begins = [2 * number if awaited[number] else source for number in range(count)]
    ends = [2 * number + 1 if waiting[number] else sink for number in range(count)]
    apart: list[tuple[int, int, int]] = []
    for first, then, message in graph.edges:
        wait = latency if message else 0
        if not wait and waiting[first] == 1:
            ends[first] = begins[then]
        elif not wait and awaited[then] == 1:
            begins[then] = ends[first]
        else:
            apart.append((first, then, wait))

    moments = [0] * (2 * count + 2)
    tails, heads, arcs = [], [], []
    incoming: list[list[tuple[int, int]]] = [[] for _ in graph.operations]
    for first, then, wait in apart:
        tails.append(ends[first])
        heads.append(begins[then])
        arcs.append(Curve((wait,), (0.0,), ()))
        incoming[then].append((ends[first], wait))
    for begin, end, curve, before in zip(begins, ends, curves, incoming):
        moments[begin] = max([moments[begin], *(moments[node] + wait for node, wait in before)])
        moments[end] = max(moments[end], moments[begin] + curve.times[-1])
        tails.append(begin)
        heads.append(end)
        arcs.append(curve)
    return Network(tails, heads, arcs, moments, source, sink), NodeMoments(begins, ends)
