"""The loop: batches in, steps out, with evaluations, metrics, progress and checkpoints at their turns.

    Trainer(Settings.of(model="resnet-v1-20", steps=100)).fit()

One trainer for images and text, for one process and for many; everything it does is another file's noun.
"""

from __future__ import annotations

import math
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from halocline.data.dataset import Dataset, as_dtype, skipped
from halocline.data.loader import Loader, Step
from halocline.data.sampler import Sampler
from halocline.models import hf
from halocline.models.model import Layer, Model
from halocline.plan.flags.fields import flat
from halocline.plan.plan import Plan
from halocline.runtime.engine import Engine, StepResult
from halocline.runtime.processes.launch import join
from halocline.runtime.processes.launch import stop as tell
from halocline.runtime.processes.world import World, gathered, raise_alike
from halocline.schedule.events import Observer
from halocline.train import checkpoint as checkpoints
from halocline.train.checkpoint import restore, restore_weights
from halocline.train.datasets import as_dataset, open_datasets, with_samples
from halocline.train.equipment import Equipment
from halocline.train.evaluation import evaluate, measures, scores
from halocline.train.export import weights
from halocline.train.interrupt import Interrupt
from halocline.train.metrics import EVALUATION, STEP, Metrics
from halocline.train.optimizers import LearningRate, OptimizerMaker, set_learning_rate
from halocline.train.planning import as_model, model_of, named, plan_of, plan_to_train, with_batch
from halocline.train.progress import Progress, Speed, Standing, progress, score_words
from halocline.train.pytorch_trace import PytorchTrace
from halocline.train.run_directory import Beginning, RunDirectory, beginning, versions
from halocline.train.settings import SHAPE, Settings

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.float32}
"""Of parameters and images."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended; the same on every rank, but for what only rank 0 writes."""

    step: int
    """Steps taken, those before a resume included."""
    loss: float
    """Of the last step."""
    scores: dict[str, float]
    """Of the last evaluation."""
    directory: str
    checkpoint: str
    interrupted: bool = False
    elsewhere: tuple[str, ...] = ()
    """Files that rank 0 has written outside the directory."""


