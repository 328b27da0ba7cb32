"""Exactness: steps under every kind of plan equal the same steps on one device, with real processes over gloo.

The matrix is every schedule x every shape of team; what else can vary (the model, recomputation, fused halos, the
sizes of batches) goes round from one plan to the next, so that each meets many others.
"""

from __future__ import annotations

from itertools import count

import pytest

from halocline.plan import SCHEDULES, Plan
from harness.checks.plans import compare_all, exchanges_of
from harness.ranks import on_processes
from harness.teams import LANES, ONE, Team, plan_of, tiles

Case = tuple[str, str, list[int]]
"""Model, plan, batch sizes of the steps."""

SHAPES: dict[str, list[Team]] = {
    "plain": [ONE, ONE, ONE, ONE],
    "2x2": [tiles(2, 2), ONE, ONE],
    "1x3": [tiles(1, 3), ONE],
    "2x2 to 1x2": [tiles(2, 2), tiles(1, 2)],
    "lanes": [ONE, LANES, ONE],
}
FOR_CHIMERA: dict[str, list[Team]] = {  # which wants an even number of stages
    "2x2": [tiles(2, 2), LANES],
    "lanes": [LANES, LANES],
}


def matrix() -> list[tuple[str, Case]]:
    found = []
    turn = count()
    for schedule in (*SCHEDULES, "capped, two pipes"):
        for shape, teams in SHAPES.items():
            n = next(turn)
            name, _, rest = schedule.partition(", ")
            if name == "chimera":
                teams = FOR_CHIMERA.get(shape, teams)
            plan = plan_of(
                teams,
                name,
                pipes=2 if rest else 1,
                recompute=n % 2 == 1,
                fused=(0, 2, 3)[n % 3] if "x" in shape else 0,
            )
            model = ("cnn", "pairs", "dense")[n % 3] if "x" in shape else ("cnn", "pairs", "mlp", "dense")[n % 4]
            m = plan.microbatches
            sizes = [[2 * m, m + 1], [m + 1, 2 * m], [2 * m, 2 * m]][n % 3]
            found.append((f"{schedule}, {shape}", (model, plan.to_toml(), sizes)))
    return found


def special() -> list[tuple[str, Case]]:
    """What the matrix does not say."""

    def case(model: str, sizes: list[int], teams: list[Team], schedule: str = "1f1b", **fields: int) -> Case:
        return model, plan_of(teams, schedule, **fields).to_toml(), sizes  # type: ignore[arg-type]

    both = tiles(1, 2, lanes=2)
    return [
        ("two replicas", case("cnn", [8, 9], [ONE, ONE], replicas=2, microbatches=2)),
        ("two replicas of tiles", case("cnn", [8, 5], [tiles(1, 2), ONE], replicas=2, microbatches=2)),
        ("two replicas, dense, D2", case("dense", [8, 5], [tiles(3, 1)], replicas=2, microbatches=2, fused=4)),
        ("two replicas of gems", case("pairs", [8, 5], [ONE, ONE, ONE], "gems", replicas=2, microbatches=2)),
        ("two replicas of chimera", case("cnn", [8, 5], [ONE, ONE], "chimera", replicas=2, microbatches=2)),
        ("two replicas of lanes", case("dense", [9, 8], [LANES, ONE], replicas=2, microbatches=2)),
        ("four replicas", case("cnn", [8, 6], [ONE], replicas=4, microbatches=1)),
        ("only tiles", case("cnn", [4, 3], [tiles(2, 2)], "layer", microbatches=2)),
        ("only tiles, dense", case("dense", [4, 3], [tiles(2, 2)], "gpipe", microbatches=2)),
        ("only tiles, dense, D2", case("dense", [4, 3], [tiles(2, 2)], "gpipe", microbatches=2, fused=8)),
        ("only lanes", case("cnn", [8, 5], [{"lanes": 4}], "gpipe", microbatches=2)),
        ("only lanes, vectors", case("mlp", [8, 5], [{"lanes": 4}], "1f1b", microbatches=2)),
        ("only lanes, dense", case("dense", [8, 5], [{"lanes": 4}], "zb-h1", microbatches=2)),
        ("more lanes than samples", case("cnn", [4, 3], [{"lanes": 4}], "gpipe", microbatches=1)),
        ("lanes of tiles", case("cnn", [8, 5], [both], "gpipe", microbatches=2)),
        ("lanes of tiles, dense", case("dense", [8, 5], [both], "gpipe", microbatches=2)),
        ("lanes of tiles, D2", case("pairs", [8, 5], [both], "1f1b", microbatches=2, fused=2)),
        ("lanes of tiles to lanes", case("cnn", [8, 5], [both, LANES])),
        ("lanes of tiles to tiles", case("pairs", [8, 5], [both, tiles(2, 1)])),
        ("tiles to lanes", case("pairs", [8, 5], [tiles(1, 2), LANES])),
        ("lanes to tiles", case("dense", [8, 5], [LANES, tiles(1, 2)])),
        ("lanes to other lanes", case("dense", [8, 10], [LANES, {"lanes": 3}, ONE])),
        ("gems with lanes of tiles", case("pairs", [8, 5], [both, ONE, ONE], "gems")),
        ("one rank to tiles", case("dense", [8, 5], [ONE, tiles(1, 3)])),
        ("one rank to tiles to one rank", case("pairs", [8, 5], [ONE, tiles(1, 2), ONE])),
        ("tiles to other tiles", case("dense", [8, 5], [tiles(1, 3), tiles(2, 1), ONE])),
        ("tiles to more tiles", case("dense", [8, 5], [tiles(1, 2), tiles(2, 2)])),
        ("gems, tiles to other tiles", case("pairs", [8, 5], [tiles(1, 3), tiles(2, 1), ONE], "gems")),
        ("gems in two passes", (*case("cnn", [8, 5], [ONE] * 4, "gems"),)),
        ("tiles in rows", case("cnn", [8, 5], [tiles(4, 1)], microbatches=2)),
        ("hooks on tiles", case("hooked", [8, 5], [tiles(2, 2)], "gpipe", microbatches=2)),
        ("hooks on lanes of tiles", case("hooked", [8, 5], [both, LANES])),
        ("hooks on replicas of tiles", case("hooked", [8, 5], [tiles(1, 2)], replicas=2, microbatches=2)),
        ("gradients asked for on tiles", case("asking", [8, 5], [tiles(2, 2)], "gpipe", microbatches=2)),
        ("halves, functions of a model", case("written", [8, 5], [tiles(1, 2)] * 2, "zb-h1", microbatches=2)),
        ("gradients asked for on lanes of tiles", case("asking", [8, 5], [both, LANES])),
        ("gems, gradients asked for", case("asking", [8, 4], [tiles(1, 2), tiles(1, 2)], "gems", microbatches=2)),
        ("orders in memory between stages", case("noisy", [8, 5], [ONE] * 4, "1f1b", microbatches=4)),
        ("orders in memory between tiles", case("noisy", [4, 4], [tiles(2, 1), tiles(1, 2)], "gpipe", microbatches=4)),
        ("stages without gradients", case("detached", [8, 5], [ONE] * 4, "1f1b")),
        ("stages without gradients, zb-h1", case("detached", [8, 5], [ONE] * 4, "zb-h1")),
        ("stages without gradients, gems", case("detached", [8, 5], [ONE] * 4, "gems")),
        ("stages without gradients, recomputed", case("detached", [8, 5], [LANES, ONE, ONE], recompute=True)),
        ("stages without gradients, tiles", case("detached", [8, 5], [tiles(1, 2), ONE, ONE])),
        ("stages without gradients, replicas", case("detached", [8, 5], [ONE] * 2, replicas=2, microbatches=2)),
        ("tiles deep in the model", case("cnn", [8, 5], [ONE, ONE, tiles(1, 2)], microbatches=4)),
    ]


