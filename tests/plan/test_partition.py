"""Partitions: each method's meaning, and the exact ones against every cut there is."""

import time
from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.plan.partition import Ranges, partition

BERT = ["embedding"] + ["block"] * 24 + ["head"]
GPT = ["embedding"] * 2 + ["block"] * 32 + ["head"]
T5 = ["embedding"] + ["encoder"] * 24 + ["decoder"] * 48 + ["head"]


def sizes(ranges: Ranges) -> list[int]:
    return [stop - first for first, stop in ranges]


def every_cut(layers: int, stages: int) -> Iterator[Ranges]:
    for cut in combinations(range(1, layers), stages - 1):
        yield tuple(zip((0, *cut), (*cut, layers)))


def loads(weights: Sequence[float], ranges: Ranges) -> list[float]:
    return [sum(weights[first:stop]) for first, stop in ranges]


def assert_covers(ranges: Ranges, layers: int, stages: int) -> None:
    assert len(ranges) == stages
    assert [first for first, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == layers
    assert min(sizes(ranges)) >= 1


@st.composite
def weighted(draw: st.DrawFn) -> tuple[list[int], int]:
    weights = draw(st.lists(st.integers(0, 20), min_size=1, max_size=9))
    return weights, draw(st.integers(1, len(weights)))


@given(weighted())
def test_profile_is_the_best_of_every_cut(case: tuple[list[int], int]) -> None:
    weights, stages = case
    found = partition("profile", len(weights), stages, costs=weights)
    assert_covers(found, len(weights), stages)

    def score(ranges: Ranges) -> tuple[float, float]:
        load = loads(weights, ranges)
        return max(load), sum(value**2 for value in load)

    assert score(found) == min(score(cut) for cut in every_cut(len(weights), stages))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9), st.data())
def test_parameters_takes_any_numbers(weights: list[float], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(weights)))
    found = partition("parameters", len(weights), stages, parameters=weights)
    assert_covers(found, len(weights), stages)
    best = min(max(loads(weights, cut)) for cut in every_cut(len(weights), stages))
    assert max(loads(weights, found)) == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(weighted())
def test_autopipe_is_profile(case: tuple[list[int], int]) -> None:
    weights, stages = case
    made = [partition(name, len(weights), stages, costs=weights) for name in ("profile", "autopipe")]
    assert made[0] == made[1]


@pytest.mark.parametrize("weights", [[1.0] * 1000, [1000.0] + [1.0] * 999, [0.0] * 999 + [5.0]])
def test_a_thousand_layers_on_sixty_four_stages_take_a_moment(weights: list[float]) -> None:
    start = time.process_time()
    found = partition("profile", 1000, 64, costs=weights)
    assert time.process_time() - start < 30  # 0.2 to 0.5 s on a plain core; a slow method takes minutes
    assert_covers(found, 1000, 64)
    assert max(loads(weights, found)) == max(16.0 if len(set(weights)) == 1 else 0.0, *weights)


def test_equal_costs_are_spread_evenly() -> None:
    assert sorted(sizes(partition("profile", 10, 4, costs=[1] * 10))) == [2, 2, 3, 3]


@given(st.integers(1, 60), st.data())
def test_uniform_floor_differs_by_one_and_ends_heavy(layers: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, layers))
    found = partition("uniform_floor", layers, stages)
    assert_covers(found, layers, stages)
    assert sizes(found) == sorted(sizes(found))
    assert max(sizes(found)) - min(sizes(found)) <= 1


@given(st.integers(1, 60), st.data())
def test_uniform_is_ceil_and_the_rest_or_refused(layers: int, data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, layers))
    size = -(-layers // stages)
    if size * (stages - 1) >= layers:
        with pytest.raises(ValueError, match="use uniform_floor") as caught:
            partition("uniform", layers, stages)
        # The number of stages it proposes works.
        proposed = int(str(caught.value).split("or ")[-1].split()[0])
        assert_covers(partition("uniform", layers, proposed), layers, proposed)
    else:
        found = partition("uniform", layers, stages)
        assert_covers(found, layers, stages)
        assert set(sizes(found)[:-1]) <= {size}


@pytest.mark.parametrize("method", ["4,3,5", "balance:4,3,5", (4, 3, 5), [4, 3, 5], "4, 3, 5"])
def test_balance(method: str | Sequence[int]) -> None:
    assert partition(method, 12, 3) == ((0, 4), (4, 7), (7, 12))


def test_balance_of_one_stage() -> None:
    assert partition("12", 12, 1) == ((0, 12),)


def test_custom() -> None:
    assert partition("custom:0,8,14,20,26", 26, 4) == ((0, 8), (8, 14), (14, 20), (20, 26))


@pytest.mark.parametrize(
    ("kinds", "stages", "expected"),
    [
        (BERT, 4, [7, 6, 6, 7]),
        (BERT, 8, [4, 3, 3, 3, 3, 3, 3, 4]),
        (GPT, 8, [6, 4, 4, 4, 4, 4, 4, 5]),
        (BERT, 5, [1 + 5, 5, 5, 5, 4 + 1]),
        (T5, 4, [13, 12, 24, 25]),
        (T5, 8, [7, 6, 6, 6, 12, 12, 12, 13]),
        (["embedding", "encoder", "head", "embedding", "decoder", "head"], 2, [3, 3]),
        (["decoder"] * 6, 3, [2, 2, 2]),
    ],
)
def test_uniform_transformer(kinds: list[str], stages: int, expected: list[int]) -> None:
    found = partition("uniform_transformer", len(kinds), stages, kinds=kinds)
    assert_covers(found, len(kinds), stages)
    assert sizes(found) == expected
