"""From a graph of operations and a curve for each to the network that is solved: a moment where each operation begins
and one where it ends. Prices nothing itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from halocline.energy.curve import Curve
from halocline.energy.flow import Network
from halocline.energy.graph import Graph


def begin(operation: int) -> int:
    """The node at which an operation begins."""
    return 2 * operation


def end(operation: int) -> int:
    """The node at which an operation ends."""
    return 2 * operation + 1


def network_of(graph: Graph, curves: Sequence[Curve], latency: int) -> Network:
    """`curves` has one for each operation; messages take `latency` ticks."""
    count = len(graph.operations)
    source, sink = 2 * count, 2 * count + 1
    moments = [0] * (2 * count + 2)
    tails, heads, arcs = [], [], []
    at_once, message = Curve((0,), (0.0,), ()), Curve((latency,), (0.0,), ())
    has_first, has_then = set(), set()
    incoming: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for first, then, sent in graph.edges:
        tails.append(end(first))
        heads.append(begin(then))
        arcs.append(message if sent else at_once)
        has_first.add(then)
        has_then.add(first)
        incoming[then].append((first, latency if sent else 0))
    for number, curve in enumerate(curves):
        start = max((moments[end(first)] + wait for first, wait in incoming[number]), default=0)
        moments[begin(number)], moments[end(number)] = start, start + curve.times[-1]
        tails.append(begin(number))
        heads.append(end(number))
        arcs.append(curve)
        if number not in has_first:
            tails.append(source)
            heads.append(begin(number))
            arcs.append(at_once)
        if number not in has_then:
            tails.append(end(number))
            heads.append(sink)
            arcs.append(at_once)
    moments[sink] = max(moments)
    return Network(tails, heads, arcs, moments, source, sink)