CASES = [*matrix(), *special()]


def world_size(case: Case) -> int:
    return Plan.from_toml(case[1]).world_size


def _calls() -> list[tuple[int, list[int]]]:
    """(processes, numbers of cases): few calls, as each wakes all processes."""
    by_size: dict[int, list[int]] = {}
    for number, (_, case) in enumerate(CASES):
        by_size.setdefault(world_size(case), []).append(number)
    return [(size, some[i : i + 10]) for size, some in sorted(by_size.items()) for i in range(0, len(some), 10)]


def test_the_matrix_is_large_enough() -> None:
    assert len(CASES) >= 60
    assert {world_size(case) for _, case in CASES} == {4, 6}  # each further size starts as many processes


@pytest.mark.parametrize(("size", "numbers"), _calls())
def test_steps_equal_one_device(size: int, numbers: list[int]) -> None:
    answers = on_processes(size, compare_all, [CASES[n][1] for n in numbers])
    for rank, found in enumerate(answers):
        for n, worst in zip(numbers, found):
            assert isinstance(worst, dict), f"{CASES[n][0]} on rank {rank} of {size}:\n{worst}"
            assert max(worst.values()) < 1e-10, f"{CASES[n][0]} on rank {rank} of {size}: {worst}"


LONG = {
    "1f1b, plain": plan_of([ONE] * 4),
    "gems, 1x3": plan_of([tiles(1, 3), ONE], "gems"),
    "zb-h1, lanes": plan_of([ONE, LANES, ONE], "zb-h1"),
    "two replicas": plan_of([ONE, ONE], "1f1b", replicas=2, microbatches=2),
}


def test_twenty_steps_equal_one_device() -> None:
    sizes = [8, 5] * 10
    for found in on_processes(4, compare_all, [("cnn", plan.to_toml(), sizes) for plan in LONG.values()]):
        for name, worst in zip(LONG, found):
            assert isinstance(worst, dict), f"{name}:\n{worst}"
            assert worst["loss"] < 1e-8, f"{name}: {worst}"


def test_fused_layers_share_an_exchange() -> None:
    plans = [plan_of([tiles(2, 2)], "gpipe", microbatches=1, fused=n).to_toml() for n in (0, 2, 6)]
    for each, pairs, all_six in on_processes(4, exchanges_of, "cnn", plans):
        assert each > pairs > all_six
        assert all_six == 1  # in the forward; the image needs no gradient
