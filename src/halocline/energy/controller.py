"""The controller: the observer of the engine that has the clock set ahead of each instruction, notes when each was at
work, and hands spans and steps to whoever listens. Which frequencies are played, a player says.

    step_begins    ask the player what to play; ask the clock's thread for the first frequency
    ready          what an instruction waited for is no part of its work
    end            ask for the next instruction's frequency
    step_ends      hand the step and the counter's advances to the listeners

It keeps marks and hands on numbers: it never waits for a driver, a device or a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from halocline.energy.device.clock import GuardedClock, Setter
from halocline.energy.device.meter import CounterWatch, Reading
from halocline.schedule.events import Mark, Marks, Observer
from halocline.schedule.instruction import COMPUTE, FORWARD, STEP, Instruction

BATCH_INPUT = "batch-input"
"""A rank of the first stage takes a microbatch of the batch: told apart from the forward that follows."""

LEAVE = 0
"""A frequency that means: leave the clock as it is."""

Frequencies = Sequence[int]
"""MHz of each of a rank's computations, in order."""


class Span(NamedTuple):
    """One instruction at work, without what it waited for."""

    instruction: Instruction
    start: float
    """Seconds of the device's time."""
    end: float
    frequency: int | None = None
    """MHz that was set; None for the device's own choice."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


class DeviceStep(NamedTuple):
    """What a device did in one step."""

    number: int
    begin: float
    end: float
    spans: tuple[Span, ...]
    """Its computations and its update, in order."""
    readings: tuple[Reading, ...]
    """The counter's advances since the step before; none without a meter."""


class Listener:
    """Is told what was done. A subclass has the methods that it wants to hear by."""

    def span(self, span: Span) -> None:
        """As soon as it is known."""

    def step(self, step: DeviceStep) -> None: ...

    def close(self) -> None: ...


class Player(Listener):
    """Says what is played, and is told what was done."""

    def play(self, step: int) -> Frequencies | None:
        """Before a step: what to run at; None for the device's own clock."""
        raise NotImplementedError


class Controller(Observer):
    """The controller of one rank."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        marks: Marks,
        *,
        sampler: CounterWatch | None = None,
        clock: GuardedClock | None = None,
        player: Player | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """`instructions` is the rank's list."""
        self._count = sum(i.kind in COMPUTE for i in instructions)
        self.marks: Marks = marks
        self._sampler, self._clock, self._player = sampler, clock, player
        self._listeners = tuple(listeners) if player is None else (player, *listeners)
        self._setter = Setter(clock, marks) if clock is not None and player is not None else None
        self._frequencies: Frequencies | None = None
        self._played = 0
        self._frequency: int | None = None
        """What was asked for last."""
        self._begin: Mark = None
        self._start: Mark = None
        self._waited: tuple[Mark, Mark] | None = None
        self._waits: Mark = None
        self._rows: list[tuple[Instruction, Mark, tuple[Mark, Mark] | None, Mark, int | None]] = []
        self._spans: list[Span] = []

    # -- what it is told -------------------------------------------------------------------------------------------

    def step_begins(self, step: int, mark: Mark) -> None:
        if self._player is not None:
            self._frequencies = self._player.play(step)
            if self._frequencies is not None and len(self._frequencies) != self._count:
                raise ValueError(
                    f"{len(self._frequencies)} frequencies for a rank with {self._count} computations: use a plan made "
                    f"for this schedule"
                )
        self._played, self._rows, self._spans = 0, [], []
        self._begin = mark
        self._ask(mark)

    def begin(self, instruction: Instruction, mark: Mark) -> None:
        self._start, self._waited = mark, None

    def wait(self, instruction: Instruction, mark: Mark) -> None:
        if _computes(instruction):
            self._waits = mark

    def ready(self, instruction: Instruction, mark: Mark) -> None:
        if not _computes(instruction):
            return
        self._waited = self._waits, mark
        if self._setter is not None and self.marks.immediate:
            self._setter.settle()  # the work begins here, and not before its clock is set

    def end(self, instruction: Instruction, mark: Mark) -> None:
        if not _computes(instruction):
            return
        self._rows.append((instruction, self._start, self._waited, mark, self._frequency))
        if instruction.kind != STEP:
            self._played += 1
            self._ask(mark)
        if self.marks.immediate:
            self._resolve()

    def step_ends(self, step: int, mark: Mark) -> None:
        end = self.marks.seconds(mark)
        self._resolve()
        readings = tuple(self._sampler.take()) if self._sampler is not None else ()
        done = DeviceStep(step, self.marks.seconds(self._begin), end, tuple(self._spans), readings)
        for listener in self._listeners:
            listener.step(done)

    def close(self) -> None:
        """Give the clock back and end what runs beside."""
        for part in (self._setter, self._clock, self._sampler, *self._listeners):
            if part is not None:
                part.close()
        self._setter = None  # what is done from now on is at the device's own clock

    # -- what it does ----------------------------------------------------------------------------------------------

    def _ask(self, mark: Mark) -> None:
        """Ask for the frequency of the computation that comes next, from this mark on."""
        if self._setter is None or self._played >= self._count:
            return
        wanted = None if self._frequencies is None else self._frequencies[self._played]
        if wanted != LEAVE:
            self._setter.at(mark, wanted)
            self._frequency = wanted

    def _resolve(self) -> None:
        """Marks that have happened become spans."""
        refused = self._clock is None or self._clock.refused
        for instruction, start, waited, end, frequency in self._rows:
            seconds = self.marks.seconds
            begin, stop = seconds(start), seconds(end)
            if waited is not None:
                begin += seconds(waited[1]) - seconds(waited[0])
            span = Span(instruction, begin, stop, None if refused else frequency)
            self._spans.append(span)
            if instruction.kind == FORWARD and instruction.stage == 0 and waited is not None:
                self._tell(
                    span._replace(
                        instruction=instruction._replace(kind=BATCH_INPUT),
                        start=seconds(waited[0]),
                        end=seconds(waited[1]),
                    )
                )
            self._tell(span)
        self._rows = []

    def _tell(self, span: Span) -> None:
        for listener in self._listeners:
            listener.span(span)


def _computes(instruction: Instruction) -> bool:
    return instruction.kind in COMPUTE or instruction.kind == STEP