class Trainer:
    """Trains a model under a plan. Every process of the plan makes one and calls `fit`.

    What is not given is made from `settings`: the model by its name, the plan from its words, the data by --data. A
    `model` of your own is a Model, or layers that make a classifier. A `dataset` of your own has `len()` and gives
    (input, target) by number, or reads boxes as `halocline.data.dataset.Dataset` does; without an `evaluation` beside
    it there is none. `observers` are told of every instruction, and progress is `shown` there.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        plan: Plan | None = None,
        model: Model | nn.Sequential | Sequence[Layer] | None = None,
        dataset: Any = None,
        evaluation: Any = None,
        world: World | None = None,
        observers: Sequence[Observer] = (),
        shown: Progress | None = None,
    ) -> None:
        settings = named(settings)
        self.model = model_of(settings) if model is None else as_model(settings, model, dataset is not None)
        self.plan = with_batch(plan) if plan is not None else plan_to_train(settings, self.model)
        settings = self.settings = with_samples(settings, self.plan)
        self.world = world or join(settings.run.where, deadline=settings.run.deadline)
        self.progress = shown or progress(self.world.rank)
        begin = Beginning(**self._told(lambda: vars(beginning(settings))))
        self.directory = RunDirectory(Path(begin.directory))
        if dataset is None:
            dataset, evaluation = self._data()
        else:
            dataset, evaluation = (as_dataset(each, self.model, settings.run.seed) for each in (dataset, evaluation))
        if not self.model.sequence:
            self.plan = replace(self.plan, image=dataset.inputs[0].pixels)
        self.equipment = Equipment(settings, self.plan, self.world, self.directory.path, self.progress.say)
        self.traces = self._traces()
        self.engine = self._engine((self.progress, *self.equipment.observers, *self.traces, *observers))
        self.batches = self._batches(dataset, True)
        self.held_out = self._batches(evaluation, False) if evaluation is not None else None
        self.total = settings.run.steps or (settings.run.epochs or 1) * len(self.batches)
        """Steps of the whole run."""
        self.asked = measures(self.model) if settings.run.train_scores else None
        """What training batches are scored by."""
        self.rate = LearningRate(settings.optimizer, self.total)
        self.loss = math.nan
        """Of the last step."""
        self.scores: dict[str, float] = {}
        self.saved = ""
        self._resume(begin)

    # -- the loop ------------------------------------------------------------------------------------------------

    def fit(self) -> Outcome:
        """Train to the end, or until interrupted."""
        try:
            return self._fit()
        except Exception as error:
            tell(self.world, error)  # the other ranks need not wait for this one
            raise

    def _fit(self) -> Outcome:
        stop = False
        with ExitStack() as stack:
            interrupt = stack.enter_context(Interrupt(self.progress.say))
            metrics = stack.enter_context(self._metrics())
            stack.callback(self.progress.close)
            for batches in filter(None, (self.batches, self.held_out)):
                stack.callback(batches.close)
            stack.callback(self.equipment.close)
            stack.callback(self.engine.close)
            for trace in self.traces:
                stack.callback(trace.close)
            while self.engine.steps < self.total and not stop and not self.equipment.finished:
                began = time.monotonic()
                step = self.batches.next()
                rate = self.rate.at(self.engine.steps)
                set_learning_rate(self.engine.optimizer, rate)
                result = self.engine.step(step.inputs, step.target, measures=self.asked)
                self.loss = result.loss
                stop = interrupt.agreed(self.world)
                self._note(metrics, step, result, rate, time.monotonic() - began)
                ended = self.engine.steps == self.total
                if (self._due(self.settings.run.eval_every) or ended) and not stop:
                    self._evaluate(metrics)
                if self._due(self.settings.run.save_every) or ended or stop:
                    self._save()
            self._write_hf(stop)
        directory = str(self.directory.path)
        return Outcome(self.engine.steps, self.loss, self.scores, directory, self.saved, stop, self._elsewhere(stop))

    def _due(self, every: int | None) -> bool:
        """Whether it is time for something that is done every so many steps, or at the end of an epoch."""
        return self.engine.steps % every == 0 if every else self.batches.sampler.position == 0

    def _note(self, metrics: Metrics | None, step: Step, result: StepResult, rate: float, seconds: float) -> None:
        """Tell people and files how the step went."""
        if metrics is None:
            return
        self.speed.add(result.samples, seconds)
        unit = "tokens" if self.model.sequence else "images"
        speed = self.speed.samples_per_second * max(1, self.model.sequence)
        epoch = step.batch.epoch
        facts = {"epoch": epoch, "loss": result.loss, "lr": rate, "samples": result.samples, "seconds": seconds}
        scored = scores(self.model, result.loss, result.totals) if self.asked is not None else {}
        facts |= scored | {f"{unit}_per_second": speed, "memory": (memory := self._memory())}
        if result.skipped:
            facts["skipped"] = True
        metrics.write(STEP, self.engine.steps, **facts)
        left = (self.total - self.engine.steps) * self.speed.seconds_per_step
        now = self.engine.steps, self.total, epoch, result.loss
        over = self.batches.sampler.position == 0
        told = Standing(*now, speed, unit, memory, left, self.scores, result.samples, seconds, scored, over)
        self.progress.show(told)

    def _memory(self) -> int:
        """The most bytes this process has held: of its GPU if it has one."""
        if self.world.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.world.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _evaluate(self, metrics: Metrics | None) -> None:
        if self.held_out is None:
            return
        self.scores = evaluate(self.engine, self.held_out, self.model)
        if metrics is not None:
            metrics.write(EVALUATION, self.engine.steps, **self.scores)
            words = [f"loss {self.scores['loss']:.4g}", *score_words(self.scores)]
            self.progress.evaluated(f"step {self.engine.steps}: evaluation  {'  '.join(words)}")

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.settings.run.save_every == 0:
            return
        root = self.directory.checkpoints
        self.saved = str(self._checkpoint(root))
        if self.world.rank == 0:
            checkpoints.prune(root, self.settings.run.keep, self.engine.steps)

    def _checkpoint(self, root: Path) -> Path:
        state = {"sampler": self.batches.sampler.state(), "scores": self.scores, "loss": self.loss}
        return checkpoints.save(root, self.engine, state, flat(self.settings), versions())

    def _write_hf(self, interrupted: bool) -> None:
        """The weights of the end in Hugging Face's layout, if that was asked for."""
        target = self.settings.model.to_hf
        if target is None:
            return
        if interrupted:
            self.progress.say(f"--to-hf {target} is not written, as the run was interrupted: go on with --resume")
            return
        source, passing = Path(self.saved), self.directory.path / "to-hf"
        if not self.saved or source.name != checkpoints.name_of(self.engine.steps):  # no checkpoint of the end is kept
            source = self._checkpoint(passing)
        if self.world.rank == 0:
            hf.save(target, self.model, weights(checkpoints.Checkpoint(source)))
            shutil.rmtree(passing, ignore_errors=True)

    def _elsewhere(self, interrupted: bool) -> tuple[str, ...]:
        """What was written outside the run's directory: a sweep's profile, and weights in Hugging Face's layout."""
        profile, weights = self.equipment.profile, None if interrupted else self.settings.model.to_hf
        inside = profile is None or Path(profile).parent == self.directory.path
        return tuple(str(path) for path in (None if inside else profile, weights) if path is not None)

    def _resume(self, begin: Beginning) -> None:
        """Go on from a checkpoint, if one is asked for and there is one."""
        found = None
        if begin.checkpoint is not None:
            found = checkpoints.chosen(self.world, Path(begin.checkpoint))
        elif begin.newest_of is not None:
            found = checkpoints.newest(self.world, Path(begin.newest_of), self.progress.say)
            if found is None:
                self.progress.say(f"no checkpoint in {begin.newest_of} yet: starting at step 0")
        if found is None:
            if self.settings.model.from_hf is not None:
                source = self.settings.model.from_hf
                restore_weights(self.engine, lambda names: hf.load(source, self.model, names), source)
            return
        restore(self.engine, found)
        self.batches.sampler.load(found.manifest.state["sampler"])
        self.scores, self.loss = dict(found.manifest.state["scores"]), float(found.manifest.state["loss"])
        self.saved = str(found.path)
        self.progress.say(f"going on from {found.path}")
        if self.engine.steps >= self.total:
            self.progress.say(f"all {self.total} steps were taken already: ask for more by --steps or --epochs")

    # -- building ------------------------------------------------------------------------------------------------

    def _engine(self, observers: Sequence[Observer]) -> Engine:
        settings = self.settings
        return Engine(
            self.plan,
            self.model.layers,
            loss=self.model.loss,
            optimizer=OptimizerMaker(settings.optimizer),
            tied=self.model.tied,
            world=self.world,
            seed=settings.run.seed,
            dtype=DTYPES[settings.run.dtype],
            autocast=torch.bfloat16 if settings.run.dtype == "bf16" else None,
            channels_last=settings.run.channels_last,
            clip=settings.optimizer.clip,
            shard_optimizer=settings.optimizer.shard_optimizer,
            sequence_parallel=settings.plan.sequence_parallel,
            compile=settings.run.compile,
            nan=settings.optimizer.nan,
            timeline=self.directory.timeline if settings.run.timeline else None,
            offload=settings.run.offload,
            observers=observers,
            simulated=self.equipment.simulated,
        )

    def _traces(self) -> tuple[PytorchTrace, ...]:
        if not self.settings.run.pytorch_trace:
            return ()
        warmup = self.settings.energy.profile_warmup
        return (PytorchTrace(self.directory.path, self.world.rank, warmup, self.progress.say),)

    def _batches(self, dataset: Dataset, train: bool) -> Loader:
        assert self.plan.batch is not None
        samples, dtype = self.plan.batch * self.plan.replicas, DTYPES[self.settings.run.dtype]
        inputs, targets = as_dtype(dataset.inputs, dtype), as_dtype(dataset.targets, dtype)
        return Loader(
            dataset,
            # For evaluation every sample counts, in order; training wants full batches.
            Sampler(len(dataset), samples, seed=self.settings.run.seed, shuffle=train, drop_last=train),
            lambda count: self.engine.reads(count, inputs, targets),
            workers=self.settings.data.workers,
            dtype=dtype,
            across_epochs=train,
            pin=self.world.device.type == "cuda",
        )

    def _metrics(self) -> Any:
        """Rank 0's files; nothing on the others."""
        self.speed = Speed()
        if self.world.rank:
            return nullcontext()
        self.directory.describe(self.plan, self._repeated())
        board = self.directory.tensorboard if self.settings.run.tensorboard else None
        return Metrics(self.directory.metrics, after=self.engine.steps, tensorboard=board)

    def _repeated(self) -> Settings:
        """The settings that repeat this run: in the words that were said where they make its plan."""
        plan = self.plan
        assert plan.batch is not None
        if self.settings.plan.file is None:
            gems = plan.schedule == "gems"
            times = (plan.passes or plan.microbatches) if gems else self.settings.plan.accumulate
            words = self.settings.but(batch_size=plan.batch // times, microbatch_size=None)
            with suppress(ValueError):  # of a model that the settings do not name
                if replace(plan_of(words, self.model), image=plan.image) == plan:
                    return words
        by_file = dict.fromkeys((*SHAPE, "batch_size", "microbatch_size"))
        return self.settings.but(**by_file, plan=self.directory.plan.name, accumulate=1)

    def _data(self) -> tuple[Dataset, Dataset | None]:
        """What --data names. Rank 0 looks for bad files and tells the others."""
        opened: list[tuple[Dataset, Dataset | None]] = []

        def look() -> list[str]:
            opened.append(open_datasets(self.settings, self.plan, self.model))
            return sorted({path for dataset in opened[0] if dataset is not None for path in skipped(dataset)})

        bad = self._told(look)
        if bad:
            self.progress.say(f"{len(bad)} bad files are left out: {', '.join(bad[:3])}{', ...' if bad[3:] else ''}")
        if not opened:
            opened.append(open_datasets(self.settings, self.plan, self.model, known_bad=bad))
        return opened[0]

    def _told(self, ask: Callable[[], Any]) -> Any:
        """What rank 0 found, on every rank."""
        found, error = None, None
        if self.world.rank == 0:
            try:
                found = ask()
            except (ValueError, OSError) as raised:
                error = raised
        raise_alike(self.world, error)
        return gathered(self.world, found)[0]
