"""The engine: a plan, the layers and a loss become steps that equal one device's. The runtime's front door.

Builds what this rank holds, learns the shapes at the boundaries, runs the executor and updates the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.plan.stage import OPTIMIZER
from halocline.runtime.batch import Field, Measure, Microbatches, ReadBoxes, reads
from halocline.runtime.boundary.shapes import Shapes
from halocline.runtime.building import build_stages, check_tensor, compile_layers, make_runners
from halocline.runtime.evaluation import Evaluation, evaluate
from halocline.runtime.executor import Executor, Simulated
from halocline.runtime.guards.arguments import fingerprints, require_equal, require_mean
from halocline.runtime.guards.finite import POLICIES, NotFinite, origin
from halocline.runtime.guards.shared import buffer_names, built_where_shared, common, shared_stages
from halocline.runtime.guards.unchanged import FirstLooks
from halocline.runtime.layers import Layer, named_layers
from halocline.runtime.marks import marks_of
from halocline.runtime.parallel.mesh import mesh_of_plan
from halocline.runtime.parallel.shard import settle
from halocline.runtime.parallel.sharding import Sharding
from halocline.runtime.parallel.statistics import RunningStatistics, plain, tracked
from halocline.runtime.parallel.tied import Ties, ties
from halocline.runtime.processes.environment import command
from halocline.runtime.processes.launch import join, stop
from halocline.runtime.processes.world import World
from halocline.runtime.stage import Loss, StageOptions
from halocline.runtime.state import State
from halocline.runtime.timeline import Recorder
from halocline.runtime.updating import LossScale, MakeOptimizer, PlanOptimizer, clip_gradients
from halocline.schedule.events import Events, Observer
from halocline.schedule.generate import generate
from halocline.schedule.instruction import forwards_ahead
from halocline.tiling.randomness import kept_randomness

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class StepResult:
    """What one step gave; the same on every rank."""

    loss: float
    """The mean over all samples of the step."""
    samples: int
    microbatch_losses: tuple[float, ...] = ()
    """This replica's, on the ranks of the last stage only."""
    skipped: bool = False
    """The loss was not finite, and nothing was changed; or a scaled gradient was not, and nothing was updated."""
    totals: dict[str, float] = field(default_factory=dict)
    """Measure -> its sum over all samples."""


