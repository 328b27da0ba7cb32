"""What the Perseus paper compares with: plans for a schedule and a profile. They are made after the descriptions of
their authors, and are no more than alike:

- EnvPipe-like (Choi et al., "EnvPipe", ATC '23; the Perseus artifact emulates it in the same way): one plan. The outer
  envelope (every instruction of the last stage, the first forward and the last backward of each stage) runs at the
  highest frequency; everything else begins at the one where it takes the least energy. As long as the critical path
  holds an instruction below its highest frequency, the slowest clocks on it go up by one step. Where the last stage is
  not the heaviest, EnvPipe has no rule to stop by; this one stops when nothing on the path can get faster. EnvPipe
  itself does all this while it trains, on measured times, and also changes the order of instructions.
- ZeusGlobal (SOSP '24): a plan for each frequency, at which everything runs. The paper scans power limits, under which
  a GPU finds its clocks by itself; a profile knows frequencies only.
- ZeusPerStage (SOSP '24): a plan for each frequency of the stage with the longest forward. Every other stage has one
  frequency for all of its instructions, at which its forward takes most nearly as long. The paper balances by power
  limits, as above.
"""

from __future__ import annotations

from halocline.energy.frontier.choices import Choice
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier
from halocline.energy.frontier.graph import Graph
from halocline.schedule.instruction import FORWARD, REDUCE


def baselines(frontier: Frontier) -> dict[str, list[FrequencyPlan]]:
    """The plans that each baseline has for the schedule and the profile of a frontier."""
    return {
        "EnvPipe-like": [envpipe_like(frontier)],
        "ZeusGlobal": zeus_global(frontier),
        "ZeusPerStage": zeus_per_stage(frontier),
    }


def envpipe_like(frontier: Frontier) -> FrequencyPlan:
    pricing = frontier.pricing
    envelope = outer_envelope(pricing.graph, len(frontier.schedule.plan.stages) - 1)
    at = [
        0 if number in envelope else min(range(len(choices)), key=lambda which: choices[which].energy)
        for number, choices in enumerate(pricing.choices)
    ]
    while True:
        chosen = [choices[which] for choices, which in zip(pricing.choices, at)]
        path = [number for number in pricing.rounder.critical(pricing.picked(chosen)) if at[number]]
        if not path:
            return frontier.plan_of(chosen)
        slowest = min(chosen[number].frequency for number in path)
        for number in path:
            at[number] -= chosen[number].frequency == slowest


def outer_envelope(graph: Graph, last: int) -> set[int]:
    """Every operation of the last stage, and the first forward and the last backward of each stage of each pipe."""
    firsts: dict[tuple[int, int], int] = {}
    lasts: dict[tuple[int, int], int] = {}
    envelope = set()
    for number, operation in enumerate(graph.operations):
        kind, pipe, stage = operation.instruction[:3]
        if stage == last:
            envelope.add(number)
        elif kind == FORWARD:
            firsts.setdefault((pipe, stage), number)
        elif kind != REDUCE:
            lasts[pipe, stage] = number
    return envelope.union(firsts.values(), lasts.values())


def zeus_global(frontier: Frontier) -> list[FrequencyPlan]:
    stages = range(len(frontier.schedule.plan.stages))
    clocks = _clocks(frontier)
    common = set.intersection(*clocks.values())
    if not common:
        raise ValueError("there is no frequency at which all stages were measured: profile them at the same ones")
    return [_at(frontier, dict.fromkeys(stages, frequency)) for frequency in sorted(common, reverse=True)]


def zeus_per_stage(frontier: Frontier) -> list[FrequencyPlan]:
    menu = frontier.pricing.menu
    forwards = {
        stage: {choice.frequency: choice.time for choice in menu.of(FORWARD, stage) if choice.frequency in clocks}
        for stage, clocks in _clocks(frontier).items()
    }
    heaviest = max(forwards.values(), key=lambda times: times[max(times)])
    plans = []
    for _, goal in sorted(heaviest.items(), reverse=True):
        nearest = {
            stage: min(times, key=lambda frequency: (abs(times[frequency] - goal), frequency))
            for stage, times in forwards.items()
        }
        plans.append(_at(frontier, nearest))
    return plans


def _clocks(frontier: Frontier) -> dict[int, set[int]]:
    """For each stage, the frequencies at which all of its instructions were measured."""
    found: dict[int, set[int]] = {}
    for operation, choices in zip(frontier.pricing.graph.operations, frontier.pricing.choices):
        clocks = {choice.frequency for choice in choices if choice.frequency}
        if clocks:
            stage = operation.instruction.stage
            found[stage] = found.get(stage, clocks) & clocks
    for stage, clocks in found.items():
        if not clocks:
            raise ValueError(f"stage {stage} has no frequency at which all was measured: profile it at the same ones")
    return found


def _at(frontier: Frontier, clocks: dict[int, int]) -> FrequencyPlan:
    """Every stage at one frequency."""
    pricing = frontier.pricing
    chosen: list[Choice] = []
    for operation, choices in zip(pricing.graph.operations, pricing.choices):
        clock = clocks[operation.instruction.stage]
        chosen.append(next((choice for choice in choices if choice.frequency == clock), choices[0]))
    return frontier.plan_of(chosen)
