"""The energy frontier against lowtime, Perseus's solver: the same profile, schedule and cost model, one after the other
in this process. Prints processor times and their ratio (lowtime / ours; 20 or more is the aim), then the times of large
frontiers with every vertex, and the largest difference from the published ones.

    python benchmarks/frontier_speed.py [--microbatches 12] [--large 96,256] [--no-lowtime]
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from halocline.energy.frontier.frontier import Frontier, solve
from halocline.energy.profile.table import ProfileTable
from halocline.plan import Plan

ROOT = Path(__file__).parent.parent
PROFILE = ROOT / "examples" / "profiles" / "gpt3-175b-a100.csv"
PUBLISHED = ROOT / "tests" / "energy" / "frontier" / "data"
POWER, UNIT = 83.64, 0.001


class Realised(NamedTuple):
    """One of lowtime's iterations: what its model says, and what its frequencies come to on real clocks."""

    time: float
    energy: float
    real_time: float
    real_energy: float


def lowtime_frontier(
    profile: ProfileTable, stages: int, microbatches: int, power: float, unit: float
) -> Iterator[Realised]:
    """lowtime's frontier of 1F1B, with the paper's cost model: from the slowest iteration to the fastest."""
    import networkx
    from lowtime.cost_model import ExponentialModel
    from lowtime.operation import CandidateExecutionOptions, DummyOperation, ExecutionOption, OperationSpec
    from lowtime.perseus.instruction import Backward, Forward
    from lowtime.perseus.schedule import Synchronous1F1B
    from lowtime.solver import PhillipsDessouky

    specs = {}
    measured = {}
    for stage in range(stages):
        for kind, name in ((Forward, "forward"), (Backward, "backward")):
            rows = profile.of(stage, name)
            options = CandidateExecutionOptions(
                options=[
                    ExecutionOption(real_time=r.time, unit_time=unit, cost=r.energy, knob=r.frequency) for r in rows
                ]
            )
            for option in options.options:  # filtered by energy, fitted by the energy beyond waiting
                option.cost -= power * option.quant_time * unit
            specs[stage, kind] = OperationSpec(options=options, cost_model=ExponentialModel(options))
            measured[stage, kind] = {row.frequency: row for row in rows}

    graph = networkx.DiGraph()
    graph.add_node(0, op=DummyOperation())
    graph.add_node(1, op=DummyOperation())
    graph.graph["source_node"], graph.graph["sink_node"] = 0, 1
    numbers = {}
    for stage in range(stages):
        table = {kind: specs[stage, kind] for kind in (Forward, Backward)}
        before = 0
        for operation in Synchronous1F1B(stages, microbatches, stage, table):
            number = numbers[type(operation), stage, operation.micro_batch_id] = len(graph)
            graph.add_node(number, op=operation)
            graph.add_edge(before, number)
            before = number
        graph.add_edge(before, 1)
    for (kind, stage, microbatch), number in numbers.items():
        then = stage + 1 if kind is Forward else stage - 1
        if (kind, then, microbatch) in numbers:
            graph.add_edge(number, numbers[kind, then, microbatch])

    order = list(networkx.topological_sort(graph))
    for result in PhillipsDessouky(graph).run():
        ends: dict[int, float] = {}
        cost = 0.0
        for number in order:
            start = max((ends[first] for first in graph.predecessors(number)), default=0.0)
            operation = graph.nodes[number]["op"]
            if number > 1:
                row = measured[operation.stage_id, type(operation)][operation.assigned_knob]
                cost += row.energy - power * row.time
                start += row.time
            ends[number] = start
        whole = max(ends.values())
        modelled = result.quant_time * unit
        waiting = stages * power
        yield Realised(modelled, result.cost + waiting * modelled, whole, cost + waiting * whole)


def timed(microbatches: int, cost: str) -> tuple[float, Frontier]:
    profile = ProfileTable.read(PROFILE)
    plan = Plan.uniform(profile.stages, microbatches=microbatches)
    started = time.process_time()
    frontier = solve(plan, profile, POWER, cost, unit_time=UNIT)
    return time.process_time() - started, frontier


def largest_difference(frontier: Frontier, microbatches: int) -> float:
    """From the published frontier, as a share of its energy."""
    lines = (PUBLISHED / f"gpt3-175b-a100-frontier-{microbatches}.csv").read_text().split()[1:]
    pairs = [tuple(map(float, line.split(","))) for line in lines]
    return max(abs(frontier.energy_at(at) / energy - 1) for at, energy in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=int, default=12)
    parser.add_argument("--large", default="96,256")
    parser.add_argument("--no-lowtime", action="store_true")
    options = parser.parse_args()
    print(f"GPT-3 175B on A100, 8 stages, 1F1B; Python {platform.python_version()}, {platform.processor()}")
    ours, frontier = min((timed(options.microbatches, "exponential") for _ in range(3)), key=lambda pair: pair[0])
    print(f"8 x {options.microbatches}, the paper's cost model: ours {ours:.3f} s for {len(frontier.points)} vertices")
    if not options.no_lowtime:
        import lowtime.solver  # noqa: F401  so that loading it is not counted

        started = time.process_time()
        theirs = list(lowtime_frontier(ProfileTable.read(PROFILE), 8, options.microbatches, POWER, UNIT))
        taken = time.process_time() - started
        apart = max(abs(frontier.energy_at(row.time) / row.energy - 1) for row in theirs)
        print(f"  lowtime {taken:.2f} s for {len(theirs)} points, {taken / ours:.1f} x ours; apart by {apart:.1e}")
    for count in (12, 24, 48, 96):
        taken, frontier = timed(count, "exponential")
        apart = largest_difference(frontier, count)
        print(f"8 x {count}, the paper's cost model: {taken:.2f} s; from the published frontier {apart:.1e}")
    for count in map(int, options.large.split(",")):
        taken, frontier = timed(count, "hull")
        started = time.process_time()
        for point in frontier.points:
            frontier.plan_at(point.time)
        plans = time.process_time() - started
        print(f"8 x {count}, hull: {taken:.2f} s for {len(frontier.points)} vertices, {plans:.2f} s for a plan at each")


if __name__ == "__main__":
    main()
