"""Plans: kept as TOML and read back the same, and their derived numbers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.plan import Plan, Stage


@given(st.from_type(Plan))
def test_toml_round_trip(plan: Plan) -> None:
    text = plan.to_toml()
    assert Plan.from_toml(text) == plan
    assert Plan.from_toml(text).to_toml() == text


def test_saved_and_loaded(tmp_path: Path) -> None:
    plan = Plan.uniform(3, microbatches=6, schedule="gems", pipes=2, passes=2, batch=12, image=(512, 384))
    plan.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml") == plan


def test_a_plan_that_an_editor_marked_is_read(tmp_path: Path) -> None:
    plan = Plan.uniform(2, microbatches=2)
    (tmp_path / "plan.toml").write_bytes(b"\xef\xbb\xbf" + plan.to_toml().replace("\n", "\r\n").encode())
    assert Plan.load(tmp_path / "plan.toml") == plan


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("microbatches = 4\n")
    with pytest.raises(ValueError, match=r"broken\.toml: stages is missing"):
        Plan.load(path)


def test_toml_shows_schedule_and_microbatches_at_their_defaults() -> None:
    assert Plan.uniform(1).to_toml() == 'schedule = "1f1b"\nmicrobatches = 1\n\n[[stages]]\nlayers = [0, 1]\n'


def test_a_whole_number_is_a_cap_and_true_is_no_count() -> None:
    assert Plan.from_toml('schedule = "capped"\ncap = 2\n[[stages]]\nlayers = [0, 1]').cap == 2
    with pytest.raises(ValueError, match="microbatches = True is not a whole number"):
        Plan.from_toml("microbatches = true\n[[stages]]\nlayers = [0, 1]")


def test_stages_that_cut_nothing_follow_those_that_cut_volumes() -> None:
    plan = Plan((Stage((0, 1), tiles=(2, 1, 2)), Stage((1, 2))), image=(12, 17, 11))
    assert plan.stages[1].tiles == (1, 1, 1) and plan.world_size == 5
    assert Plan.from_toml(plan.to_toml()) == plan
    assert Plan((Stage((0, 1), tiles=(1, 1, 1)),)) == Plan((Stage((0, 1)),))


def test_ranks_of_a_plan() -> None:
    stages = (Stage((0, 3), tiles=(2, 2)), Stage((3, 5), lanes=3, tensor=2), Stage((5, 6)))
    plan = Plan(stages, microbatches=4, replicas=2)
    assert (plan.layers, plan.places, plan.ranks_per_replica, plan.world_size) == (6, 3, 4 + 6 + 1, 22)


def test_chunks_share_their_ranks() -> None:
    plan = Plan.uniform(8, schedule="interleaved", chunks=2, microbatches=8)
    assert (plan.places, plan.world_size) == (4, 4)


def test_pipes_take_turns_by_pass_in_gems_and_by_microbatch_elsewhere() -> None:
    gems = Plan.uniform(2, schedule="gems", pipes=2, microbatches=8, passes=4)
    assert [gems.pipe_of(m) for m in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
    chimera = Plan.uniform(2, schedule="chimera", pipes=2, microbatches=4)
    assert [chimera.pipe_of(m) for m in range(4)] == [0, 1, 0, 1]
    assert {Plan.uniform(2, microbatches=4).pipe_of(m) for m in range(4)} == {0}
