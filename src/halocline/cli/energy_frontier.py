"""`halocline energy frontier`: the least energy of an iteration for every time it may take, and a frequency plan for
each point, from a profile and a plan.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from halocline.cli.drawing import table_of
from halocline.cli.simulate import plan_to_simulate
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import FACTORS, Frontier, Saving, loss, rounding_loss, savings, solve
from halocline.energy.frontier.plot import draw_frontier
from halocline.energy.profile.table import ProfileTable
from halocline.plan.plan import Plan
from halocline.plan.settings import PlanSettings

_SAMPLE = 100
"""Plans made to tell what rounding loses, where none are written."""


@dataclass(frozen=True)
class Options:
    """The least energy of an iteration for every time it may take, and a frequency for each instruction to reach it.

    Prints what is saved against all clocks at their maximum, without and with a straggler. The plan comes from a
    plan.toml or a few words; its stages are the profile's, or with --chunks so many times fewer, and without
    --microbatches and --schedule these are 8 and 1f1b."""

    plan: PlanSettings = field(default_factory=PlanSettings)
    profile: str | None = None
    """A profile.csv: stage,instruction,frequency,time,energy."""
    blocking_power: float | None = None
    """Watts that a rank takes while it waits (left out: what the profile's first line says, if it does)."""
    cost: str = "hull"
    """hull: real times and the convex hull of the measured choices; exponential: the model of the Perseus paper, for
    comparison."""
    unit_time: float = 0.001
    """exponential: seconds to which times are floored."""
    latency: float = 0.0
    """Seconds a message takes from one stage to the next."""
    stragglers: str = ",".join(f"{factor:g}" for factor in FACTORS[1:])
    """How many times longer than the fastest a straggler's iteration takes, one or several numbers."""
    out: str | None = None
    """Write frontier.csv, frontier.json, frontier.svg and plans/ to this directory."""
    plans: int | None = None
    """Write so many plans at most, spread over the points (left out: one for every point)."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> int:
    if options.profile is None:
        raise ValueError("no profile: give --profile profile.csv, which halocline energy profile writes")
    if options.plans is not None and options.plans < 1:
        raise ValueError(f"--plans {options.plans} is below 1: use 1 or more")
    factors = _factors(options.stragglers)
    profile = ProfileTable.read(options.profile)
    power = profile.blocking_power if options.blocking_power is None else options.blocking_power
    if power is None:
        raise ValueError(
            f"no blocking power: {options.profile} does not say it, give --blocking-power W, what a waiting rank takes "
            f"(an A100 about 84)"
        )
    plan = _plan(options, profile)
    with _status(options):
        frontier = solve(plan, profile, power, options.cost, unit_time=options.unit_time, latency=options.latency)
        rows = savings(frontier, (1.0, *factors))
        plans = _plans(frontier, options)
        written = _write(Path(options.out), frontier, plans, options) if options.out is not None else []
    if options.json:
        print(json.dumps(_facts(frontier, plans, rows)))
    else:
        _draw(frontier, plans, rows, written, "the profile's" if options.blocking_power is None else "given")
    return 0


def _status(options: Options) -> AbstractContextManager[object]:
    """Something that moves meanwhile, for who watches."""
    if options.json:
        return nullcontext()
    # rich takes a tenth of a second to load, which JSON need not pay.
    from rich.console import Console

    return Console(stderr=True).status("solving")


def _factors(text: str) -> list[float]:
    factors = []
    for word in filter(None, text.split(",")):
        try:
            factors.append(float(word))
        except ValueError:
            raise ValueError(f"--stragglers {text}: {word!r} is not a number: write --stragglers 1.05,1.2") from None
    return factors


def _plan(options: Options, profile: ProfileTable) -> Plan:
    """The plan of the options, with the profile's stages where none are told."""
    said = options.plan
    if said.file is None and said.stages is None:
        chunks = said.chunks or (2 if said.schedule == "interleaved" else 1)
        if chunks < 1 or profile.stages % chunks:
            raise ValueError(
                f"{options.profile} has {profile.stages} stages, which --chunks {chunks} do not divide: use other "
                f"chunks, or --stages {profile.stages} to cut each of them into {chunks}"
            )
        said = replace(said, stages=profile.stages // chunks)
    return plan_to_simulate(said)


def _plans(frontier: Frontier, options: Options) -> list[FrequencyPlan]:
    """A plan for each point, or for as many of them as are wanted, the ends included."""
    count = len(frontier.points)
    most = count if options.plans is None else options.plans
    if options.out is None:
        most = min(most, _SAMPLE)
    chosen = list(range(count))
    if most < count:
        chosen = [round(number * (count - 1) / max(1, most - 1)) for number in range(most)]
    return [frontier.plan_at(frontier.points[number].time) for number in chosen]


def _write(out: Path, frontier: Frontier, plans: list[FrequencyPlan], options: Options) -> list[str]:
    folder = out / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("plan-*.json"), *folder.glob("index.csv")]:
        old.unlink()  # of an earlier frontier, whose points were others
    # The paper's model has a point for every unit of time, as its published frontiers do.
    points = frontier.points if frontier.cost == "hull" else frontier.sampled(options.unit_time)
    lines = [f"{time!r},{energy!r}" for time, energy in points]
    (out / "frontier.csv").write_text("\n".join(["time,energy", *lines]) + "\n", encoding="utf-8")
    (out / "frontier.json").write_text(frontier.to_json() + "\n", encoding="utf-8")
    (out / "frontier.svg").write_text(draw_frontier(frontier, plans, title=_title(frontier)), encoding="utf-8")
    index = ["plan,deadline,time,energy,loss"]
    digits = len(str(len(plans) - 1))
    for number, plan in enumerate(plans):
        name = f"plan-{number:0{digits}}.json"
        plan.save(folder / name)
        index.append(f"{name},{plan.deadline!r},{plan.time!r},{plan.energy!r},{loss(frontier, plan):.3e}")
    (folder / "index.csv").write_text("\n".join(index) + "\n", encoding="utf-8")
    return [str(out / "frontier.csv"), str(out / "frontier.json"), str(out / "frontier.svg"), f"{folder}/"]


def _facts(frontier: Frontier, plans: list[FrequencyPlan], rows: list[Saving]) -> dict[str, Any]:
    rounding = rounding_loss(frontier, plans)
    return {
        **frontier.as_dict(),
        "savings": [{**row._asdict(), "saved": row.saved, "slowdown": row.slowdown} for row in rows],
        "rounding_loss": {"mean": rounding.mean, "worst": rounding.worst, "plans": rounding.plans},
    }


def _draw(frontier: Frontier, plans: list[FrequencyPlan], rows: list[Saving], written: list[str], power: str) -> None:
    names = ("straggler", "iteration", "maximum clocks", "planned", "saved", "slower")
    console, table = table_of(*names, left=names[:1])
    console.print(_title(frontier), style="bold", markup=False)
    if frontier.note:
        console.print(frontier.note, markup=False, soft_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.factor:g} x" if row.factor > 1 else "none",
            f"{row.time:.4g} s",
            f"{row.baseline:.6g} J",
            f"{row.energy:.6g} J",
            f"{row.saved:.1%}",
            f"{row.slowdown:.2%}",
        )
    console.print(table)
    first, least, last = frontier.points[0], frontier.least, frontier.points[-1]
    for line in (
        f"{len(frontier.points)} points from T_min {first.time:.6g} s to T* {last.time:.6g} s; "
        f"least energy {least.energy:.6g} J at {least.time:.6g} s",
        _rounding(frontier, plans),
        f"blocking power {frontier.blocking_power:g} W ({power})",
        *(f"wrote {path}" for path in written),
    ):
        console.print(line, markup=False, soft_wrap=True)


def _rounding(frontier: Frontier, plans: list[FrequencyPlan]) -> str:
    if frontier.cost == "exponential":
        late = max(plan.time / plan.deadline - 1 for plan in plans)
        return f"on real clocks plans take up to {max(late, 0):.2%} longer than the model says: it floors times"
    rounding = rounding_loss(frontier, plans)
    share = f"{rounding.mean:.2%} on average and {rounding.worst:.2%} at most"
    return f"rounding to real clocks loses {share} ({rounding.plans} plans)"


def _title(frontier: Frontier) -> str:
    plan = frontier.schedule.plan
    return f"{plan.schedule}, {len(plan.stages)} stages, {plan.microbatches} microbatches, {plan.world_size} processes"
