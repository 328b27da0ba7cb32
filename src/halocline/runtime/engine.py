"""The engine: a plan, the layers and a loss become steps that equal one device's. The runtime's front door.

Builds what this rank holds, learns the shapes at the boundaries, runs the executor and updates the parameters.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan
from halocline.runtime.batch import Batch, Field, fields
from halocline.runtime.environment import command
from halocline.runtime.evaluation import Evaluation, Measure, evaluate
from halocline.runtime.executor import Executor, Observer, StepWork
from halocline.runtime.finite import POLICIES, NotFinite, origin
from halocline.runtime.launch import join, stop
from halocline.runtime.layers import Layer, build, named_layers
from halocline.runtime.reading import Reads, reads
from halocline.runtime.relay import Relay
from halocline.runtime.stage import Loss, Options, StageRunner
from halocline.runtime.statistics import RunningStatistics, tracked
from halocline.runtime.timeline import Recorder, TimedExecutor
from halocline.runtime.world import World
from halocline.schedule.generate import generate

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class StepResult:
    """What one step gave; the same on every rank."""

    loss: float
    """The mean over all samples of the step."""
    samples: int
    microbatch_losses: tuple[float, ...] = ()
    """This replica's, on the ranks of the last stage only."""
    skipped: bool = False
    """The loss was not finite, and nothing was changed."""


