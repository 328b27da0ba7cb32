"""The emulation tables of the Perseus paper ("Reducing Energy Bloat in Large Model Training", SOSP '24, arXiv
2312.06902) from profiles: what the frontier saves against all clocks at their maximum, without stragglers and with
them, against the paper's baselines (perseus_baselines.py says how they are made), and beside what was published.

    python benchmarks/perseus_tables.py [PROFILE.csv ...] [--microbatches 12,24,48,96] [--out DIR] [--json]

No GPU runs: iterations are computed from the profile, those of the baselines with the arithmetic of Halocline's own
plans. The frontier mixes frequencies freely; a plan has one that was measured for each instruction.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from perseus_baselines import baselines
from perseus_published import ELSEWHERE, known, published_frontier

from halocline.cli import one_line
from halocline.cli.simulate import plan_to_simulate
from halocline.energy.frontier.frequency_plan import FrequencyPlan
from halocline.energy.frontier.frontier import Frontier, savings, solve
from halocline.energy.profile.table import ProfileTable
from halocline.plan.settings import PlanSettings

ROOT = Path(__file__).resolve().parent.parent
PROFILES = ROOT / "examples" / "profiles"
PUBLISHED = ROOT / "tests" / "energy" / "frontier" / "data"

SAMPLE = 40
"""Points of a published frontier that are put to work."""

Cells = dict[str, Any]


def pareto(plans: Sequence[FrequencyPlan]) -> list[FrequencyPlan]:
    """Those that no other beats, rising in time."""
    kept: list[FrequencyPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.time, plan.energy)):
        if not kept or plan.energy < kept[-1].energy:
            kept.append(plan)
    return kept


@dataclass(frozen=True)
class Case:
    path: Path
    microbatches: int
    profile: ProfileTable
    frontier: Frontier
    published: list[tuple[float, float]]
    """The frontier that was published of it, if any: seconds and joules, rising in time."""
    baselines: dict[str, list[FrequencyPlan]]

    @property
    def key(self) -> Cells:
        return {"profile": self.path.stem, "microbatches": self.microbatches}

    def intrinsic(self) -> Cells:
        frontier, (row,) = self.frontier, savings(self.frontier, (1.0,))
        published = known(self.profile)
        return {
            **self.key,
            "T_min, s": frontier.time_min,
            "all-max, s": row.baseline_time,
            "all-max, J": row.baseline,
            "frontier": 1 - frontier.energy_at(frontier.time_min) / row.baseline,
            "plan": row.saved,
            "slower": row.slowdown,
            "least at": frontier.least.time / frontier.time_min,
            "T*": frontier.time_star / frontier.time_min,
            "paper": published.intrinsic.get(self.microbatches) if published and is_papers(frontier) else None,
        }

    def stragglers(self, factors: Sequence[float]) -> Iterator[Cells]:
        frontier = self.frontier
        for row in savings(frontier, factors):
            at = max(row.time, row.baseline_time)
            yield {
                **self.key,
                "T'": row.factor,
                "T', s": at,
                "all-max, J": row.baseline,
                "frontier": 1 - frontier.energy_at(at) / row.baseline,
                "plan": row.saved,
                **{name: _saved(frontier, plans, at, row.baseline) for name, plans in self.baselines.items()},
                "published": self._as_published(row.factor) if self.published else None,
            }

    def against(self) -> Iterator[Cells]:
        highest = self.frontier.all_max
        for name, plans in {"all-max": [highest], **self.baselines}.items():
            plans = pareto(plans)
            energy = [plan.energy / self.least_within(plan.time) - 1 for plan in plans]
            made = [plan.energy / self.plan_within(plan.time).energy - 1 for plan in plans]
            longer = [plan.time / self.time_of(plan.energy) - 1 for plan in plans]
            yield {
                **self.key,
                "baseline": name,
                "points": len(plans),
                "fastest, s": plans[0].time,
                "slower": plans[0].time / highest.time - 1,
                "saved": 1 - plans[0].energy / highest.energy,
                "more energy": sum(energy) / len(plans),
                "most energy": max(energy),
                "than plans": sum(made) / len(plans),
                "least more": min(made),
                "more time": sum(longer) / len(plans),
                "most time": max(longer),
            }

    def points(self) -> Iterator[Cells]:
        """Everything that the tables sum up."""
        yield from ({**self.key, "of": "frontier", "time": t, "energy": e} for t, e in self.frontier.points)
        for name, plans in {"all-max": [self.frontier.all_max], **self.baselines}.items():
            yield from ({**self.key, "of": name, "time": plan.time, "energy": plan.energy} for plan in plans)

    def envpipe(self) -> Cells | None:
        published = known(self.profile)
        if published is None or not is_papers(self.frontier) or self.microbatches not in published.envpipe:
            return None
        (plan,) = self.baselines["EnvPipe-like"]
        seconds, joules = published.envpipe[self.microbatches]
        return {
            **self.key,
            "EnvPipe-like, s": plan.time,
            "published, s": seconds,
            "EnvPipe-like, J": plan.energy,
            "published, J": joules,
            "time apart": plan.time / seconds - 1,
            "energy apart": plan.energy / joules - 1,
        }

    def beside(self, unit: float) -> Cells | None:
        """A published frontier beside ours: in its own cost model, and what its durations come to on real clocks."""
        frontier, published = self.frontier, self.published
        if not published:
            return None
        first = published[0][0]
        modelled = solve(frontier.schedule, self.profile, frontier.blocking_power, "exponential", unit_time=unit)
        late, less = [], []
        for number in range(SAMPLE):
            at = published[round(number * (len(published) - 1) / (SAMPLE - 1))][0]
            plan = modelled.plan_at(max(at, modelled.time_min))
            late.append(plan.time / at - 1)
            ours = frontier.plan_at(plan.time)
            less.append(1 - frontier.waiting_energy(ours, plan.time) / plan.energy)
        return {
            **self.key,
            "points": len(published),
            "T_min, s": first,
            "real T_min, s": frontier.time_min,
            "too short by": 1 - first / frontier.time_min,
            "model apart": max(abs(modelled.energy_at(max(t, modelled.time_min)) / e - 1) for t, e in published),
            "longer": sum(late) / SAMPLE,
            "most longer": max(late),
            "less energy": sum(less) / SAMPLE,
            "least less": min(less),
            "most less": max(less),
            "intrinsic": self._as_published(1.0),
        }

    # What of ours stands beside an iteration of somebody else. Slower than at the least energy is nobody by choice.

    def least_within(self, seconds: float) -> float:
        return self.frontier.energy_at(min(seconds, self.frontier.least.time))

    def plan_within(self, seconds: float) -> FrequencyPlan:
        return self.frontier.plan_at(min(seconds, self.frontier.least.time))

    def time_of(self, joules: float) -> float:
        """Seconds of the fastest iteration that takes no more energy; nobody's takes less than the least."""
        points = self.frontier.points
        if points[0].energy <= joules:
            return points[0].time
        for left, right in pairwise(points):
            if right.energy <= joules:
                return left.time + (right.time - left.time) * (left.energy - joules) / (left.energy - right.energy)
        return self.frontier.least.time

    def _as_published(self, factor: float) -> float:
        """What a published frontier saves, by the artifact's arithmetic: all-max, too, takes the (floored) T_min."""
        watts, highest = self.frontier.pricing.waiting_power, self.frontier.all_max
        at = factor * self.published[0][0]
        baseline = highest.energy + watts * (at - highest.time)
        time, energy = min((p for p in self.published if p[0] <= at * (1 + 1e-12)), key=lambda point: point[1])
        return 1 - (energy + watts * (at - time)) / baseline


