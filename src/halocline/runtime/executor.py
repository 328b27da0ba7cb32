"""The executor: runs a rank's instruction list, one instruction after the other, on real tensors.

It knows the instruction set and nothing of how schedules are made. Messages start where the list says and are waited
for by whoever needs them; buffers live from their receive to their free.

    receive activation    post the receive                            (no wait)
    forward               wait for the activation, assemble it, run the layers
    send activation       pack each peer's boxes, start the message   (no wait)
    receive gradient      post the receive
    backward              wait for the gradient, run autograd
    send gradient
    free                  drop the microbatch, or wait for a send and drop its buffer
    reduce                start summing the stage's gradients
    step                  wait for the sums, merge statistics, update
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from halocline.plan.layout import ACTIVATION, GRADIENT, Layout
from halocline.runtime.boundary import Crossing, Piece, pack, packed_size, pieces, unpack, wanted
from halocline.runtime.lost import PeerLost
from halocline.runtime.reduction import Reduction
from halocline.runtime.shortage import OutOfMemory, is_shortage
from halocline.runtime.stage import Held, StageRunner
from halocline.runtime.statistics import RunningStatistics, frozen, tracked
from halocline.runtime.world import World
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


@dataclass(frozen=True)
class Boundary:
    """One boundary of a pipe for one size of microbatch: how the two teams hold what crosses it."""

    source: tuple[Crossing, ...]
    target: tuple[Crossing, ...]


@dataclass
class StepWork:
    """What one step is about: the data this rank needs, and the sizes everybody agrees on."""

    number: int
    samples: list[int]
    """Samples of each microbatch of this replica."""
    total: int
    """Samples of the whole step, all replicas."""
    first: int
    """This replica's first microbatch, counted over all replicas."""
    inputs: Callable[[int], list[Tensor]] | None = None
    """microbatch -> the whole input tensors of that microbatch."""
    targets: Callable[[int], Any] | None = None
    losses: dict[int, Tensor] = field(default_factory=dict)


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
        crossings: Callable[[int, int, int], tuple[Crossing, ...]],
    ) -> None:
        self.world, self.layout, self.instructions = world, layout, instructions
        self.runners = runners
        """(pipe, stage) -> its runner on this rank."""
        self.groups = groups
        """Stage -> the ranks that share its parameters."""
        self.statistics = statistics
        """Stage -> its running statistics, where several copies share them."""
        self.crossings = crossings
        """(pipe, stage, samples) -> what enters that stage, as the stage before it holds it."""
        self.replica, self.local = divmod(world.rank, layout.ranks_per_replica)
        self.current: Instruction | None = None
        self._handlers: dict[str, Callable[[Instruction], None]] = {
            FORWARD: self._forward,
            RECOMPUTE: self._recompute,
            BACKWARD: self._backward,
            BACKWARD_INPUT: self._backward_input,
            BACKWARD_WEIGHT: self._backward_weight,
            SEND: self._send,
            RECEIVE: self._receive,
            FREE: self._free,
            REDUCE: self._reduce,
            STEP: self._step,
        }
        self._members = {
            (pipe, stage): {rank: member for member, rank in enumerate(layout.team(pipe, stage))}
            for pipe in range(layout.plan.pipes)
            for stage in range(len(layout.plan.stages))
        }
        self._pieces: dict[tuple[Any, ...], tuple[Piece, ...]] = {}
        self._begin(StepWork(0, [], 0, 0), lambda: None)

    def run(self, work: StepWork, finish: Callable[[], None]) -> None:
        """One step; `finish` is called at the step instruction, when all gradients are summed."""
        self._begin(work, finish)
        notes = self.world.logbook.words
        notes[1] = work.number
        try:
            for notes[2], instruction in enumerate(self.instructions, 1):
                self.current = instruction
                self._handlers[instruction.kind](instruction)
        except ExchangeTimeout as error:
            raise PeerLost(f"rank {self.world.rank} waits in {self.current} for its team: {error}") from error
        except (MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            raise self._shortage() from error
        self.current = None
        notes[2] = 0

    def _shortage(self) -> OutOfMemory:
        """The error for a rank that has run out of memory: what it did and held."""
        assert self.current is not None
        return OutOfMemory(
            self.world.rank,
            self.world.device,
            self.current,
            self.layout.plan,
            self.work.samples,
            self.held,
            [message for message, _ in self.sent.values()],
            [p for runner in self.runners.values() for _, layer in runner.layers for p in layer.parameters()],
        )

    def _begin(self, work: StepWork, finish: Callable[[], None]) -> None:
        self.work, self.finish = work, finish
        self.held: dict[tuple[int, int, int], Held] = {}
        self.arriving: dict[tuple[str, int, int, int], list[tuple[int, Tensor | None, Any]]] = {}
        self.sent: dict[tuple[Any, ...], tuple[Tensor, Any]] = {}
        self.reductions: list[Reduction] = []

    # -- messages ------------------------------------------------------------------------------------------------

    def _boundary(self, pipe: int, stage: int, microbatch: int) -> Boundary:
        """The boundary below `stage`."""
        samples = self.work.samples[microbatch]
        source = self.crossings(pipe, stage + 1, samples)
        target = self.runner_view(source, stage + 1)
        return Boundary(source, target)

    def runner_view(self, source: tuple[Crossing, ...], stage: int) -> tuple[Crossing, ...]:
        return tuple(wanted(c, self.layout.plan.stages[stage]) for c in source)

    def _parts(
        self, pipe: int, stage: int, microbatch: int, upper: int, lower: int
    ) -> tuple[Boundary, tuple[Piece, ...]]:
        """What passes the boundary below `stage` between a rank above and a rank below it."""
        boundary = self._boundary(pipe, stage, microbatch)
        key = (pipe, stage, boundary, upper, lower)
        if key not in self._pieces:
            links = self.layout.links(pipe, stage, ACTIVATION)
            first = min(link.source for link in links if link.target == lower)
            if pipe:
                first = max(link.source for link in links if link.target == lower)
            self._pieces[key] = pieces(
                boundary.source,
                self.layout.plan.stages[stage],
                boundary.target,
                self.layout.plan.stages[stage + 1],
                self._members[pipe, stage][upper],
                self._members[pipe, stage + 1][lower],
                upper == first,
            )
        return boundary, self._pieces[key]

    def _global(self, local: int) -> int:
        return self.replica * self.layout.ranks_per_replica + local

    def _send(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, what, peer = instruction
        if what == ACTIVATION:
            boundary, parts = self._parts(pipe, stage, microbatch, self.local, peer)
            runner, held = self.runners[pipe, stage], self.held[pipe, stage, microbatch]
            tensors = [t.detach() for t in held.outputs]
            origins = [runner.origin(c) for c in boundary.source]
        else:
            boundary, parts = self._parts(pipe, stage, microbatch, peer, self.local)
            parts = _differentiable(parts, boundary)
            runner, held = self.runners[pipe, stage + 1], self.held[pipe, stage + 1, microbatch]
            tensors = [torch.zeros_like(t) if g is None else g for t, g in zip(held.inputs, held.input_gradients)]
            origins = [runner.origin(c) for c in boundary.target]
        if parts:
            message = pack(parts, tensors, origins)
            self.sent[instruction[1:]] = message, self.world.send(message, self._global(peer), instruction[1:5])

    def _receive(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, what, peer = instruction
        upper, lower = (peer, self.local) if what == ACTIVATION else (self.local, peer)
        boundary, parts = self._parts(pipe, stage, microbatch, upper, lower)
        if what == GRADIENT:
            parts = _differentiable(parts, boundary)
        message, handle = None, None
        if parts:
            size = packed_size(parts, boundary.source)
            message, handle = self.world.receive(size, self._global(peer), instruction[1:5])
        self.arriving.setdefault((what, pipe, stage, microbatch), []).append((peer, message, handle))

    def _arrived(self, what: str, pipe: int, stage: int, microbatch: int) -> list[tuple[int, Tensor]]:
        """Wait for a tensor's messages."""
        found = []
        for peer, message, handle in self.arriving.pop((what, pipe, stage, microbatch), []):
            if message is None:
                continue
            self.world.wait(
                handle,
                f"rank {self.world.rank} waits in {self.current} for {what} p{pipe} s{stage} m{microbatch} "
                f"from rank {self._global(peer)}",
                self._global(peer),
            )
            found.append((peer, message))
        return found

    def _free(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, what, peer = instruction
        if peer < 0:
            del self.held[pipe, stage, microbatch]
            return
        if instruction[1:] in self.sent:
            message, handle = self.sent.pop(instruction[1:])
            self.world.wait(
                handle,
                f"rank {self.world.rank} waits in {instruction} for rank {self._global(peer)} to take "
                f"{what} p{pipe} s{stage} m{microbatch}",
                self._global(peer),
            )
            del message

    # -- compute -------------------------------------------------------------------------------------------------

    def _inputs(self, pipe: int, stage: int, microbatch: int) -> Held:
        runner = self.runners[pipe, stage]
        samples = self.work.samples[microbatch]
        received = self.runner_view(self.crossings(pipe, stage, samples), stage)
        if stage == 0:
            assert self.work.inputs is not None
            whole = self.work.inputs(microbatch)
            locals_ = [t[tuple(slice(a, b) for a, b in runner.origin(c))] for t, c in zip(whole, received)]
            inputs = [t.to(self.world.device, copy=t.is_leaf and runner.exchanger is not None) for t in locals_]
        elif (pipe, stage - 1) in self.runners and not self.layout.links(pipe, stage - 1):
            above = self.held[pipe, stage - 1, microbatch]
            inputs = [t.detach() for t in above.outputs]  # the same ranks hold both stages: handed over as it is
        else:
            origins = [runner.origin(c) for c in received]
            inputs = [
                torch.empty([b - a for a, b in o], dtype=c.torch_dtype, device=self.world.device)
                for c, o in zip(received, origins)
            ]
            for peer, message in self._arrived(ACTIVATION, pipe, stage - 1, microbatch):
                _, parts = self._parts(pipe, stage - 1, microbatch, peer, self.local)
                unpack(message, parts, received, inputs, origins)
        if runner.options.channels_last:
            inputs = [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in inputs]
        if stage:
            inputs = [t.requires_grad_() if c.differentiable else t for t, c in zip(inputs, received)]
        held = Held(inputs, received)
        if runner.loss is not None and self.work.targets is not None:
            held.target = self.work.targets(microbatch)
        return held

    def _forward(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        held = self.held[pipe, stage, microbatch] = self._inputs(pipe, stage, microbatch)
        keep = not self.layout.plan.stages[stage].recompute
        number = self.work.first + microbatch
        if stage in self.statistics:
            with self.statistics[stage].collecting(number):
                loss = self._run(held, pipe, stage, microbatch, keep)
        else:
            loss = self._run(held, pipe, stage, microbatch, keep)
        if loss is not None:
            self.work.losses[microbatch] = loss

    def _run(self, held: Held, pipe: int, stage: int, microbatch: int, grad: bool) -> Tensor | None:
        share = self.work.samples[microbatch] / self.work.total
        return self.runners[pipe, stage].forward(held, self.work.number, self.work.first + microbatch, share, grad)

    def _recompute(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        held = self.held[pipe, stage, microbatch]
        with frozen(tracked(self.runners[pipe, stage].layers)):
            self._run(held, pipe, stage, microbatch, True)

    def _gradients(self, pipe: int, stage: int, microbatch: int) -> Held:
        """The microbatch with its graph and the gradients of its outputs."""
        held = self.held[pipe, stage, microbatch]
        runner = self.runners[pipe, stage]
        if not held.recorded:
            self._recompute(Instruction(RECOMPUTE, pipe, stage, microbatch))
        if runner.loss is not None or held.gradients:
            return held
        boundary = self._boundary(pipe, stage, microbatch)
        origins = [runner.origin(c) for c in boundary.source]
        gradients = [torch.zeros_like(t) for t in held.outputs]
        for peer, message in self._arrived(GRADIENT, pipe, stage, microbatch):
            _, parts = self._parts(pipe, stage, microbatch, self.local, peer)
            unpack(message, _differentiable(parts, boundary), boundary.source, gradients, origins, add=True)
        held.gradients = list(gradients)
        return held

    def _backward(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        self.runners[pipe, stage].backward(self._gradients(pipe, stage, microbatch))
        self._hand_up(pipe, stage, microbatch)

    def _backward_input(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        self.runners[pipe, stage].backward_input(self._gradients(pipe, stage, microbatch))
        self._hand_up(pipe, stage, microbatch)

    def _hand_up(self, pipe: int, stage: int, microbatch: int) -> None:
        """Give the gradient to the stage above where the same ranks hold both and no message is sent."""
        if (pipe, stage - 1) in self.runners and not self.layout.links(pipe, stage - 1):
            above = self.held[pipe, stage - 1, microbatch]
            above.gradients = list(self.held[pipe, stage, microbatch].input_gradients)

    def _backward_weight(self, instruction: Instruction) -> None:
        _, pipe, stage, microbatch, _, _ = instruction
        self.runners[pipe, stage].backward_weight(self.held[pipe, stage, microbatch])

    # -- the end of a step ---------------------------------------------------------------------------------------

    def _reduce(self, instruction: Instruction) -> None:
        stage = instruction.stage
        runner = next(runner for (_, s), runner in self.runners.items() if s == stage)
        parameters = [p for _, layer in runner.layers for p in layer.parameters()]
        self.reductions.append(Reduction(parameters, self.world, self.groups[stage], str(instruction)))

    def _step(self, instruction: Instruction) -> None:
        self._await_reductions()
        self.finish()

    def _await_reductions(self) -> None:
        for reduction in self.reductions:
            reduction.finish()


def _differentiable(parts: Sequence[Piece], boundary: Boundary) -> tuple[Piece, ...]:
    """The pieces that have a gradient."""
    return tuple(p for p in parts if boundary.source[p.index].differentiable)
