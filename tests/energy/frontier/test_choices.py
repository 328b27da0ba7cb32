"""What an instruction may choose between, where the profile says it and where it has to be derived."""

from __future__ import annotations

import pytest

from halocline.energy.frontier.choices import Choice, Menu
from halocline.energy.profile.table import ProfileTable, Row
from halocline.plan import Plan, Stage


def profile(stages: int = 1, **rows: dict[int, tuple[float, float]]) -> ProfileTable:
    """The same rows for every stage: instruction={MHz: (time, energy)}."""
    return ProfileTable(
        tuple(
            Row(stage, instruction, frequency, *pair)
            for stage in range(stages)
            for instruction, pairs in rows.items()
            for frequency, pair in pairs.items()
        )
    )


def plan(recompute: bool = False, **fields: object) -> Plan:
    return Plan((Stage((0, 1), recompute=recompute),), **fields)  # type: ignore[arg-type]


F = {1000: (1.0, 10.0), 500: (2.0, 8.0)}
B = {1000: (3.0, 30.0), 500: (6.0, 24.0)}
R = {1000: (0.5, 5.0), 500: (1.0, 4.0)}


def test_measured_rows_are_taken_as_they_are() -> None:
    menu = Menu(profile(forward=F, backward=B, reduce=R), plan())
    assert menu.of("forward", 0) == (Choice(1000, 1.0, 10.0), Choice(500, 2.0, 8.0))
    assert menu.of("backward", 0) == (Choice(1000, 3.0, 30.0), Choice(500, 6.0, 24.0))
    assert menu.of("reduce", 0) == (Choice(1000, 0.5, 5.0), Choice(500, 1.0, 4.0))


def test_without_rows_a_reduction_takes_nothing() -> None:
    assert Menu(profile(forward=F, backward=B), plan()).of("reduce", 0) == ()


def test_halves_are_halves_of_the_backward() -> None:
    menu = Menu(profile(forward=F, backward=B), plan())
    half = (Choice(1000, 1.5, 15.0), Choice(500, 3.0, 12.0))
    assert menu.of("backward-input", 0) == menu.of("backward-weight", 0) == half


def test_measured_halves_win_and_make_a_whole() -> None:
    halves = {"backward-input": {1000: (2.0, 20.0)}, "backward-weight": {1000: (1.5, 9.0), 500: (3.0, 8.0)}}
    menu = Menu(profile(forward=F, **halves), plan())
    assert menu.of("backward-input", 0) == (Choice(1000, 2.0, 20.0),)
    assert menu.of("backward-weight", 0) == (Choice(1000, 1.5, 9.0), Choice(500, 3.0, 8.0))
    assert menu.of("backward", 0) == (Choice(1000, 3.5, 29.0),)


def test_a_backward_contains_its_recomputation_unless_it_was_measured_apart() -> None:
    inside = Menu(profile(forward=F, backward=B), plan(recompute=True))
    assert inside.of("backward", 0, rebuilds=True) == (Choice(1000, 3.0, 30.0), Choice(500, 6.0, 24.0))
    apart = Menu(profile(forward=F, backward=B, recompute=R), plan(recompute=True))
    assert apart.of("backward", 0, rebuilds=True) == (Choice(1000, 3.5, 35.0), Choice(500, 7.0, 28.0))


def test_a_recompute_apart_is_taken_out_of_the_backward() -> None:
    inside = Menu(profile(forward=F, backward=B), plan(recompute=True))
    assert inside.of("recompute", 0) == inside.of("forward", 0)
    assert inside.of("backward", 0) == (Choice(1000, 2.0, 20.0), Choice(500, 4.0, 16.0))
    apart = Menu(profile(forward=F, backward=B, recompute=R), plan(recompute=True))
    assert apart.of("recompute", 0) == (Choice(1000, 0.5, 5.0), Choice(500, 1.0, 4.0))
    assert apart.of("backward", 0) == (Choice(1000, 3.0, 30.0), Choice(500, 6.0, 24.0))


def test_both_halves_and_a_recomputation_add_up_to_the_backward() -> None:
    inside = Menu(profile(forward=F, backward=B), plan(recompute=True))
    assert inside.of("backward-weight", 0) == (Choice(1000, 1.0, 10.0), Choice(500, 2.0, 8.0))
    assert inside.of("backward-input", 0, rebuilds=True) == (Choice(1000, 2.0, 20.0), Choice(500, 4.0, 16.0))
    apart = Menu(profile(forward=F, backward=B, recompute=R), plan(recompute=True))
    assert apart.of("backward-weight", 0) == (Choice(1000, 1.5, 15.0), Choice(500, 3.0, 12.0))
    assert apart.of("backward-input", 0, rebuilds=True) == (Choice(1000, 2.0, 20.0), Choice(500, 4.0, 16.0))


def test_a_backward_without_a_recomputation_in_it_is_refused() -> None:
    menu = Menu(profile(forward=F, backward={1000: (0.9, 30.0)}), plan(recompute=True))
    with pytest.raises(
        ValueError, match=r"at 1000 MHz takes 0.9 s, 30 J and its forward 1 s, 10 J.*add recompute rows"
    ):
        menu.of("backward", 0)


def test_parts_need_a_common_frequency() -> None:
    menu = Menu(profile(forward=F, backward=B, recompute={700: (1.0, 1.0)}), plan(recompute=True))
    with pytest.raises(ValueError, match="stage 0 has no frequency at which all parts"):
        menu.of("backward", 0, rebuilds=True)


def test_chunks_share_the_profile_of_their_place() -> None:
    stages = tuple(Stage((s, s + 1)) for s in range(4))
    interleaved = Plan(stages, "interleaved", 2, chunks=2)
    menu = Menu(profile(2, forward=F, backward=B), interleaved)
    assert menu.of("forward", 3) == (Choice(1000, 0.5, 5.0), Choice(500, 1.0, 4.0))
    assert Menu(profile(4, forward=F, backward=B), interleaved).of("forward", 3) == (
        Choice(1000, 1.0, 10.0),
        Choice(500, 2.0, 8.0),
    )


def test_a_profile_of_another_pipeline_is_refused() -> None:
    with pytest.raises(ValueError, match="the profile has 3 stages and the plan 1 stages"):
        Menu(profile(3, forward=F, backward=B), plan())