def _saved(frontier: Frontier, plans: list[FrequencyPlan], at: float, baseline: float) -> float | None:
    met = [frontier.waiting_energy(plan, at) for plan in plans if plan.time <= at * (1 + 1e-12)]
    return 1 - min(met) / baseline if met else None


def is_papers(frontier: Frontier) -> bool:
    """Whether the plan is the paper's, 1F1B with a rank per stage; its tensor ranks all do the same."""
    plan = frontier.schedule.plan
    return plan.schedule == "1f1b" and plan.world_size == len(plan.stages)


# -- the tables --------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    title: str
    says: str
    rows: list[Cells]

    def text(self) -> str:
        seen = {name: {row[name] for row in self.rows} for name in self.rows[0]}
        alone = ["profile"] if len(seen.get("profile", ())) == 1 else []  # the first lines name it
        names = [name for name in seen if seen[name] != {None} and name not in alone]
        cells = [names] + [[_cell(name, row[name]) for name in names] for row in self.rows]
        widths = [max(len(row[at]) for row in cells) for at in range(len(names))]
        left = [isinstance(self.rows[0][name], str) for name in names]
        lines = [
            "  ".join(
                word.ljust(width) if flush else word.rjust(width) for word, width, flush in zip(row, widths, left)
            )
            for row in cells
        ]
        return "\n".join([self.title, *self.says.splitlines(), "", *map(str.rstrip, lines), ""])

    def write(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(self.rows[0]))
            writer.writeheader()
            writer.writerows(self.rows)


def _cell(name: str, value: Any) -> str:
    """Seconds, joules, multiples of T_min and differences say so in their names; all other numbers are shares."""
    if value is None:
        return "-"
    if isinstance(value, (str, int)):
        return str(value)
    forms = {", s": ".3f", ", J": ".1f", "T'": ".2f", "T*": ".3f", "least at": ".3f", "apart": ".1e"}
    return format(value, next((form for end, form in forms.items() if name.endswith(end)), ".2%"))