class Engine:
    """Trains `layers` under `plan`.

    `layers` is an nn.Sequential, or a list of modules or of functions that make them; each takes what the one before
    returns (a tensor or a tuple of tensors). `loss(output, target)` is a mean over samples. `optimizer` makes an
    optimizer from parameters, e.g. `lambda p: torch.optim.SGD(p, lr=0.1)`; without one, gradients are left in `.grad`.
    `shard_optimizer` divides its state over the ranks that share a stage (ZeRO-1).
    A loss that is not finite stops every rank before anything is updated, or with `nan="skip"` leaves the step out.
    `timeline` names a directory to which each rank writes when it did what; `halocline timeline` reads it.
    `offload` keeps activations in host memory until their backward. `observers` are told of every instruction.
    """

    def __init__(
        self,
        plan: Plan,
        layers: nn.Sequential | Sequence[Layer],
        *,
        loss: Loss,
        optimizer: MakeOptimizer | None = None,
        world: World | None = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        autocast: torch.dtype | None = None,
        channels_last: bool = False,
        clip: float | None = None,
        shard_optimizer: bool = False,
        nan: str = "stop",
        timeline: str | Path | None = None,
        offload: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.plan, self.layout = plan, Layout(plan)
        self.world = world or join()
        if nan not in POLICIES:
            raise ValueError(f"nan={nan!r} is no policy: use {' or '.join(map(repr, POLICIES))}")
        self.nan = nan
        named = self.named = named_layers(layers)
        self._check(named)
        self._loss, self._skipped = 0.0, False
        # On a CPU the losses travel while backwards run. On a GPU, reading them early would wait for the device.
        self._early = self.world.device.type == "cpu"
        self._kept: list[Tensor] = []
        self.schedule = generate(plan)
        self.options = Options(seed, autocast, channels_last, offload, self.world.device)
        self.clip = clip
        self.steps = 0
        self.replica, self.local = divmod(self.world.rank, self.layout.ranks_per_replica)
        self._make_groups()
        self.modules = self._build(named, seed, dtype)
        """Stage -> its layers, for the stages this rank holds."""
        self.runners = self._runners(loss)
        self.optimizers = self._optimizers(optimizer, shard_optimizer) if optimizer is not None else {}
        """Stage -> what updates its parameters."""
        copies = plan.pipes * plan.replicas
        total = plan.microbatches * plan.replicas
        self.statistics = {
            stage: RunningStatistics(norms, total)
            for stage, held in self.modules.items()
            if copies > 1 and (norms := tracked(held))
        }
        self.relay = Relay(self.world, self.layout, self.runners)
        kind = Executor if timeline is None else TimedExecutor
        self.executor = kind(
            self.world,
            self.layout,
            self.schedule.ranks[self.local],
            self.runners,
            self.groups,
            self.statistics,
            self.relay.entering,
        )
        roles = ", ".join(map(str, self.layout.roles(self.world.rank)))
        self.world.logbook.begin(roles, self.executor.instructions)
        if isinstance(self.executor, TimedExecutor) and timeline is not None:
            self.executor.record(Recorder(timeline, self.world.rank, plan, self.world.device))
        self.observers = tuple(observers)
        if observers:
            self.executor.observe(observers)

    # -- building ------------------------------------------------------------------------------------------------

    def _check(self, named: Sequence[tuple[str, Layer]]) -> None:
        plan = self.plan
        if len(named) != plan.layers:
            fix = "use fewer stages" if len(named) < len(plan.stages) else "give stages whose layers add up"
            raise ValueError(
                f"the model has {len(named)} layers and the plan's {len(plan.stages)} stages hold {plan.layers}: {fix}"
            )
        if self.world.size != plan.world_size:
            raise ValueError(
                f"the plan needs {plan.world_size} processes and {self.world.size} are running: start it with "
                f"{command(self.world.launcher, plan.world_size)}, or change the plan"
            )
        for number, stage in enumerate(plan.stages):
            if stage.tensor > 1:
                raise ValueError(
                    f"stages[{number}].tensor = {stage.tensor}: the engine runs tensor = 1 so far; use tiles or lanes"
                )

    def _make_groups(self) -> None:
        layout, plan = self.layout, self.plan
        self.groups = {stage: layout.sharers(stage) for stage in range(len(plan.stages))}
        teams = [
            layout.team(pipe, stage, replica)
            for replica in range(plan.replicas)
            for pipe in range(plan.pipes)
            for stage in range(len(plan.stages))
        ]
        self.world.make_groups([*teams, *self.groups.values()])

    def _build(
        self, named: Sequence[tuple[str, Layer]], seed: int, dtype: torch.dtype | None
    ) -> dict[int, list[tuple[str, nn.Module]]]:
        modules = {}
        for stage in sorted({role.stage for role in self.layout.roles(self.world.rank)}):
            first, stop = self.plan.stages[stage].layers
            made = []
            for name, layer in named[first:stop]:
                module = build(name, layer, seed)
                if self.options.channels_last:
                    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                made.append((name, module.to(device=self.world.device, dtype=dtype)))
            modules[stage] = made
        return modules

    def _runners(self, loss: Loss) -> dict[tuple[int, int], StageRunner]:
        runners = {}
        for role in self.layout.roles(self.world.rank):
            stage = self.plan.stages[role.stage]
            team = self.layout.team(role.pipe, role.stage, self.replica)
            runners[role.pipe, role.stage] = StageRunner(
                role.stage,
                stage,
                team.index(self.world.rank),
                self.modules[role.stage],
                self.world.exchanger(team) if len(team) > 1 else None,
                [sorted(team).index(rank) for rank in team],
                self.options,
                self.plan.fused,
                loss if role.stage == len(self.plan.stages) - 1 else None,
            )
        return runners

    def _optimizers(self, make: MakeOptimizer, shard: bool) -> dict[int, torch.optim.Optimizer]:
        """One optimizer per stage. Sharded (ZeRO-1), each of the ranks that share a stage keeps the state of a part of
        its parameters, updates that part and sends it to the others."""
        made: dict[int, torch.optim.Optimizer] = {}
        for stage, layers in self.modules.items():
            parameters = [p for _, layer in layers for p in layer.parameters() if p.requires_grad]
            if not parameters:
                continue
            group = self.world.group(self.groups[stage])
            if shard and group is not None:
                made[stage] = _sharded(parameters, make, group)
            else:
                made[stage] = make(parameters)
        return made

    def parameters(self) -> Iterable[nn.Parameter]:
        """The parameters this rank holds."""
        return (p for _, p in self.named_parameters())

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """With the names they have in the one-device model."""
        for layers in self.modules.values():
            for name, layer in layers:
                for key, parameter in layer.named_parameters():
                    yield f"{name}.{key}", parameter

    def named_buffers(self) -> Iterable[tuple[str, Tensor]]:
        for layers in self.modules.values():
            for name, layer in layers:
                for key, buffer in layer.named_buffers():
                    yield f"{name}.{key}", buffer

    def train(self, mode: bool = True) -> None:
        for layers in self.modules.values():
            for _, layer in layers:
                layer.train(mode)

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self, inputs: Any, targets: Any, samples: int | None = None) -> StepResult:
        """One optimizer step on a batch.

        Every rank passes the whole batch of the step (all replicas), or a `Patchwork` of the boxes that `reads` names;
        ranks without the first stage may pass None for the inputs, ranks without the last stage None for the targets.
        `samples` is needed where both are None.
        """
        batch = Batch(self.plan, self.replica, inputs, targets, samples)
        cuts = batch.cuts()
        work = StepWork(
            self.steps,
            [b - a for a, b in cuts],
            batch.samples,
            self.replica * self.plan.microbatches,
            lambda m: batch.inputs_of(cuts[m]),
            lambda m: batch.targets_of(cuts[m], self.world.device),
        )
        if self._early:
            work.complete = lambda: self._start_losses(work)
        state = torch.random.get_rng_state()
        for observer in self.observers:
            observer.begin(self.steps)
        try:
            self.relay.learn(fields(batch.inputs), sorted(set(work.samples), reverse=True))
            self._remember()
            self.run(work, lambda: self._finish(work))
        except NotFinite:
            raise  # on every rank alike: nobody waits
        except Exception as error:
            stop(self.world, error)
            raise
        finally:
            torch.random.set_rng_state(state)
        for observer in self.observers:
            observer.end(self.steps)
        self.steps += 1
        losses = tuple(float(work.losses[m]) for m in sorted(work.losses))
        return StepResult(self._loss, work.total, losses, self._skipped)

    def reads(self, samples: int, inputs: Sequence[Field], targets: Sequence[Field]) -> Reads:
        """What this rank needs of a batch of `samples` (all replicas) whose tensors are as `inputs` and `targets` say:
        the boxes to read, so that nobody reads pixels of another. Every rank calls this alike."""
        cuts = Batch(self.plan, self.replica, None, None, samples).loose_cuts()
        return reads(self.plan, self.runners, self.relay, cuts, inputs, targets)

    def evaluate(
        self,
        inputs: Any,
        targets: Any,
        measures: Mapping[str, Measure] | None = None,
        samples: int | None = None,
    ) -> Evaluation:
        """The loss of a batch of any size in evaluation mode, and what `measures` (name -> a function of the last
        stage's output and target that returns a sum over samples) add up to. The same on every rank."""
        batch = Batch(self.plan, self.replica, inputs, targets, samples)
        try:
            return evaluate(self, batch, measures or {})
        except Exception as error:
            stop(self.world, error)
            raise

    def run(self, work: StepWork, finish: Callable[[], None]) -> None:
        """The instructions of one step, from no gradients to `finish`."""
        for parameter in self.parameters():
            parameter.grad = None
        for statistics in self.statistics.values():
            statistics.begin()
        self.executor.run(work, finish)

    def _finish(self, work: StepWork) -> None:
        if not self._early:
            self._start_losses(work)
        parts, handle = self._parts
        if handle is not None:
            self.world.wait(handle, f"rank {self.world.rank} waits for the sum of losses over all ranks")
        self._loss = float(parts.sum())
        self._skipped = not math.isfinite(self._loss)
        if self._skipped:
            self._not_finite(work, parts)
            return
        for stage, statistics in self.statistics.items():
            statistics.finish(self.world.sum(statistics.flat(), self.groups[stage]))
        if self.clip is not None:
            self._clip(self.clip)
        for optimizer in self.optimizers.values():
            optimizer.step()

    def _clip(self, limit: float) -> None:
        """Scale all gradients so that the norm over the whole model is at most `limit`."""
        total = torch.zeros((), dtype=torch.float64, device=self.world.device)
        for stage, layers in self.modules.items():
            if self.world.rank != self.groups[stage][0]:
                continue
            for _, layer in layers:
                for parameter in layer.parameters():
                    if parameter.grad is not None:
                        total += parameter.grad.double().square().sum()
        norm = float(self.world.sum(total)) ** 0.5
        if norm > limit:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(limit / (norm + 1e-6))

    def _start_losses(self, work: StepWork) -> None:
        """Start telling every rank what each microbatch of the step (all replicas) adds to the loss."""
        parts = torch.zeros(self.plan.microbatches * self.plan.replicas, dtype=torch.float64, device=self.world.device)
        last = len(self.plan.stages) - 1
        for microbatch, loss in work.losses.items():
            team = self.layout.team(self.plan.pipe_of(microbatch), last, self.replica)
            if self.world.rank == team[0]:
                parts[work.first + microbatch] = loss * (work.samples[microbatch] / work.total)
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

    def _not_finite(self, work: StepWork, parts: Tensor) -> None:
        """Leave the step out, or stop every rank and say where it began."""
        if self.nan == "skip":
            for kept, (_, buffer) in zip(self._kept, self.named_buffers()):
                buffer.copy_(kept)
            for parameter in self.parameters():
                parameter.grad = None
            return
        work.complete = lambda: None
        raise origin(self, work, parts)


def _sharded(parameters: list[nn.Parameter], make: MakeOptimizer, group: Any) -> torch.optim.Optimizer:
    with warnings.catch_warnings():  # torch warns of its own imports
        warnings.simplefilter("ignore")
        from torch.distributed.optim import ZeroRedundancyOptimizer
    # A maker that treats parameters differently (no decay for biases) says so before they are shared out.
    groups = make.groups(parameters) if hasattr(make, "groups") else parameters
    return ZeroRedundancyOptimizer(groups, make, group)  # type: ignore[arg-type]
