"""Image models under plans, on real processes over gloo: pairs and tuples cross between stages, tiles of one stage meet
those of the next, mirrored pipes share them, and a dense loss is taken on tiles. Each equals one device.
"""

from __future__ import annotations

from typing import Any

import pytest

from halocline.models.model import make
from halocline.plan import Plan
from harness.checks.models import Case, compare_all
from harness.image_models import SMALL
from harness.ranks import on_processes
from harness.teams import LANES, ONE, Team, plan_of, tiles

SIZES = {"amoebanet-d": (65, 37), "unet": (19, 18), "resnet-v2-11": (21, 26)}
"""One for each model, so that plans share what one device makes of it."""


def case(name: str, teams: list[Team], tiled: bool = False, **fields: Any) -> Case:
    """`tiled`: the loss is taken on tiles, or on lanes, which are tiles of the batch."""
    layers = len(make(name, **SMALL[name]).layers)
    plan = plan_of(teams, layers=layers, **{"microbatches": 2, **fields})
    return name, SMALL[name], SIZES[name], plan.to_toml(), tiled


TWO = tiles(1, 2)

CASES: dict[str, Case] = {
    "amoebanet, gems and tiles": case("amoebanet-d", [TWO, ONE, ONE], schedule="gems"),
    "amoebanet, tiles of pairs to other tiles, D2": case("amoebanet-d", [tiles(2, 1), TWO], fused=2),
    "amoebanet, tiles to lanes, recomputed": case("amoebanet-d", [TWO, LANES], tiled=True, recompute=True),
    "unet, four stages": case("unet", [ONE] * 4),
    "unet, all on tiles": case("unet", [tiles(2, 2)], tiled=True),
    "unet, tiles to other tiles": case("unet", [TWO, tiles(2, 1)], tiled=True),
    "unet, uneven tiles of the last stage": case("unet", [ONE, tiles(1, 3)], tiled=True),
    "unet, gems and tiles to the loss": case("unet", [TWO, TWO], tiled=True, schedule="gems"),
    "unet, lanes": case("unet", [LANES, LANES], tiled=True),
    "resnet v2, tiles, D2": case("resnet-v2-11", [tiles(1, 3), ONE], fused=3),
    "resnet v2, chimera": case("resnet-v2-11", [ONE] * 4, schedule="chimera"),
}


def test_every_plan_is_for_four_processes() -> None:
    assert {Plan.from_toml(text).world_size for _, _, _, text, _ in CASES.values()} == {4}


@pytest.mark.parametrize("names", [list(CASES)[:1], list(CASES)[1:3], list(CASES)[3:]], ids=len)
def test_steps_equal_one_device(names: list[str]) -> None:
    ranks = on_processes(4, compare_all, [CASES[name] for name in names])
    failed = [f"rank {rank}:\n{answers[-1]}" for rank, answers in enumerate(ranks) if isinstance(answers[-1], str)]
    failed.sort(key=lambda story: "PeerLost" in story)  # who only lost another rank speaks last
    assert not failed, f"{names[min(map(len, ranks)) - 1]}\n" + "\n".join(failed)
    for name, *worst in zip(names, *ranks):
        assert max(worst) < 1e-10, f"{name}: {worst}"
