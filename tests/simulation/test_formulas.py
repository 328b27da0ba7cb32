"""The simulator against the published formulas: D stages, N microbatches, F and B the times of forward and backward."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.plan import Plan, Stage
from halocline.schedule import generate
from halocline.simulation import Costs, Simulation, simulate

DEPTH = st.integers(1, 8)
COUNT = st.integers(1, 16)
TIME = st.integers(1, 5)
many = settings(max_examples=40, deadline=None)


def run(
    schedule: str, stages: int, microbatches: int, forward: float = 1, backward: float = 2, **fields: Any
) -> Simulation:
    costs = {name: fields.pop(name) for name in ("weight", "recompute") if name in fields}
    plan = Plan.uniform(stages, schedule=schedule, microbatches=microbatches, **fields)
    return simulate(generate(plan), Costs(forward, backward, **costs))


@given(DEPTH, COUNT, TIME, TIME)
@many
def test_gpipe(d: int, n: int, f: int, b: int) -> None:
    result = run("gpipe", d, n, f, b)
    assert result.makespan == (n + d - 1) * (f + b)
    assert result.bubble == pytest.approx((d - 1) / (n + d - 1))
    assert result.peak_activations == (n,) * d


@given(DEPTH, COUNT, TIME, TIME)
@many
def test_1f1b_has_the_bubble_of_gpipe_and_holds_less(d: int, n: int, f: int, b: int) -> None:
    result = run("1f1b", d, n, f, b)
    assert result.makespan == (n + d - 1) * (f + b)
    assert result.bubble == pytest.approx((d - 1) / (n + d - 1))
    assert result.peak_activations == tuple(min(d - s, n) for s in range(d))


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4), TIME, TIME)
@many
def test_interleaved_divides_the_bubble_by_its_chunks(d: int, rounds: int, v: int, f: int, b: int) -> None:
    n = d * rounds
    result = run("interleaved", d * v, n, f, b, chunks=v)
    assert result.bubble == pytest.approx((d - 1) / (v * n + d - 1))
    assert sum(result.busy) == pytest.approx(d * n * (f + b)), "the same work as one place per stage"


@given(st.integers(1, 6), st.integers(0, 8), TIME)
@many
def test_zero_bubble(d: int, more: int, f: int) -> None:
    """Where weight and input halves take as long as the forward, the schedule's own case."""
    n = d + more
    result = run("zb-h1", d, n, f, 2 * f, weight=f)
    assert result.makespan == pytest.approx(n * 3 * f + (d - 1) * (f + 2 * f - 2 * f))
    assert max(result.peak_activations) <= d


@pytest.mark.parametrize(("f", "b", "w"), [(1, 2, 1), (1, 1, 0.5), (2, 3, 1), (3, 4, 2)])
def test_zero_bubble_waits_for_forward_and_input_half_less_the_weight_half(f: float, b: float, w: float) -> None:
    result = run("zb-h1", 4, 8, f, b, weight=w)
    assert result.makespan == pytest.approx(8 * (f + b) + 3 * (f + b - 2 * w))


@given(DEPTH, st.integers(1, 8), TIME, st.integers(0, 5))
@many
def test_gems_holds_one_activation(d: int, pairs: int, f: int, more: int) -> None:
    b, k = f + more, 2 * pairs
    result = run("gems", d, k, f, b, pipes=2)
    assert result.makespan == d * (f + b) + (k - 1) * (d * b + f)
    assert result.peak_activations == (1,) * d


def test_gems_worked_example() -> None:
    assert run("gems", 4, 8, pipes=2).makespan == 75
    assert run("layer", 4, 8).makespan == 96


@given(DEPTH, COUNT, TIME, TIME)
@many
def test_layer_parallelism_keeps_one_rank_busy(d: int, n: int, f: int, b: int) -> None:
    result = run("layer", d, n, f, b)
    assert result.makespan == n * d * (f + b)
    assert result.bubble == pytest.approx(1 - 1 / d)
    assert result.peak_activations == (1,) * d


def test_chimera_worked_examples() -> None:
    assert run("chimera", 4, 8, 1, 1, pipes=2).bubble == pytest.approx(0.111, abs=5e-4)
    assert run("chimera", 4, 8, 1, 2, pipes=2).bubble == pytest.approx(0.172, abs=5e-4)
    assert run("1f1b", 4, 8, 1, 2).bubble == pytest.approx(0.273, abs=5e-4)


@given(st.sampled_from([2, 4, 6, 8]), st.integers(1, 4))
@many
def test_chimera_with_equal_times(d: int, rounds: int) -> None:
    n = d * rounds
    result = run("chimera", d, n, 1, 1, pipes=2)
    assert result.bubble == pytest.approx((d - 2) / (2 * n + d - 2))
    assert max(result.peak_activations) <= d


@given(st.integers(2, 6), st.integers(1, 6))
@many
def test_capped_at_one_with_two_pipes_is_no_slower_than_gems(d: int, pairs: int) -> None:
    capped = run("capped", d, 2 * pairs, pipes=2, cap=1)
    assert capped.makespan <= run("gems", d, 2 * pairs, pipes=2).makespan
    assert capped.peak_activations == (1,) * d


@given(st.integers(1, 6), COUNT)
@many
def test_capped_at_the_depth_with_one_pipe_is_as_fast_as_1f1b(d: int, n: int) -> None:
    capped = run("capped", d, n, cap=d)
    assert capped.makespan == run("1f1b", d, n).makespan
    assert max(capped.peak_activations) <= d


@given(st.integers(1, 6), COUNT, st.integers(1, 6))
@many
def test_capped_stays_under_its_cap(d: int, n: int, cap: int) -> None:
    assert max(run("capped", d, n, cap=cap).peak_activations) <= cap


def recomputing(schedule: str, d: int, n: int) -> Simulation:
    stages = tuple(Stage((s, s + 1), recompute=s < d - 1) for s in range(d))
    return simulate(generate(Plan(stages, schedule, n)), Costs(1, 2))


@given(st.integers(2, 8), COUNT)
@many
def test_early_recompute_hides_recomputation_in_the_bubble(d: int, n: int) -> None:
    early, late = recomputing("early-recompute-1f1b", d, n), recomputing("1f1b", d, n)
    assert early.makespan < late.makespan
    assert sum(early.busy) == sum(late.busy)
    assert max(early.peak_activations) == max(late.peak_activations) == 1
    assert early.peak_inputs == (*(min(d - s, n) for s in range(d - 1)), 0)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "gems"])
def test_a_slow_stage_sets_the_pace(schedule: str) -> None:
    plan = Plan.uniform(4, schedule=schedule, microbatches=16, pipes=2 if schedule == "gems" else 1)
    result = simulate(generate(plan), Costs((1, 1, 3, 1), (2, 2, 6, 2)))
    pace = 16 * 9 if schedule != "gems" else 0
    assert result.makespan >= pace
    assert result.busy == ((48, 48, 144, 48) if schedule != "gems" else (48, 96, 96, 48))
