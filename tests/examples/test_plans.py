"""The plans under examples/plans: each loads, is what its flags say, and has a schedule that is proved."""

from pathlib import Path

import pytest

from halocline.plan import SCHEDULES, Plan
from halocline.schedule import generate

PATHS = sorted((Path(__file__).parents[2] / "examples" / "plans").glob("*.toml"))
WORLD_SIZES = {"spatial-5": 5, "spatial-9": 9, "gems-spatial": 8, "gems-hybrid": 16, "gems-master": 5}


def test_there_is_a_plan_for_every_schedule() -> None:
    assert {Plan.load(path).schedule for path in PATHS} == set(SCHEDULES)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_shipped_plan(path: Path) -> None:
    plan = Plan.load(path)
    what, flags = path.read_text().splitlines()[:2]
    assert what.startswith("# ")
    assert Plan.from_flags(flags.removeprefix("# flags: ")) == plan
    assert path.read_text() == f"{what}\n{flags}\n{plan.to_toml()}"
    assert len(generate(plan).ranks) == plan.ranks_per_replica
    assert plan.world_size == WORLD_SIZES.get(path.stem, plan.world_size)