class Engine(State):
    """Trains `layers` under `plan`.

    `layers` is an nn.Sequential, or a list of modules or of functions that make them; each takes what the one before
    returns (a tensor or a tuple of tensors). `loss(output, target)` is a mean over samples. `optimizer` makes an
    optimizer from parameters, e.g. `lambda p: torch.optim.SGD(p, lr=0.1)`; without one, gradients are left in `.grad`.
    `scaler` scales the loss where `autocast` is torch.float16.
    `shard_optimizer` divides its state over the ranks that share a stage (ZeRO-1).
    `sequence_parallel` lets tensor ranks share the tokens between the matrices they share.
    `tied` lists pairs of parameter names that are one parameter, e.g. ("0.weight", "26.weight").
    A loss that is not finite stops every rank before anything is updated, or with `nan="skip"` leaves the step out.
    `timeline` names a directory to which each rank writes when it did what; `halocline timeline` reads it.
    `compile` runs torch.compile on the layers of stages without tiles and lanes (a word chooses its backend).
    `offload` keeps activations in host memory until their backward. `observers` are told of every instruction
    (`halocline.Observer`). `simulated` is a device that is not there, whose own time passes beside.
    """

    def __init__(
        self,
        plan: Plan,
        layers: nn.Sequential | Sequence[Layer],
        *,
        loss: Loss,
        optimizer: MakeOptimizer | None = None,
        tied: Sequence[tuple[str, str]] = (),
        world: World | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        autocast: torch.dtype | None = None,
        channels_last: bool = False,
        scaler: torch.amp.GradScaler | None = None,
        clip: float | None = None,
        shard_optimizer: bool = False,
        sequence_parallel: bool = False,
        nan: str = "stop",
        timeline: str | Path | None = None,
        offload: bool = False,
        compile: bool | str = False,
        observers: Sequence[Observer] = (),
        simulated: Simulated | None = None,
    ) -> None:
        self.plan, self.layout = plan, Layout(plan)
        self.world = world or join()
        if nan not in POLICIES:
            raise ValueError(f"nan={nan!r} is no policy: use {' or '.join(map(repr, POLICIES))}")
        self.nan = nan
        require_mean(loss, plan.microbatches * plan.replicas)
        if clip is not None and not clip > 0:
            raise ValueError(f"clip = {clip} is not above 0: give the largest norm that gradients may have, e.g. 1.0")
        named = self.named = built_where_shared(named_layers(layers), seed)
        self._check(named)
        shared = shared_stages(named, plan)
        self._loss, self._skipped, self._totals = 0.0, False, dict[str, float]()
        # On a CPU the losses travel while backwards run. On a GPU, reading them early would wait for the device.
        self._early = self.world.device.type == "cpu"
        self._kept: list[Tensor] = []
        self.schedule = generate(plan)
        self.options = StageOptions(seed, autocast, channels_last, offload, self.world.device)
        self.clip = clip
        self.steps = 0
        self.replica, self.local = divmod(self.world.rank, self.layout.ranks_per_replica)
        self._make_groups()
        bound = ties(tied, named, plan)
        self.sharding = Sharding(self.world, self.layout)
        self.modules = build_stages(
            self.world, self.layout, named, bound, self.sharding, seed, dtype, channels_last, sequence_parallel
        )
        """Stage -> its layers, for the stages this rank holds."""
        if self.world.size > 1:
            mine = {stage: layers for stage, layers in self.modules.items() if stage not in self.sharding.meshes}
            mark = fingerprints(self.layout, self.world.rank, mine, self.world.device)
            require_equal(self.world.sum(mark, label="sum of weights"))
        self.ties = Ties(self.world, self.layout, bound, self.modules, buffer_names(named))
        if compile:
            compile_layers(plan, self.modules, compile)
        self.runners = make_runners(self.world, self.layout, self.modules, self.sharding, self.options, loss)
        self.optimizer = self._optimizer(optimizer, shard_optimizer) if optimizer is not None else None
        """What updates the parameters: one torch optimizer, for torch's schedulers."""
        self.optimizers = self.optimizer.stages if self.optimizer is not None else {}
        """Stage -> what keeps its state."""
        self.scale = LossScale(scaler, self.world) if scaler is not None and scaler.is_enabled() else None
        total = plan.microbatches * plan.replicas
        norms = {stage: tracked(held) for stage, held in self.modules.items() if total > 1}
        alone = plan.pipes * plan.replicas == 1
        if alone:  # until a step has shown that backwards update none
            norms = {stage: [norm for norm in found if plain(norm)] for stage, found in norms.items()}
        self.statistics = {stage: RunningStatistics(found, total, alone) for stage, found in norms.items() if found}
        self.shapes = Shapes(self.world, self.layout, self.runners)
        row = self.schedule.ranks[self.local]
        self.world.logbook.introduce(", ".join(map(str, self.layout.roles(self.world.rank))), row)
        self.sharding.watch(row)
        self._recorder = None
        if timeline is not None:
            self._recorder = Recorder(timeline, self.world.rank, plan, marks_of(self.world.device))
        self.executor = Executor(
            self.world,
            self.layout,
            row,
            self.runners,
            self.groups,
            self.statistics,
            self.shapes,
            self._first_looks(shared),
            events=Events(
                [self.world.logbook, *filter(None, [self._recorder]), *observers], marks_of(self.world.device)
            ),
            sharding=self.sharding,
            simulated=simulated,
        )

    # -- building ------------------------------------------------------------------------------------------------

    def _check(self, named: Sequence[tuple[str, Layer]]) -> None:
        plan = self.plan
        if len(named) != plan.layers:
            fix = "use fewer stages" if len(named) < len(plan.stages) else "give stages whose layers add up"
            raise ValueError(
                f"the model has {len(named)} layers and the plan's {len(plan.stages)} stages hold {plan.layers}: {fix}"
            )
        if self.world.size != plan.world_size:
            more, rest = divmod(self.world.size, self.layout.ranks_per_replica)
            fix = f"use --replicas {more}" if more and not rest else "change the plan"
            raise ValueError(
                f"the plan needs {plan.world_size} processes and {self.world.size} are running: start it with "
                f"{command(self.world.launcher, plan.world_size)}, or {fix}"
            )
        check_tensor(self.layout)

    def _make_groups(self) -> None:
        layout, plan = self.layout, self.plan
        every, mine = range(len(plan.stages)), {role.stage for role in layout.roles(self.world.rank)}
        tensor = {stage: layout.tensor_index(self.world.rank, stage) for stage in mine}
        self.groups = {stage: layout.sharers(stage, tensor.get(stage, 0)) for stage in every}
        """Stage -> the ranks that share its parameters: of a stage of this rank, those with the same shard of it."""
        members = [
            layout.team(pipe, stage, replica)[shard :: plan.stages[stage].tensor]
            for replica in range(plan.replicas)
            for pipe in range(plan.pipes)
            for stage in every
            for shard in range(plan.stages[stage].tensor)
        ]
        sharers = [layout.sharers(stage, shard) for stage in every for shard in range(plan.stages[stage].tensor)]
        self.world.make_groups(
            [*members, *sharers, *(group for stage in every for group in layout.tensor_groups(stage))]
        )

    def _first_looks(self, shared: set[int]) -> FirstLooks:
        """What is refused once forwards have shown it. Stages in `shared` have modules in common with others."""
        plan, stages, copies = self.plan, {s for _, s in self.runners}, self.plan.pipes * self.plan.replicas
        return FirstLooks(
            {s for s in stages if copies > 1 or plan.stages[s].recompute or s in shared},
            stages if copies * plan.microbatches > 1 else set(),
            forwards_ahead(self.schedule.ranks[self.local]),
            common(self.named, plan),
        )

    def _optimizer(self, make: MakeOptimizer, shard: bool) -> PlanOptimizer:
        def shared_out(stage: int) -> tuple[int, ...]:
            asked = shard or self.plan.stages[stage].shard == OPTIMIZER
            return self.groups[stage] if asked and stage not in self.sharding.meshes else ()

        return PlanOptimizer(make, self.modules, self.ties, self.world, shared_out)

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The ranks as a mesh of `pp` (stages), `dp` (replicas and lanes), `sp` (tiles) and `tp` (tensor ranks), where
        all stages have teams of one shape. It makes process groups: every rank asks for it."""
        return mesh_of_plan(self.world, self.layout)

    def train(self, mode: bool = True) -> None:
        for layers in self.modules.values():
            for _, layer in layers:
                layer.train(mode)

    def close(self) -> None:
        """Close the files of the timeline, if there is one."""
        if self._recorder is not None:
            self._recorder.close()

    # -- a step --------------------------------------------------------------------------------------------------

    def step(
        self,
        inputs: Any,
        targets: Any,
        samples: int | None = None,
        measures: Mapping[str, Measure] | None = None,
    ) -> StepResult:
        """One optimizer step on a batch.

        Every rank passes the whole batch of the step (all replicas), or a `Patchwork` of the boxes that `reads` names;
        ranks without the first stage may pass None for the inputs, ranks without the last stage None for the targets.
        `samples` is needed where both are None. `measures` are taken of the outputs that the step trains on, as
        `evaluate` takes them.
        """
        work = self._cut(inputs, targets, samples)
        work.measures = measures or {}
        if self._early:
            work.complete = lambda: self._start_losses(work)
        try:
            with kept_randomness(self.world.device):
                self.shapes.learn(work.fields, work.sizes, work.orders)
                self._remember()
                self.run(work, lambda: self._finish(work))
        except Exception as error:
            if self._recorder is not None:
                self._recorder.flush()
            if not isinstance(error, NotFinite):  # which is raised on every rank alike: nobody waits
                stop(self.world, error)
            raise
        self.steps += 1
        losses = tuple(float(work.losses[m]) for m in sorted(work.losses))
        return StepResult(self._loss, work.total, losses, self._skipped, self._totals)

    def reads(self, samples: int, inputs: Sequence[Field], targets: Sequence[Field]) -> ReadBoxes:
        """What this rank needs of a batch of `samples` (all replicas) whose tensors are as `inputs` and `targets` say:
        the boxes to read, so that nobody reads pixels of another. Every rank calls this alike."""
        return reads(self._cut(None, None, samples, forwards=True), self.shapes, inputs, targets)

    def evaluate(
        self,
        inputs: Any,
        targets: Any,
        measures: Mapping[str, Measure] | None = None,
        samples: int | None = None,
    ) -> Evaluation:
        """The loss of a batch of any size in evaluation mode, and what `measures` (name -> a function of the last
        stage's output and target that returns a sum over samples) add up to. The same on every rank."""
        work = self._cut(inputs, targets, samples, forwards=True)
        work.measures = measures or {}
        try:
            return evaluate(self, work)
        except Exception as error:
            stop(self.world, error)
            raise

    def _cut(self, inputs: Any, targets: Any, samples: int | None, forwards: bool = False) -> Microbatches:
        device = self.world.device
        return Microbatches(self.plan, self.replica, inputs, targets, samples, self.steps, device, forwards)

    def run(self, work: Microbatches, finish: Callable[[], None]) -> None:
        """The instructions of one step, from no gradients to `finish`."""
        for parameter in self.parameters():
            parameter.grad = None
            if parameter._post_accumulate_grad_hooks and self.plan.pipes * self.plan.replicas > 1:
                name = next(name for name, p in self.named_parameters() if p is parameter)
                raise ValueError(
                    f"{name} has a hook that wants its accumulated gradient, and each of pipes = {self.plan.pipes} x "
                    f"replicas = {self.plan.replicas} copies accumulates its own before they are summed: use one copy, "
                    f"or do it in the optimizer"
                )
        for statistics in self.statistics.values():
            statistics.begin()
        for runner in self.runners.values():
            runner.scale = self.scale.factor() if self.scale is not None else None
        teams = [runner.exchanger for runner in self.runners.values() if runner.exchanger is not None]
        for team in teams:
            team.put_off = {}  # the schedule sums gradients once, over all that share a stage
        try:
            self.executor.run(work, finish)
        finally:
            for team in teams:
                team.put_off = None

    def _finish(self, work: Microbatches) -> None:
        if not self._early:
            self._start_losses(work)
        parts, handle = self._parts
        if handle is not None:
            self.world.wait(handle, f"rank {self.world.rank} waits for the sum of losses over all ranks")
        count = self.plan.microbatches * self.plan.replicas
        parts, sums = parts[:count], parts[count:].tolist()
        self._loss, self._totals = float(parts.sum()), dict(zip(work.measures, sums))
        self._skipped = not math.isfinite(self._loss)
        if self._skipped:
            self._not_finite(work, parts)
            return
        for parameter in self.parameters():
            settle(parameter)
        self.ties.sum_gradients()
        for stage, statistics in [*self.statistics.items()]:
            statistics.finish(partial(self.world.sum, ranks=self.groups[stage]))
            if statistics.trial and not statistics.again:
                del self.statistics[stage]  # forwards come in the order of one device, and may update them at once
        if self.scale is not None and self.scale.overflowed(self.parameters()):
            self._skipped = True
            return
        if self.clip is not None:
            clip_gradients(self.clip, self.world, self.layout, self.modules, self.ties)
        if self.optimizer is not None:
            self.optimizer.update()

    def _start_losses(self, work: Microbatches) -> None:
        """Start telling every rank what each microbatch of the step (all replicas) adds to the loss and to measures."""
        count = self.plan.microbatches * self.plan.replicas
        parts = torch.zeros(count + len(work.measures), dtype=torch.float64, device=self.world.device)
        last = len(self.plan.stages) - 1
        for microbatch, loss in work.losses.items():
            team = self.layout.team(self.plan.pipe_of(microbatch), last, self.replica)
            if self.world.rank == team[0]:
                parts[work.first + microbatch] = loss * (work.samples[microbatch] / work.total)
                if work.measures:
                    parts[count:] += work.sums[microbatch]
        self._parts = parts, self.world.start_sum_apart(parts, "sum of losses")

    # -- a loss that is not finite -------------------------------------------------------------------------------

    def _remember(self) -> None:
        """Keep the buffers as they are, for a step that will be left out."""
        if self.nan == "skip":
            buffers = [b for _, b in self.named_buffers()]
            if not self._kept:
                self._kept = [torch.empty_like(b) for b in buffers]
            for kept, buffer in zip(self._kept, buffers):
                kept.copy_(buffer)

    def _not_finite(self, work: Microbatches, parts: Tensor) -> None:
        """Leave the step out, or stop every rank and say where it began."""
        if self.nan == "skip":
            for kept, (_, buffer) in zip(self._kept, self.named_buffers()):
                buffer.copy_(kept)
            if self.scale is not None:
                self.scale.overflowed(self.parameters())
            for parameter in self.parameters():
                parameter.grad = None
            return
        work.complete = lambda: None
        raise origin(self, work, parts)
