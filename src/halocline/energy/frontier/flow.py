"""The frontier's solver: all vertices of the least cost over the iteration's time, by successive shortest paths. Knows
nodes, arcs and curves, and nothing of instructions. `network_of` makes its network of a graph of operations.

Running operations for the least cost within a time T is a linear program in the moments when each begins and ends. Its
dual is a flow from the first moment to the last: an arc carries the watts that shortening its operation would cost, and
is as long as its curve says for that flow. At T* every operation takes its cheapest time and nothing flows. Then, again
and again, the path with the least slack is found. Taking up that slack shortens T, which makes one vertex; then the
path is filled until an operation on it has to get shorter, or another may get longer again. The flow is the slope of
the cost, and the moments (the potentials) are an optimal solution at every vertex. When a path can take any flow, T is
the least.

Paths are searched from the last moment backwards: there the part of the graph that a search visits is smaller.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from halocline.energy.frontier.curve import Curve
from halocline.energy.frontier.graph import Graph

_ANY = 1 << 200
"""Room without limit."""


@dataclass(frozen=True)
class Network:
    """Moments, and arcs that keep them apart: each head comes at least its curve's fastest time after its tail."""

    tails: Sequence[int]
    heads: Sequence[int]
    curves: Sequence[Curve]
    moments: Sequence[int]
    """Ticks of each node when every arc takes its cheapest time; the first and the last in time are source and sink."""
    source: int
    sink: int
    begins: Sequence[int]
    """The node at which each operation begins ..."""
    ends: Sequence[int]
    """... and the one at which it ends."""


def network_of(graph: Graph, curves: Sequence[Curve], latency: int) -> Network:
    """A moment where each operation begins and one where it ends. `curves` has one for each operation; messages take
    `latency` ticks.

    Two moments are one where nothing is lost by it: an operation that only one other waits for may end when that one
    begins, and one that waits for only one other may begin when that one ends."""
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
    return Network(tails, heads, arcs, moments, source, sink, begins, ends)


class Vertex(NamedTuple):
    """A corner of the frontier."""

    time: int
    """Ticks."""
    rise: int
    """What it costs beyond the cheapest, in nanowatts x ticks."""
    moments: array[int]
    """The ticks of every node in an optimal solution."""


class PathSearch:
    """The state of one solution: moments, and of each arc its flow and its pieces next to that flow."""

    def __init__(self, network: Network) -> None:
        curves = network.curves
        self.tails, self.heads = network.tails, network.heads
        self.source, self.sink = network.source, network.sink
        self.moments = list(network.moments)
        self.into: list[list[tuple[int, int]]] = [[] for _ in self.moments]
        self.out: list[list[tuple[int, int]]] = [[] for _ in self.moments]
        for arc, (tail, head) in enumerate(zip(network.tails, network.heads)):
            self.into[head].append((arc, tail))
            self.out[tail].append((arc, head))
        self.times = [curve.times for curve in curves]
        self.limits = [(*curve.slopes, 0) for curve in curves]
        """The arc has length times[k] while its flow is between limits[k] and limits[k - 1]."""
        self.flow = [0] * len(curves)
        self.piece = [len(curve.slopes) for curve in curves]
        self.length = [curve.times[-1] for curve in curves]
        """How long the arc is for more flow ..."""
        self.room = [curve.slopes[-1] if curve.slopes else _ANY for curve in curves]
        """... and how much more, until it gets shorter."""
        self.back_length: list[int | None] = [None] * len(curves)
        """How long it is for less flow; None where nothing flows ..."""
        self.back_room = [0] * len(curves)
        """... and how much less, until it gets longer."""

    def vertices(self) -> Iterator[Vertex]:
        """The frontier's corners, from the cheapest to the fastest."""
        flow = rise = 0
        span = self.moments[self.sink] - self.moments[self.source]
        yield Vertex(span, rise, array("q", self.moments))
        while True:
            slack, path = self._shortest_path()
            if slack:
                span -= slack
                rise += flow * slack
                yield Vertex(span, rise, array("q", self.moments))
            amount = min(self.room[arc] if onward else self.back_room[arc] for arc, onward in path)
            if amount >= _ANY:
                return
            for arc, onward in path:
                self._set_flow(arc, self.flow[arc] + (amount if onward else -amount))
            flow += amount

    def _shortest_path(self) -> tuple[int, list[tuple[int, bool]]]:
        """The path from source to sink with the least slack, which is taken out of the moments, as (arc, along it or
        against it). Dijkstra's search; what is no farther than the node at hand goes on a stack and not on the heap."""
        moments, into, out = self.moments, self.into, self.out
        length, back_length = self.length, self.back_length
        source, sink = self.source, self.sink
        distance = [_ANY] * len(moments)
        follow: list[tuple[int, bool]] = [(-1, True)] * len(moments)
        settled = [False] * len(moments)
        reached: list[tuple[int, int]] = []
        stack: list[int] = [sink]
        heap: list[tuple[int, int]] = []
        near = distance[sink] = 0
        while True:
            if stack:
                node = stack.pop()
            else:
                near, node = heappop(heap)
            if settled[node]:
                continue
            settled[node] = True
            if node == source:
                break
            reached.append((node, near))
            base = near + moments[node]
            for arc, other in out[node]:
                if not settled[other]:
                    less = back_length[arc]
                    if less is not None:
                        far = base + less - moments[other]
                        if far < distance[other]:
                            distance[other] = far
                            follow[other] = arc, False
                            if far == near:
                                stack.append(other)
                            else:
                                heappush(heap, (far, other))
            for arc, other in into[node]:
                if not settled[other]:
                    far = base - moments[other] - length[arc]
                    if far < distance[other]:
                        distance[other] = far
                        follow[other] = arc, True
                        if far == near:
                            stack.append(other)
                        else:
                            heappush(heap, (far, other))
        if near:
            for node, far in reached:
                moments[node] -= near - far
        path = []
        node = source
        while node != sink:
            arc, onward = follow[node]
            path.append((arc, onward))
            node = self.heads[arc] if onward else self.tails[arc]
        return near, path

    def _set_flow(self, arc: int, flow: int) -> None:
        times, limits, piece = self.times[arc], self.limits[arc], self.piece[arc]
        self.flow[arc] = flow
        if len(times) == 1:  # most arcs: nothing about them changes
            self.back_length[arc], self.back_room[arc] = times[0] if flow else None, flow
            return
        while piece and flow >= limits[piece - 1]:
            piece -= 1
        while flow < limits[piece]:
            piece += 1
        self.piece[arc] = piece
        self.length[arc] = times[piece]
        self.room[arc] = limits[piece - 1] - flow if piece else _ANY
        if not flow:
            self.back_length[arc], self.back_room[arc] = None, 0
            return
        while flow <= limits[piece]:
            piece += 1
        self.back_length[arc], self.back_room[arc] = times[piece], flow - limits[piece]
