"""The graph is the schedule: its longest path is the simulator's makespan, whatever the durations."""

from __future__ import annotations

import random

import pytest

from halocline.energy.frontier.graph import Graph, graph_of
from halocline.plan import SCHEDULES, Plan, Stage
from halocline.schedule import generate
from halocline.schedule.instruction import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, RECOMPUTE, REDUCE
from halocline.simulation import Costs, simulate
from harness.plans import SHAPES, plan_of


def longest_path(graph: Graph, plan: Plan, costs: Costs) -> float:
    rows = costs.per_stage(plan)
    ends: list[float] = []
    waits: list[list[tuple[int, float]]] = [[] for _ in graph.operations]
    for first, then, message in graph.edges:
        assert first < then, "operations stand in an order in which they can run"
        waits[then].append((first, costs.latency if message else 0.0))
    for number, (instruction, _, rebuilds, _) in enumerate(graph.operations):
        row = rows[instruction.stage]
        time = {
            FORWARD: row.forward,
            RECOMPUTE: row.recompute,
            BACKWARD: row.backward,
            BACKWARD_INPUT: row.backward - row.weight,
            BACKWARD_WEIGHT: row.weight,
            REDUCE: row.reduce,
        }[instruction.kind]
        start = max((ends[first] + wait for first, wait in waits[number]), default=0.0)
        ends.append(start + time + (row.recompute if rebuilds else 0.0))
    return max(ends)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_longest_path_is_the_simulators_makespan(schedule: str) -> None:
    chance = random.Random(schedule)
    tried = 0
    for shape in SHAPES:
        for stages, microbatches in ((1, 2), (2, 2), (2, 8), (4, 4), (4, 8)):
            for replicas in (1, 2):
                plan = plan_of(schedule, shape, stages, microbatches, replicas=replicas)
                if plan is None:
                    continue
                count = len(plan.stages)
                costs = Costs(
                    forward=[chance.uniform(1, 3) for _ in range(count)],
                    backward=[chance.uniform(3, 6) for _ in range(count)],
                    weight=[chance.uniform(1, 2) for _ in range(count)],
                    recompute=[chance.uniform(1, 2) for _ in range(count)],
                    reduce=[chance.uniform(0, 4) for _ in range(count)],
                    latency=chance.choice([0.0, 0.7]),
                )
                made = generate(plan)
                assert longest_path(graph_of(made), plan, costs) == pytest.approx(simulate(made, costs).makespan)
                tried += 1
    assert tried >= 8


def test_tiles_of_a_stage_are_one_operation() -> None:
    plan = Plan((Stage((0, 1), tiles=(2, 2)), Stage((1, 2))), "1f1b", 3)
    graph = graph_of(generate(plan))
    tiled = [operation for operation in graph.operations if operation.instruction.stage == 0]
    assert {operation.ranks for operation in tiled} == {(0, 1, 2, 3)}
    assert len([o for o in graph.operations if o.instruction.kind != REDUCE]) == 2 * 2 * 3
    assert graph.rows[0] == graph.rows[3]


def test_a_mirrored_rank_runs_operations_of_two_stages() -> None:
    graph = graph_of(generate(Plan.uniform(2, schedule="gems", pipes=2, microbatches=2)))
    first = [graph.operations[number].instruction for number in graph.rows[0]]
    assert [(i.kind, i.stage) for i in first if i.kind != REDUCE] == [
        (FORWARD, 0),
        (BACKWARD, 0),
        (FORWARD, 1),
        (BACKWARD, 1),
    ]


def test_a_reduction_with_computation_beside_it_is_told_from_one_alone() -> None:
    alone = graph_of(generate(Plan.uniform(2, microbatches=2, replicas=2)))
    assert [o.alone for o in alone.operations if o.instruction.kind == REDUCE] == [True, True]
    mirrored = graph_of(generate(Plan.uniform(2, schedule="chimera", pipes=2, microbatches=4)))
    reductions = [o for o in mirrored.operations if o.instruction.kind == REDUCE]
    assert all(o.ranks == (0, 1) for o in reductions)
    chunked = generate(Plan.uniform(4, schedule="interleaved", chunks=2, microbatches=2, replicas=2))
    flags = [o.alone for o in graph_of(chunked).operations if o.instruction.kind == REDUCE]
    assert sorted(flags) == [False, False, True, True]
