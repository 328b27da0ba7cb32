"""Events: what a rank tells of its instructions while it runs them, and who listens.

    step_begins(step)
        begin(instruction)    the rank turns to it
        wait(instruction)     the rank stands idle for what the instruction needs: a batch, messages, sums of gradients
        ready(instruction)    that is there
        end(instruction)      the rank is done with it
    step_ends(step)

Every instruction has a begin and an end. A computation and the step have a wait and a ready in between. A receive and a
reduction go on beside others after their end: theirs come later, and say when message or sums were there.

Each event comes with a mark, a moment on the clock that the observer asks for. Observers watch: what acts (a simulated
device, FSDP's gathering) is part of the executor. Knows instructions; nothing of tensors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from halocline.schedule.instruction import Instruction

Mark = Any
"""A moment, in the form of the clock that it was taken from."""


class Marks(Protocol):
    """A clock of a device. On a GPU the host runs ahead: a mark is taken now, and happens later."""

    @property
    def immediate(self) -> bool:
        """Whether a mark has happened when it is taken, so that reading it never waits."""
        ...

    def mark(self) -> Mark: ...

    def seconds(self, mark: Mark) -> float:
        """When it happened, since the epoch; a simulated device's own time begins at 0. Waits until it has happened."""
        ...

    def wait(self, mark: Mark) -> None:
        """Wait until it has happened."""
        ...

    def happened(self, mark: Mark) -> bool: ...

    def anchor(self) -> None:
        """Between steps, when marks have been read: set the clock by the host's."""
        ...


class TimeMarks:
    """Marks of a device that does a thing before the host goes on: a CPU, or a simulated device by its own time."""

    immediate = True

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.mark = now

    def seconds(self, mark: Mark) -> float:
        seconds: float = mark
        return seconds

    def wait(self, mark: Mark) -> None:
        """It has happened."""

    def happened(self, mark: Mark) -> bool:
        return True

    def anchor(self) -> None:
        """It is the host's clock, or has nothing to do with it."""


class Observer:
    """Is told of events. A subclass has the methods that it wants to hear by. `mark` is a moment on its clock `marks`:
    the engine's device's, where it is `timed` and brings none; else None."""

    timed = False
    marks: Marks | None = None

    def step_begins(self, step: int, mark: Mark) -> None: ...

    def begin(self, instruction: Instruction, mark: Mark) -> None: ...

    def wait(self, instruction: Instruction, mark: Mark) -> None: ...

    def ready(self, instruction: Instruction, mark: Mark) -> None: ...

    def end(self, instruction: Instruction, mark: Mark) -> None: ...

    def step_ends(self, step: int, mark: Mark) -> None: ...


class Events:
    """Tells observers. Whoever share a clock share its marks; an event that nobody hears costs a call."""

    def __init__(self, observers: Sequence[Observer] = (), device: Marks | None = None) -> None:
        """`device` is the clock of those that bring none."""
        for observer in observers:
            if not isinstance(observer, Observer):
                raise ValueError(
                    f"an observer is a {type(observer).__name__}: make it a subclass of halocline.Observer, with the "
                    f"methods that it wants to hear by"
                )
            if observer.timed and observer.marks is None:
                observer.marks = device
        self.observers = tuple(observers)
        self.clocks = tuple(dict.fromkeys(o.marks for o in observers if o.marks is not None))
        self.begin, self.wait, self.ready, self.end = map(self._telling, ("begin", "wait", "ready", "end"))
        self._step_begins, self.step_ends = self._telling("step_begins"), self._telling("step_ends")

    def step_begins(self, step: int) -> None:
        for clock in self.clocks:
            clock.anchor()
        self._step_begins(step)

    def now(self) -> Mapping[Marks, Mark]:
        """A moment, for an event that is told of later."""
        return {clock: clock.mark() for clock in self.clocks}

    def _telling(self, event: str) -> Callable[..., None]:
        """What tells of one kind of event: of an instruction or a step, `at` a moment that has passed, or now."""
        heard = [o for o in self.observers if getattr(type(o), event) is not getattr(Observer, event)]
        if not heard:
            return _nobody
        clocks = tuple(dict.fromkeys(o.marks for o in heard if o.marks is not None))
        tell = [(getattr(observer, event), observer.marks) for observer in heard]

        def telling(what: Any, at: Mapping[Marks, Mark] | None = None) -> None:
            marks: Mapping[Any, Mark] = {clock: clock.mark() for clock in clocks} if at is None else at
            for method, clock in tell:
                method(what, marks.get(clock))

        return telling


def _nobody(what: Any, at: Mapping[Marks, Mark] | None = None) -> None:
    """Nobody hears of it."""
