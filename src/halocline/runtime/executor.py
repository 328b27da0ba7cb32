"""The executor: runs a rank's instruction list, one instruction after the other, on real tensors.

It knows the instruction set and nothing of how schedules are made. Messages start where the list says and are waited
for by whoever needs them; buffers live from their receive to their free.

    receive activation    post the receive                            (no wait)
    forward               wait for the activation, assemble it, run the layers
    send activation       pack each peer's boxes, start the message   (no wait)
    receive gradient      post the receive
    backward              wait for the gradient, run autograd
    send gradient
    free                  drop the microbatch, or let a sent buffer go (a few may still travel)
    reduce                start summing the stage's gradients
    step                  wait for the sums, merge statistics, update
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from halocline.plan.layout import ACTIVATION, GRADIENT, Layout
from halocline.runtime.batch import Microbatches
from halocline.runtime.boundary.message import messages_by
from halocline.runtime.boundary.shapes import Detached, Shapes
from halocline.runtime.guards.errors import OutOfMemory, is_shortage
from halocline.runtime.guards.shared import Common
from halocline.runtime.guards.unchanged import FirstLooks
from halocline.runtime.in_flight import InFlight, assembled
from halocline.runtime.layers import parameters_of
from halocline.runtime.parallel.reduction import Reduction, parts_of_team
from halocline.runtime.parallel.shard import is_split
from halocline.runtime.parallel.sharding import Sharding
from halocline.runtime.parallel.statistics import RunningStatistics, frozen, tracked
from halocline.runtime.processes.lost import is_lost
from halocline.runtime.processes.world import World
from halocline.runtime.stage import Held, StageRunner
from halocline.schedule.events import Events
from halocline.schedule.instruction import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FREE,
    RECEIVE,
    RECOMPUTE,
    REDUCE,
    SEND,
    STEP,
    Instruction,
)
from halocline.tiling.exchanger import ExchangeTimeout
from halocline.tiling.patchwork import to_device


class Simulated(Protocol):
    """A device that is not there: it lets its own time pass where a real one works."""

    def step_begins(self, step: int) -> None: ...

    def begin(self, instruction: Instruction) -> None: ...

    def ready(self, instruction: Instruction) -> None:
        """What a computation or the step needs is there."""
        ...

    def end(self, instruction: Instruction) -> None: ...


class Executor:
    """Runs steps of one schedule on one rank."""

    def __init__(
        self,
        world: World,
        layout: Layout,
        instructions: Sequence[Instruction],
        runners: dict[tuple[int, int], StageRunner],
        groups: dict[int, tuple[int, ...]],
        statistics: dict[int, RunningStatistics],
        shapes: Shapes,
        looks: FirstLooks | None = None,
        *,
        events: Events | None = None,
        sharding: Sharding | None = None,
        simulated: Simulated | None = None,
    ) -> None:
        self.world, self.layout, self.instructions = world, layout, instructions
        self.runners = runners
        """(pipe, stage) -> its runner on this rank."""
        self.groups = groups
        """Stage -> the ranks that share its parameters."""
        self.statistics = statistics
        """Stage -> its running statistics, where updates do not come in the order of one device."""
        self.events = events or Events()
        self.sharding, self.simulated = sharding, simulated
        self.replica, self.local = divmod(world.rank, layout.ranks_per_replica)
        self.shapes, self.messages = shapes, messages_by(shapes)
        self.detached = Detached(world, layout)
        self.current: Instruction | None = None
        self._handlers: dict[str, Callable[[Instruction], None]] = {
            FORWARD: self._forward,
            RECOMPUTE: self._recompute,
            BACKWARD: self._backward,
            BACKWARD_INPUT: self._backward,
            BACKWARD_WEIGHT: self._backward_weight,
            SEND: self._send,
            RECEIVE: self._receive,
            FREE: self._free,
            REDUCE: self._reduce,
            STEP: self._step,
        }
        self._losses = sum(i.kind == FORWARD and runners[i.pipe, i.stage].loss is not None for i in instructions)
        """How many losses this rank makes in a step."""
        self._looks = looks or FirstLooks(set(), set(), set(), Common())
        self._same_ranks = {
            (pipe, stage)
            for pipe, stage in runners
            if (pipe, stage - 1) in runners and not layout.links(pipe, stage - 1)
        }
        """(pipe, stage) that get their input from this very rank, without a message."""
        self._begin(Microbatches(layout.plan, self.replica, None, None, 0, forwards=True), lambda: None)

    def run(self, work: Microbatches, finish: Callable[[], None]) -> None:
        """One step; `finish` is called at the step instruction, when all gradients are summed."""
        self._begin(work, finish)
        if not self._losses:
            work.complete()
        events, simulated = self.events, self.simulated
        try:
            if simulated is not None:
                simulated.step_begins(work.number)
            events.step_begins(work.number)
            for instruction in self.instructions:
                self.current = instruction
                if simulated is not None:
                    simulated.begin(instruction)
                events.begin(instruction)
                self._handlers[instruction.kind](instruction)
                if simulated is not None:
                    simulated.end(instruction)
                events.end(instruction)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, ExchangeTimeout) or is_lost(error):
                raise self.world.lost(f"rank {self.world.rank} waits in {self.current} for its team", error) from error
            if not is_shortage(error):
                raise
            raise OutOfMemory(self) from error
        self.current = None
        events.step_ends(work.number)

    def _wait(self) -> None:
        """The instruction under way begins to get what it needs."""
        assert self.current is not None
        self.events.wait(self.current)

    def _ready(self) -> None:
        """It has that."""
        assert self.current is not None
        if self.simulated is not None:
            self.simulated.ready(self.current)
        self.events.ready(self.current)

    def _at_once(self) -> None:
        """It needs nothing that is not there."""
        self._wait()
        self._ready()

    def _begin(self, work: Microbatches, finish: Callable[[], None]) -> None:
        self.work, self.finish = work, finish
        self.held: dict[tuple[int, int, int], Held] = {}
        self.flight = InFlight(self.world, self.layout, self.messages, self.events, work.samples)
        self.reductions: dict[Instruction, Reduction] = {}

    # -- messages ------------------------------------------------------------------------------------------------

    def _send(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, what, _ = instruction

        def tensors() -> list[Tensor]:
            if what == ACTIVATION:
                return [t.detach() for t in self.held[pipe, stage, microbatch].outputs]
            held = self.held[pipe, stage + 1, microbatch]
            return [torch.zeros_like(t) if g is None else g for t, g in zip(held.inputs, held.input_gradients)]

        self.flight.send(instruction, tensors)

    def _receive(self, instruction: Instruction) -> None:
        self.flight.receive(instruction)

    def _received(
        self, what: str, pipe: int, stage: int, microbatch: int, room: Callable[[], list[Tensor]]
    ) -> list[Any]:
        """What other ranks send over the boundary below a stage; put together in `room`, where it has to be."""
        self._wait()
        arrived = self.flight.arrived((pipe, stage, microbatch, what), self.current)
        self._ready()
        return assembled(arrived, what, room)

    def _free(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, peer = instruction
        if peer < 0:
            del self.held[pipe, stage, microbatch]
        else:
            self.flight.free(instruction, self.current)

    # -- compute -------------------------------------------------------------------------------------------------

    def _inputs(self, pipe: int, stage: int, microbatch: int) -> Held:
        runner = self.runners[pipe, stage]
        samples = self.work.samples[microbatch]
        received = self.shapes.received(stage, samples)
        if stage == 0:
            self._wait()
            whole = self.work.inputs(microbatch)
            locals_ = [t[tuple(slice(a, b) for a, b in runner.origin(c))] for t, c in zip(whole, received)]
            copied = runner.exchanger is not None
            inputs = [to_device(t.detach(), self.world.device, copied) for t in locals_]
            self._ready()
        elif (pipe, stage) in self._same_ranks:
            self._at_once()
            above = self.held[pipe, stage - 1, microbatch]
            inputs = [t.detach() for t in above.outputs]  # the same ranks hold both stages: handed over as it is
        else:

            def room() -> list[Tensor]:
                return [crossing.empty(runner.origin(crossing), self.world.device) for crossing in received]

            inputs = self._received(ACTIVATION, pipe, stage - 1, microbatch, room)
        if runner.options.channels_last and not stage:
            inputs = [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in inputs]
        if stage:
            inputs = [t.requires_grad_() if c.differentiable else t for t, c in zip(inputs, received)]
        held = Held(inputs, received)
        if runner.loss is not None:
            held.target, held.measures = self.work.targets(microbatch), self.work.measures
        return held

    def _forward(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        held = self.held[pipe, stage, microbatch] = self._inputs(pipe, stage, microbatch)
        keep = not self.layout.plan.stages[stage].recompute
        writing = self._looks.writing(stage, self.runners[pipe, stage].layers, self.work.number)
        with self._steady(pipe, stage, microbatch), writing:
            loss = self._run(held, pipe, stage, microbatch, keep)
        if loss is not None:
            self.work.losses[microbatch] = loss
            if held.sums is not None:
                self.work.sums[microbatch] = held.sums
            if len(self.work.losses) == self._losses:
                self.work.complete()

    @contextmanager
    def _steady(self, pipe: int, stage: int, microbatch: int, backward: bool = False) -> Iterator[None]:
        """A forward or a backward that changes what one device's would, and as if in the same order."""
        layers, samples, counted = self.runners[pipe, stage].layers, self.work.samples[microbatch], None
        if backward:
            counted = self.statistics[stage].modules if stage in self.statistics else []
        collecting: AbstractContextManager[None] = nullcontext()
        if stage in self.statistics:
            speaks = self.local in self.layout.team(pipe, stage)[: self.layout.plan.stages[stage].tensor]
            collecting = self.statistics[stage].collecting(self.work.first + microbatch, speaks, backward)
        with collecting, self._looks.over(stage, layers, samples, counted):
            yield

    def _run(self, held: Held, pipe: int, stage: int, microbatch: int, grad: bool) -> Tensor | None:
        share = self.work.samples[microbatch] / self.work.total
        return self.runners[pipe, stage].forward(held, self.work.number, self.work.first + microbatch, share, grad)

    def _recompute(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        if instruction is self.current:
            self._at_once()
        held = self.held[pipe, stage, microbatch]
        layers = self.runners[pipe, stage].layers
        with frozen(tracked(layers)), self._looks.over(stage, layers, self.work.samples[microbatch]):
            self._run(held, pipe, stage, microbatch, True)

    def _gradients(self, pipe: int, stage: int, microbatch: int) -> Held:
        """The microbatch with its graph and the gradients of its outputs."""
        held = self.held[pipe, stage, microbatch]
        runner = self.runners[pipe, stage]
        if not held.recorded:
            self._recompute(Instruction(RECOMPUTE, pipe, stage, microbatch))
        if runner.loss is None and not held.gradients:
            found = self._received(
                GRADIENT, pipe, stage, microbatch, lambda: [torch.zeros_like(t) for t in held.outputs]
            )
            held.gradients = self.detached.drop(pipe, stage + 1, found)
        else:
            self._at_once()
        return held

    def _backward(self, instruction: Instruction) -> None:
        """A whole backward, or the half that finds the inputs' gradients."""
        kind, pipe, stage, microbatch, _, _ = instruction
        if self.sharding is not None:
            self.sharding.prepare(instruction)
        held, runner = self._gradients(pipe, stage, microbatch), self.runners[pipe, stage]
        with self._steady(pipe, stage, microbatch, backward=True):
            if kind == BACKWARD:
                runner.backward(held)
            else:
                runner.backward_input(held)
        if (pipe, stage) in self._same_ranks:  # and no message is sent
            self.held[pipe, stage - 1, microbatch].gradients = list(held.input_gradients)
        elif stage:
            self.detached.tell(pipe, stage, held.input_gradients)

    def _backward_weight(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        self._at_once()
        with self._steady(pipe, stage, microbatch, backward=True):
            self.runners[pipe, stage].backward_weight(self.held[pipe, stage, microbatch])

    # -- the end of a step ---------------------------------------------------------------------------------------

    def _reduce(self, instruction: Instruction) -> None:
        stage = instruction.stage
        runners = [runner for (_, s), runner in self.runners.items() if s == stage]
        # Those that are divided were summed when their gradients were divided.
        parameters = [p for p in parameters_of(runners[0].layers) if not is_split(p, "data")]
        parts_of_team(parameters, list(dict.fromkeys(r.exchanger for r in runners if r.exchanger is not None)))
        reduction = self.reductions[instruction] = Reduction(
            parameters, self.world, self.groups[stage], str(instruction)
        )
        if self.events.clocks:
            reduction.watch(self.events.now)

    def _step(self, instruction: Instruction) -> None:
        self._wait()
        self.flight.settle(self.current)
        for started, reduction in self.reductions.items():
            self.events.wait(started)
            reduction.finish()
            self.events.ready(started, reduction.ended())
        self._ready()
        self.finish()
