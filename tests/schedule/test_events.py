"""Observers are told of what they want to hear, with marks of the clock that they asked for."""

from __future__ import annotations

from typing import Any

import pytest

from halocline.schedule.events import Events, Marks, Observer, TimeMarks
from halocline.schedule.instruction import FORWARD, Instruction

FIRST = Instruction(FORWARD, 0, 0, 0)


class Counting(TimeMarks):
    """A clock that counts how often it is looked at, and how often it is set."""

    def __init__(self) -> None:
        self.looks = self.sets = 0
        super().__init__(self._look)

    def _look(self) -> float:
        self.looks += 1
        return float(self.looks)

    def anchor(self) -> None:
        self.sets += 1


class Hearing(Observer):
    def __init__(self, marks: Marks | None = None) -> None:
        self.marks = marks
        self.heard: list[tuple[str, Any, Any]] = []

    def step_begins(self, step: int, mark: Any) -> None:
        self.heard.append(("step", step, mark))

    def begin(self, instruction: Instruction, mark: Any) -> None:
        self.heard.append(("begin", instruction, mark))

    def ready(self, instruction: Instruction, mark: Any) -> None:
        self.heard.append(("ready", instruction, mark))


def test_who_shares_a_clock_shares_its_marks() -> None:
    clock = Counting()
    first, second, without = Hearing(clock), Hearing(clock), Hearing()
    events = Events([first, second, without])
    events.step_begins(7)
    events.begin(FIRST)
    assert first.heard == second.heard == [("step", 7, 1.0), ("begin", FIRST, 2.0)]
    assert without.heard == [("step", 7, None), ("begin", FIRST, None)]
    assert clock.sets == 1


def test_no_mark_is_taken_for_what_nobody_hears() -> None:
    clock = Counting()
    events = Events([Hearing(clock)])
    events.wait(FIRST)
    events.end(FIRST)
    events.step_ends(0)
    assert clock.looks == 0


def test_an_event_may_be_told_of_later() -> None:
    clock = Counting()
    hearing = Hearing(clock)
    events = Events([hearing])
    then = events.now()
    events.begin(FIRST)
    events.ready(FIRST, then)
    assert hearing.heard == [("begin", FIRST, 2.0), ("ready", FIRST, 1.0)]


def test_who_is_timed_and_brings_no_clock_has_the_devices() -> None:
    class Timed(Hearing):
        timed = True

    clock, own = Counting(), Counting()
    first, second = Timed(), Timed(own)
    events = Events([first, second, Hearing()], clock)
    events.begin(FIRST)
    assert first.marks is clock and second.marks is own
    assert first.heard == second.heard == [("begin", FIRST, 1.0)]


def test_an_observer_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an observer is a int: make it a subclass of halocline\.Observer"):
        Events([3])  # type: ignore[list-item]