def tables_of(cases: Sequence[Case], factors: Sequence[float], unit: float) -> dict[str, Table]:
    found = {
        "intrinsic": Table(
            "Intrinsic bloat: the energy that the fastest iteration saves against all clocks at maximum",
            "frontier, plan: saved; slower: the plan's time; paper: its Table 6, where it is of this profile.\n"
            "least at: where an iteration takes the least energy; beyond T* everybody just waits (both over T_min).",
            [case.intrinsic() for case in cases],
        ),
        "stragglers": Table(
            "Stragglers: the energy that any other pipeline saves against all clocks at maximum",
            "T': the straggler's iteration over T_min, for which all wait at blocking power. published: the published\n"
            "frontier over its own T_min, by the artifact's arithmetic. -: too slow for that straggler.",
            [row for case in cases for row in case.stragglers(factors)],
        ),
        "baselines": Table(
            "Baselines: their Pareto points against ours in the same time, and for the same energy",
            "slower, saved: their fastest point against all clocks at maximum. energy: how much more they take than\n"
            "the frontier (mean, most) and than our plans (mean, least). time: how much longer than the frontier.",
            [row for case in cases for row in case.against()],
        ),
        "envpipe": Table(
            "EnvPipe-like beside the artifact's EnvPipe",
            "",
            [row for case in cases if (row := case.envpipe()) is not None],
        ),
        "published": Table(
            "Published frontiers beside ours",
            "model apart: our energy under the paper's cost model, at most. longer: what its durations take on real\n"
            "clocks beyond what they say (mean, most). less energy: our plans in that same time (mean, least, most).\n"
            "intrinsic: what the published frontier saves, by the artifact's arithmetic.",
            [row for case in cases if (row := case.beside(unit)) is not None],
        ),
        "elsewhere": Table(
            "The paper, another profile: its results of models and GPUs of which no profile is here",
            "With microbatches: emulated, 8 stages, T' of the whole job. Others: measured, 4 stages on A100, 8 on A40.",
            ELSEWHERE,
        ),
    }
    return {name: table for name, table in found.items() if table.rows}


# -- the command -------------------------------------------------------------------------------------------------------


def numbers(flag: str, text: str, kind: type[int] | type[float]) -> list[Any]:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{flag} {text} is not a list of numbers: write e.g. {flag} 12,24") from None


def cases_of(options: argparse.Namespace, counts: Sequence[int]) -> Iterator[Case]:
    paths = [Path(path) for path in options.profiles] or sorted(PROFILES.glob("*.csv"))
    for path in paths:
        profile = ProfileTable.read(path)
        published = known(profile)
        said = (options.blocking_power, profile.blocking_power, published and published.blocking_power)
        power = next((watts for watts in said if watts is not None), None)
        if power is None:
            raise ValueError(f"{path} does not say the blocking power: give --blocking-power W (an A100 about 84)")
        chunks = 2 if options.schedule == "interleaved" else 1
        stages = options.stages or max(1, profile.stages // chunks)
        for count in counts:
            print(f"{path.stem}, {count} microbatches", file=sys.stderr, flush=True)
            plan = plan_to_simulate(PlanSettings(stages=stages, microbatches=count, schedule=options.schedule))
            frontier = solve(plan, profile, power)
            if not frontier.least.energy:
                raise ValueError(f"{path} has iterations of 0 J: give a profile with energies, or a blocking power")
            theirs = published_frontier(options.published, path, count) if is_papers(frontier) else []
            yield Case(path, count, profile, frontier, theirs, baselines(frontier))


def run(options: argparse.Namespace) -> None:
    started = time.perf_counter()
    counts = numbers("--microbatches", options.microbatches, int)
    factors = numbers("--stragglers", options.stragglers, float)
    cases = list(cases_of(options, counts))
    tables = tables_of(cases, factors, options.unit_time)
    taken = time.perf_counter() - started
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    notes = dict.fromkeys(f"{case.path.stem}: {case.profile.note or 'no note'}" for case in cases)
    powers = dict.fromkeys(f"blocking power {case.frontier.blocking_power:g} W" for case in cases)
    facts = [f"{options.schedule}, {len(cases[0].frontier.schedule.plan.stages)} stages", *notes, *powers]
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        points = Table("", "", [row for case in cases for row in case.points()])
        for name, table in {**tables, "points": points}.items():
            table.write(options.out / f"{name}.csv")
    if options.json:
        rows = {name: table.rows for name, table in tables.items()}
        print(json.dumps({"facts": facts, "machine": machine, "seconds": taken, **rows}))
        return
    print("\n".join([*facts, "", *(table.text() for table in tables.values()), f"{taken:.1f} s on {machine}"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profiles", nargs="*", metavar="PROFILE.csv", help="left out: those of examples/profiles")
    parser.add_argument("--microbatches", default="12,24,48,96", help="a list of numbers")
    parser.add_argument("--stragglers", default="1.05,1.1,1.2,1.3,1.4,1.5", help="their iteration times over T_min")
    parser.add_argument("--schedule", default="1f1b", help="any that halocline simulate knows")
    parser.add_argument("--stages", type=int, help="left out: the profile's, or half of them for interleaved")
    parser.add_argument("--blocking-power", type=float, help="watts of a waiting rank, if not in the profile")
    parser.add_argument("--unit-time", type=float, default=0.001, help="of the paper's cost model; 0.0001 for its A40")
    parser.add_argument(
        "--published",
        type=Path,
        default=PUBLISHED,
        metavar="DIR",
        help="published frontiers, named like the profile and ending with the microbatches",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write each table, and every point, as CSV")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    try:
        run(parser.parse_args())
    except (ValueError, OSError) as error:
        print(f"perseus_tables: error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
