"""Attribution: powers come back from a counter that advances every 100 ms, within error bars that mean something."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halocline.energy.controller import Span
from halocline.energy.device.meter import Reading
from halocline.energy.profile.attribution import WAITING, Attribution, Load, energy_at, load, mean
from halocline.energy.profile.table import Estimate
from halocline.schedule.instruction import Instruction

FORWARD, BACKWARD = Instruction("forward", 0, 1, 0), Instruction("backward", 0, 1, 0)


def run(
    powers: dict[str, float],
    *,
    seconds: dict[str, float],
    steps: int,
    noise: float = 0.0,
    seed: int = 0,
    between: float = 0.0,
    elsewhere: float = 0.0,
) -> tuple[Attribution, float]:
    """Some steps of 6 forwards and backwards with gaps, as a counter sees them that advances every 100 ms; `noise` is
    the relative deviation of each power. Between two steps the device draws `elsewhere` watts for `between` seconds."""
    chance = random.Random(seed)
    found, now, joules, tick = Attribution(), 0.0, 0.0, 0

    def spend(length: float, watts: float, readings: list[Reading]) -> None:
        nonlocal now, joules, tick
        while (tick + 1) * 0.1 <= now + length:
            tick += 1
            readings.append(Reading(tick * 0.1, joules + watts * (tick * 0.1 - now)))
        now, joules = now + length, joules + watts * length

    for _ in range(steps):
        readings: list[Reading] = []
        spend(between, elsewhere, readings)
        begin, spans = now, []
        for number in range(12):
            instruction = FORWARD if number in (0, 1, 3, 5, 7, 9) else BACKWARD
            spend(chance.uniform(0, seconds["gap"]), powers["waiting"], readings)
            start = now
            watts = powers[instruction.kind] * chance.gauss(1.0, noise)
            spend(seconds[instruction.kind], watts, readings)
            spans.append(Span(instruction, start, now, 1200))
        found.add(begin, now, spans, readings)
    return found, joules


SECONDS = {"forward": 0.031, "backward": 0.067, "gap": 0.03}
POWERS = {"forward": 310.0, "backward": 355.0, "waiting": 83.0}


@settings(max_examples=30, deadline=None)
@given(
    forward=st.floats(50, 700),
    backward=st.floats(50, 700),
    waiting=st.floats(20, 150),
    seconds=st.tuples(st.floats(0.005, 0.3), st.floats(0.005, 0.3)),
    seed=st.integers(0, 1000),
)
def test_powers_come_back(
    forward: float, backward: float, waiting: float, seconds: tuple[float, float], seed: int
) -> None:
    powers = {"forward": forward, "backward": backward, "waiting": waiting}
    lengths = {"forward": seconds[0], "backward": seconds[1], "gap": 0.05}
    found = run(powers, seconds=lengths, steps=40, seed=seed)[0].powers()
    for name, true in ((load(Span(FORWARD, 0, 1, 1200)), forward), (load(Span(BACKWARD, 0, 1, 1200)), backward)):
        assert abs(found[name].value - true) < 0.02 * true + 5 * found[name].error
    assert abs(found[WAITING].value - waiting) < 0.02 * waiting + 5 * found[WAITING].error


def test_error_bars_mean_what_they_say() -> None:
    """Over many runs with noise, the mistake in units of the error bar is about one."""
    squares = []
    for seed in range(40):
        found = run(POWERS, seconds=SECONDS, steps=12, noise=0.05, seed=seed)[0].powers()
        for name, estimate in found.items():
            miss = (estimate.value - POWERS[name.kind]) / estimate.error
            assert abs(miss) < 5, (seed, name, estimate)
            if name != WAITING:
                squares.append(miss**2)
    assert 0.4 < sum(squares) / len(squares) < 2.0


def test_more_steps_make_smaller_error_bars() -> None:
    name = load(Span(FORWARD, 0, 1, 1200))
    few = run(POWERS, seconds=SECONDS, steps=5, noise=0.05)[0].powers()[name].error
    many = run(POWERS, seconds=SECONDS, steps=80, noise=0.05)[0].powers()[name].error
    assert many < few / 2


def test_what_cannot_be_told_apart_gets_the_mean_and_says_so() -> None:
    """Instructions in lockstep with the counter: every interval holds as much of one as of the other."""
    found = Attribution()
    for step in range(50):
        begin = 0.1 * step
        spans = [Span(FORWARD, begin, begin + 0.05, 900), Span(BACKWARD, begin + 0.05, begin + 0.1, 900)]
        found.add(begin, begin + 0.1, spans, [Reading(begin, 30.0 * step)])
    powers = found.powers()
    forward, backward = powers[Load(1, "forward", 900)], powers[Load(1, "backward", 900)]
    assert forward.value == pytest.approx(300, rel=0.01)
    assert backward.value == pytest.approx(300, rel=0.01)
    assert forward.error > 100 and backward.error > 100


def test_frequencies_are_told_apart() -> None:
    found = Attribution()
    time, joules = 0.0, 0.0
    for step in range(60):
        frequency, watts = (1400, 400.0) if step % 2 else (700, 150.0)
        wait = 0.01 * (step % 5)
        end = time + 0.13 + wait
        joules += watts * 0.13 + 80.0 * wait
        found.add(time, end, [Span(FORWARD, time, time + 0.13, frequency)], [Reading(end, joules)])
        time = end
    powers = found.powers()
    assert powers[Load(1, "forward", 1400)].value == pytest.approx(400, rel=0.001)
    assert powers[Load(1, "forward", 700)].value == pytest.approx(150, rel=0.001)
    assert powers[WAITING].value == pytest.approx(80, rel=0.001)


def test_what_happens_between_steps_is_left_out() -> None:
    """An evaluation between two steps draws power of its own, which must not be taken for waiting."""
    quiet = run(POWERS, seconds=SECONDS, steps=30)[0].powers()
    loud = run(POWERS, seconds=SECONDS, steps=30, between=1.7, elsewhere=500.0)[0].powers()
    for name in quiet:
        assert loud[name].value == pytest.approx(quiet[name].value, rel=0.05)


def test_nothing_is_known_before_the_first_equation() -> None:
    found = Attribution()
    assert not found.powers()
    found.add(0.0, 0.3, [Span(FORWARD, 0.0, 0.3, 900)], [Reading(0.1, 10.0), Reading(0.2, 40.0)])
    powers = found.powers()
    unknown = powers[Load(5, "backward", 100)]
    assert unknown == Estimate(pytest.approx(300.0), pytest.approx(300.0)), "only the device's mean power is known"


def test_products_and_means_carry_errors() -> None:
    product = Estimate(300.0, 3.0).times(Estimate(0.05, 0.001))
    assert product.value == pytest.approx(15.0)
    assert product.error == pytest.approx((0.15**2 + 0.3**2) ** 0.5)
    assert mean([1.0, 2.0, 3.0]) == Estimate(2.0, pytest.approx(1 / 3**0.5))
    assert mean([4.0]).error == 4.0, "one measurement tells nothing of its error"


def test_the_counter_between_two_advances() -> None:
    readings = [Reading(1.0, 10.0), Reading(1.1, 40.0), Reading(1.2, 50.0)]
    assert energy_at(readings, 1.05) == pytest.approx(25.0)
    assert energy_at(readings, 1.15) == pytest.approx(45.0)
    assert energy_at(readings, 1.25) == pytest.approx(55.0)
    assert energy_at(readings, 0.9) == pytest.approx(-20.0)
