"""`halocline plan show`: the processes a plan needs and what each of them is, from flags or from a plan.toml."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from halocline.cli.drawing import table_of
from halocline.cli.dry_run import teams
from halocline.plan.layout import ACTIVATION, GRADIENT, Layout, Role
from halocline.plan.plan import Plan
from halocline.plan.settings import PlanSettings
from halocline.tiling.boxes import Box, balanced_cuts


@dataclass(frozen=True)
class Options:
    """Who does what: the ranks of a plan, their stages, layers and tiles, who sends to whom, and who sums gradients.
    Without --stages there are 2 stages, or 1 with tiles, or 4 of a named MODEL."""

    plan: PlanSettings = field(default_factory=PlanSettings)
    model: str | None = None
    """The first word of a Merak command line, whose next two are MICROBATCH_SIZE and MICROBATCHES."""
    out: str | None = None
    """Write the plan to this file as TOML."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> int:
    default = 4 if options.model is not None else 2 if options.plan.tiles is None else 1
    plan = options.plan.plan(stages=default)
    if options.out is not None:
        plan.save(options.out)
    facts = describe(plan)
    if options.json:
        print(json.dumps(facts))
        return 0
    _draw(plan, facts)
    if options.out is not None:
        print(f"\nwrote {options.out}")
    return 0


# -- what there is to say ------------------------------------------------------------------------------------------


def describe(plan: Plan) -> dict[str, Any]:
    """Everything `plan show` says, ready for JSON."""
    layout, per_replica = Layout(plan), plan.ranks_per_replica
    return {
        "processes": plan.world_size,
        "processes_per_replica": per_replica,
        "effective_batch": None if plan.batch is None else plan.batch * plan.replicas,
        "plan": dataclasses.asdict(plan),
        "ranks": [
            {
                "rank": rank,
                "replica": rank // per_replica,
                "roles": [_role(plan, r) for r in layout.roles(rank)],
            }
            for rank in range(plan.world_size)
        ],
        "messages": _messages(plan, layout),
        "reductions": [
            {"stage": stage, "tensor": tensor, "ranks": layout.sharers(stage, tensor)}
            for stage in range(len(plan.stages))
            for tensor in range(plan.stages[stage].tensor)
            if layout.reduces(stage)
        ],
    }


def _role(plan: Plan, role: Role) -> dict[str, Any]:
    stage = plan.stages[role.stage]
    return {
        "pipe": role.pipe,
        "stage": role.stage,
        "layers": stage.layers,
        "tile": role.tile,
        "box": None if plan.image is None or stage.tile_count == 1 else _box(plan.image, stage.tiles, role.tile),
        "lane": role.lane,
        "tensor": role.tensor,
    }


def _box(image: tuple[int, ...], grid: tuple[int, ...], tile: int) -> Box:
    """The pixels of the image that a tile owns."""
    intervals = []
    for size, parts in reversed(list(zip(image, grid))):
        tile, index = divmod(tile, parts)
        cuts = balanced_cuts(size, parts)
        intervals.append((cuts[index], cuts[index + 1]))
    return tuple(reversed(intervals))


def _messages(plan: Plan, layout: Layout) -> list[dict[str, Any]]:
    """Per pipe and boundary, who sends to whom in the first replica; others add their first rank."""
    return [
        {"pipe": pipe, "boundary": [stage, stage + 1], "what": what, "links": layout.links(pipe, stage, what)}
        for pipe in range(plan.pipes)
        for stage in range(len(plan.stages) - 1)
        for what in (ACTIVATION, GRADIENT)
        if layout.links(pipe, stage, what)
    ]


# -- saying it -----------------------------------------------------------------------------------------------------


def _draw(plan: Plan, facts: dict[str, Any]) -> None:
    pipes = [f"pipe {pipe}" for pipe in range(plan.pipes)] if plan.pipes > 1 else ["role"]
    console, table = table_of("rank", *pipes, left=pipes, least=120)
    console.print(f"[bold]{plan.world_size} processes[/bold] = {teams(plan)}")
    console.print(f"schedule {plan.schedule}, {plan.microbatches} microbatches a step, pipes: {plan.pipes}")
    if plan.batch is not None:
        console.print(
            f"effective batch {facts['effective_batch']} samples ({plan.replicas} x {plan.batch}), "
            f"{plan.batch / plan.microbatches:g} in a microbatch"
        )
    for row in facts["ranks"][: plan.ranks_per_replica]:
        cells = [[role for role in row["roles"] if role["pipe"] == pipe] for pipe in range(plan.pipes)]
        table.add_row(str(row["rank"]), *("; ".join(_words(plan, role) for role in roles) for roles in cells))
    console.print(table)
    if plan.replicas > 1:
        n = plan.ranks_per_replica
        console.print(f"Replica r repeats this on ranks {n} x r to {n} x r + {n - 1}.\n")
    for entry in facts["messages"]:
        above, below = entry["boundary"] if entry["what"] == ACTIVATION else reversed(entry["boundary"])
        links = "  ".join(f"{source}>{target}" for source, target in entry["links"])
        where = f"pipe {entry['pipe']} " if plan.pipes > 1 else ""
        console.print(f"{where}stage {above} sends {entry['what']}s to stage {below}:  {links}", soft_wrap=True)
    for entry in facts["reductions"]:
        shard = f" shard {entry['tensor']}" if plan.stages[entry["stage"]].tensor > 1 else ""
        ranks = " ".join(map(str, entry["ranks"]))
        console.print(f"stage {entry['stage']}{shard} sums its gradients over ranks  {ranks}", soft_wrap=True)


def _words(plan: Plan, role: dict[str, Any]) -> str:
    stage = plan.stages[role["stage"]]
    first, stop = role["layers"]
    words = [f"stage {role['stage']}", f"layer {first}" if stop - first == 1 else f"layers {first}-{stop - 1}"]
    if stage.tile_count > 1:
        words.append(f"tile {role['tile']}")
        if role["box"] is not None:
            words.append(" x ".join(f"[{a}, {b})" for a, b in role["box"]))
    if stage.lanes > 1:
        words.append(f"lane {role['lane']}")
    if stage.tensor > 1:
        words.append(f"tensor {role['tensor']}")
    return "  ".join(words)
