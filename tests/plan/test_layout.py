"""Layouts: every rank has its roles and every role its rank, and messages join exactly what overlaps."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.plan import Layout, Plan, Role, Stage
from halocline.plan.layout import GRADIENT


def every_role(plan: Plan) -> list[Role]:
    return [
        Role(replica, pipe, index, tile, lane, tensor)
        for replica, pipe, (index, stage) in product(range(plan.replicas), range(plan.pipes), enumerate(plan.stages))
        for tile, lane, tensor in product(range(stage.tile_count), range(stage.lanes), range(stage.tensor))
    ]


def share(plan: Plan, role: Role) -> list[tuple[Fraction, Fraction]]:
    """What a rank holds of the boundary tensor: its interval of each spatial dim, then of the samples."""
    stage = plan.stages[role.stage]
    index, intervals = role.tile, []
    for count in reversed(stage.tiles):
        index, place = divmod(index, count)
        intervals.append((Fraction(place, count), Fraction(place + 1, count)))
    return intervals + [(Fraction(role.lane, stage.lanes), Fraction(role.lane + 1, stage.lanes))]


def overlap(plan: Plan, one: Role, other: Role) -> bool:
    return all(max(a, c) < min(b, d) for (a, b), (c, d) in zip(share(plan, one), share(plan, other)))


@given(st.from_type(Plan))
def test_roles_and_ranks_are_each_others_inverse(plan: Plan) -> None:
    layout = Layout(plan)
    roles = every_role(plan)
    for role in roles:
        assert role in layout.roles(layout.rank(role))
    held = [role for rank in range(layout.world_size) for role in layout.roles(rank)]
    assert sorted(held) == roles
    assert {len(layout.roles(rank)) for rank in range(layout.world_size)} == {plan.pipes * plan.chunks}


@given(st.from_type(Plan))
def test_teams_are_the_ranks_of_their_roles(plan: Plan) -> None:
    layout = Layout(plan)
    teams: dict[tuple[int, int, int], list[int]] = {}
    for role in every_role(plan):
        teams.setdefault((role.pipe, role.stage, role.replica), []).append(layout.rank(role))
    for (pipe, stage, replica), ranks in teams.items():
        assert layout.team(pipe, stage, replica) == tuple(ranks)


@given(st.from_type(Plan))
def test_the_second_pipe_is_the_mirror_of_the_first(plan: Plan) -> None:
    layout = Layout(plan)
    n = layout.ranks_per_replica
    for role in every_role(plan):
        if role.pipe:
            tensor = [role._replace(tensor=t) for t in range(plan.stages[role.stage].tensor)]
            firsts = {layout.rank(r._replace(pipe=0)) - role.replica * n for r in tensor}
            assert {layout.rank(r) for r in tensor} == {role.replica * n + n - 1 - first for first in firsts}
            if len(tensor) == 1:
                assert layout.rank(role) == role.replica * n + n - 1 - firsts.pop()


@given(st.from_type(Plan))
def test_a_rank_holds_one_shard_of_a_stage(plan: Plan) -> None:
    layout = Layout(plan)
    for rank in range(layout.world_size):
        shards = {(role.stage, role.tensor) for role in layout.roles(rank)}
        assert len(shards) == len({stage for stage, _ in shards})


@given(st.from_type(Plan))
def test_a_tensor_group_has_every_shard_once(plan: Plan) -> None:
    layout = Layout(plan)
    for index, stage in enumerate(plan.stages):
        for group in layout.tensor_groups(index):
            assert len(group) == stage.tensor
            for tensor, rank in enumerate(group):
                assert rank in layout.sharers(index, tensor)


@given(st.from_type(Plan))
def test_activations_reach_every_rank_from_everything_it_overlaps(plan: Plan) -> None:
    layout = Layout(plan)
    for pipe, stage in product(range(plan.pipes), range(len(plan.stages) - 1)):
        if layout.team(pipe, stage) == layout.team(pipe, stage + 1):
            assert layout.links(pipe, stage) == layout.links(pipe, stage, GRADIENT) == ()
            continue
        mine = [role for role in every_role(plan) if role.replica == 0 and role.pipe == pipe]
        tops = [role for role in mine if role.stage == stage]
        ends = [role for role in mine if role.stage == stage + 1]
        for what, sources, targets in (("activation", tops, ends), ("gradient", ends, tops)):
            links = layout.links(pipe, stage, what)
            assert len(set(links)) == len(links)
            came: dict[int, list[tuple[int, int]]] = {layout.rank(role): [] for role in targets}
            by_rank = {layout.rank(role): role for role in sources}
            for link in links:
                source = by_rank[link.source]
                came[link.target].append((source.tile, source.lane))
            for role in targets:
                # From each tile and lane that overlaps, once: tensor ranks hold the same boundary.
                wanted = sorted({(s.tile, s.lane) for s in sources if overlap(plan, s, role)})
                assert sorted(came[layout.rank(role)]) == wanted


@given(st.from_type(Plan))
def test_gradients_go_back_the_way_activations_came(plan: Plan) -> None:
    layout = Layout(plan)
    for pipe, stage in product(range(plan.pipes), range(len(plan.stages) - 1)):
        if plan.stages[stage].tensor == plan.stages[stage + 1].tensor:
            down = {(link.target, link.source) for link in layout.links(pipe, stage)}
            assert down == set(layout.links(pipe, stage, GRADIENT))


@given(st.from_type(Plan))
def test_sharers_hold_the_stage_and_every_rank_shares_what_it_holds(plan: Plan) -> None:
    layout = Layout(plan)
    holders: dict[tuple[int, int], set[int]] = {}
    for role in every_role(plan):
        holders.setdefault((role.stage, role.tensor), set()).add(layout.rank(role))
    for (stage, tensor), ranks in holders.items():
        assert layout.sharers(stage, tensor) == tuple(sorted(ranks))
        assert layout.reduces(stage) == (len(layout.sharers(stage)) > 1)
    if plan.pipes == 1 and plan.chunks == 1:
        # Each rank holds one shard of one stage: the sharers split the world.
        shards = [layout.sharers(s, t) for s, stage in enumerate(plan.stages) for t in range(stage.tensor)]
        assert sorted(rank for ranks in shards for rank in ranks) == list(range(layout.world_size))


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 60))
def test_cuts_in_pixels_never_need_a_link_that_fractions_lack(n: int, m: int, size: int) -> None:
    """Tiles are cut at floor(i x size / n); whatever pixels two tiles share, their ranks are linked."""
    layout = Layout(Plan((Stage((0, 1), tiles=(1, n)), Stage((1, 2), tiles=(1, m)))))
    if n == m == 1:
        return
    linked = {(link.source, link.target - n) for link in layout.links(0, 0)}
    for i, j in product(range(n), range(m)):
        pixels = min((i + 1) * size // n, (j + 1) * size // m) - max(i * size // n, j * size // m)
        if pixels > 0:
            assert (i, j) in linked


def test_the_drawing() -> None:
    """Two pipes over 2x2 tiles and two plain stages, as drawn at the top of the layout."""
    stages = (Stage((0, 1), tiles=(2, 2)), Stage((1, 2)), Stage((2, 3)))
    layout = Layout(Plan(stages, schedule="gems", pipes=2, microbatches=2))
    drawn = [[(role.stage, role.tile) for role in layout.roles(rank)] for rank in range(6)]
    assert drawn == [
        [(0, 0), (2, 0)],
        [(0, 1), (1, 0)],
        [(0, 2), (0, 3)],
        [(0, 3), (0, 2)],
        [(1, 0), (0, 1)],
        [(2, 0), (0, 0)],
    ]


def test_four_tiles_into_two() -> None:
    layout = Layout(Plan((Stage((0, 1), tiles=(2, 2)), Stage((1, 2), tiles=(1, 2)))))
    assert [tuple(link) for link in layout.links(0, 0)] == [(0, 4), (1, 5), (2, 4), (3, 5)]


@pytest.mark.parametrize("rank", [-1, 5])
def test_a_rank_outside_the_plan_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is outside the plan's 5 ranks"):
        Layout(Plan.uniform(5)).roles(rank)
