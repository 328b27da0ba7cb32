"""A trial: a model, a plan and a few made-up batches, run on processes of this machine and compared with one device.

What `halocline verify` does. Every process makes the model by its name and builds only what it holds.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import PicklingError
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.models.model import MASKED, SPANS, Layer, Model, make
from halocline.plan.plan import Plan
from halocline.runtime.engine import Engine
from halocline.runtime.layers import one_device, own_randomness
from halocline.runtime.processes.launch import RankFailed, join, run_local
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.proof.norms import MisreadNorms, WrittenNorms
from halocline.runtime.proof.verify import Differences, Reference, between, compare, reference
from halocline.runtime.stage import Loss
from halocline.runtime.updating import MakeOptimizer
from halocline.train.settings import TOLERANCE

LOSSES: dict[str, Loss] = {"cross-entropy": F.cross_entropy, "mse": F.mse_loss}
IGNORED = -100
"""The target of a word that is not to be predicted."""


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Momentum, so that a wrong step shows in the next one; small steps, so that rounding does not (a deep network with
    few values per BatchNorm multiplies it by hundreds from step to step)."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class Trial:
    """What is compared. Plain values only: it travels to the processes."""

    model: str
    """A name of the zoo, or where the model stands: package.module:callable."""
    plan: Plan
    image: tuple[int, ...]
    samples: int
    """Of a step, all replicas."""
    steps: int = 2
    dtype: str = "float64"
    loss: str | None = None
    """A key of LOSSES; the model's own, or cross-entropy over the second dim of its output where there is one."""
    seed: int = 0
    deadline: float = 60.0
    device: str = "cpu"
    """cpu, or cuda for both sides of the comparison."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the model is made with."""
    sequence_parallel: bool = False
    update: MakeOptimizer = optimizer

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def made(self) -> Model:
        return known_model(self.model, self.options, self.seed)

    @cached_property
    def known(self) -> Model:
        """The model, for whoever asks about it only."""
        return self.made()

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # processes make the model themselves

    def output_shape(self) -> tuple[int, ...]:
        """What the model makes of two samples, found on one device."""
        net = one_device(self.made().layers, self.seed).to(self.torch_dtype).eval()
        empty = [torch.zeros(t.shape, dtype=t.dtype) for t in self.known.inputs(2, self.image or None)]  # type: ignore[arg-type]
        with torch.no_grad(), own_randomness(self.seed):
            inputs = [t.to(self.torch_dtype) if t.is_floating_point() else t for t in empty]
            value: Any = inputs[0] if len(inputs) == 1 else tuple(inputs)
            for name, layer in zip(net._modules, net):  # one that is there twice included
                try:
                    value = layer(value)
                except (RuntimeError, TypeError, ValueError) as error:
                    shapes = ", ".join(" x ".join(map(str, t.shape[1:])) for t in empty)
                    words = any(isinstance(module, nn.Embedding) for module in layer.modules())
                    fix = ""
                    if words and not self.known.sequence:
                        fix = "; bare layers are given images: for words return a Model with its task and sequence"
                    raise ValueError(
                        f"layer {name} of {self.model} fails on one device, with samples of {shapes}: {error}{fix}"
                    ) from error
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{self.model} returned a {type(value).__name__}: a trial needs a model that ends in a tensor"
            )
        return tuple(value.shape)

    def chosen_loss(self, output: Sequence[int]) -> Loss:
        """The loss that was asked for, the model's own, or what suits the output."""
        if self.loss is not None:
            if self.loss not in LOSSES:
                raise ValueError(f"loss = {self.loss!r} is not known: use one of {', '.join(LOSSES)}")
            return LOSSES[self.loss]
        if self.known.loss is not F.cross_entropy or (len(output) > 1 and output[1] > 1):
            return self.known.loss
        return F.mse_loss

    def batches(self, output: Sequence[int]) -> list[tuple[Any, Tensor]]:
        """The steps' inputs and targets, made up as the model's task wants them."""
        generator = torch.Generator().manual_seed(self.seed)
        make_one = self._words if self.known.sequence else self._images
        return [make_one(generator, output) for _ in range(self.steps)]

    def _words(self, generator: torch.Generator, output: Sequence[int]) -> tuple[Any, Tensor]:
        """Words by chance; of a masked or span model some have no target, and samples differ in how many."""
        shape = (self.samples, self.known.sequence)
        inputs, targets, others = (torch.randint(0, self.known.classes, shape, generator=generator) for _ in range(3))
        if self.known.task in (MASKED, SPANS):
            targets = targets.masked_fill(torch.rand(shape, generator=generator) < 0.4, IGNORED)
        return (inputs, others) if self.known.task == SPANS else inputs, targets

    def _images(self, generator: torch.Generator, output: Sequence[int]) -> tuple[Any, Tensor]:
        """Classes by sample, or by pixel where the output is an image; or values."""
        shape = (self.samples, self.known.channels, *self.image)
        images = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.torch_dtype)
        if self.chosen_loss(output) is F.mse_loss:
            values = torch.randn((self.samples, *output[1:]), generator=generator, dtype=torch.float64)
            return images, values.to(self.torch_dtype)
        return images, torch.randint(0, output[1], (self.samples, *output[2:]), generator=generator)


def known_model(name: str, options: dict[str, Any], seed: int) -> Model:
    """The model. One that is built at once is built from the same random numbers everywhere."""
    with own_randomness(seed):
        return make(name, **options)


@dataclass(frozen=True)
class Given(Trial):
    """A trial of a model and a batch that are at hand."""

    at_hand: Model = field(kw_only=True)
    batch: tuple[Any, Any] = field(kw_only=True)
    """Of every step."""

    def made(self) -> Model:
        return copy.deepcopy(self.at_hand)  # what is built already is trained only there

    def output_shape(self) -> tuple[int, ...]:
        return ()

    def chosen_loss(self, output: Sequence[int]) -> Loss:
        return self.at_hand.loss

    def batches(self, output: Sequence[int]) -> list[tuple[Any, Any]]:
        return [self.batch] * self.steps


def verify(
    plan: Plan,
    model: Model | nn.Sequential | Sequence[Layer],
    inputs: Any,
    targets: Any,
    *,
    loss: Loss | None = None,
    optimizer: MakeOptimizer = optimizer,
    tied: Sequence[tuple[str, str]] = (),
    steps: int = 2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    deadline: float = 60.0,
) -> Differences:
    """The largest differences between steps of a plan, on processes of this machine, and the same steps on one device:
    `worst` is the largest of all. Each step takes the batch of `inputs` and `targets` (all replicas).

    Layers, `loss` and `optimizer` travel to the processes, so they are functions and classes of a module; a program's
    own module calls this below `if __name__ == "__main__":`.
    """
    made = model if isinstance(model, Model) else Model("the model", model)
    made = replace(made, loss=loss or made.loss, tied=(*made.tied, *tied))
    batch = _cast(inputs, dtype), _cast(targets, dtype)
    try:
        ForkingPickler.dumps((made, optimizer))
    except (AttributeError, TypeError, PicklingError) as error:
        raise ValueError(
            f"the layers, loss or optimizer cannot go to other processes ({error}): use functions and classes of a "
            f"module in place of lambdas and of functions inside functions"
        ) from error
    name, samples = str(dtype).removeprefix("torch."), len(inputs if isinstance(inputs, Tensor) else inputs[0])
    common = {"steps": steps, "dtype": name, "seed": seed, "deadline": deadline, "device": device, "update": optimizer}
    trial = Given(made.name, plan, (), samples, **common, at_hand=made, batch=batch)  # type: ignore[arg-type]
    found = run(trial)
    wrong = misread(trial, TOLERANCE.get(name, 0.0)) if found.worst > TOLERANCE.get(name, 0.0) else None
    return found if wrong is None else wrong.found


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return tuple(_cast(each, dtype) for each in value)


class _Failure(NamedTuple):
    """Why a rank could not do its part."""

    lost: bool
    """Whether it only lost another rank, which has the better story."""
    when: float
    story: str


def run(trial: Trial, say: Callable[[str], None] = lambda _: None) -> Differences:
    """Compare. `say` is told what is going on."""
    plan = trial.plan
    if trial.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda' but this machine has no CUDA device that torch can use: use cpu")
    _full_precision()
    say("one device")
    output = trial.output_shape()
    known = _on_one_device(trial, plan, output, trial.batches(output))
    found, _ = _on_ranks(trial, plan, output, known, say)
    return found


def _on_ranks(
    trial: Trial, plan: Plan, output: tuple[int, ...], known: Reference, say: Callable[[str], None], watch: bool = False
) -> tuple[Differences, list[str]]:
    """How the plan differs from what is known; and which norms torch misreads there, if that is watched."""
    with tempfile.TemporaryDirectory(prefix="halocline-verify-") as directory:
        path = Path(directory) / "reference.pt"
        torch.save(vars(known), path)
        say(f"{plan.world_size} processes")
        try:
            ranks = run_local(plan.world_size, _compare_here, trial, output, str(path), watch)
        except RankFailed as error:  # those that wait for the one that failed may have to be ended
            raise ValueError(str(error)) from error
    failed = sorted(rank for rank in ranks if isinstance(rank, _Failure))
    if failed:
        # The first is the cause; the others are ranks that waited for it in vain.
        raise ValueError(failed[0].story)
    found, misread = Differences(), []
    for theirs, names in ranks:
        found.merge(theirs)
        misread += [name for name in names if name not in misread]
    found.require(known)
    return found, misread


def _on_one_device(
    trial: Trial, plan: Plan, output: Sequence[int], batches: list[tuple[Any, Tensor]], within: Any = nullcontext
) -> Reference:
    with own_randomness(trial.seed):
        return reference(
            trial.made().layers,
            plan,
            batches,
            loss=trial.chosen_loss(output),
            optimizer=trial.update,
            tied=trial.known.tied,
            seed=trial.seed,
            dtype=trial.torch_dtype,
            device=trial.device,
            within=within,
        )


class Misread(NamedTuple):
    """Norms whose gradient torch computes wrongly, and how a plan stands against norms written out."""

    norms: list[str]
    """The modules, on one device."""
    one_device: float
    """By how much it differs from one device with norms written out."""
    on_ranks: list[str]
    """The modules, where the plan gives torch's kernel what it misreads: in stages without tiles."""
    found: Differences
    """How the plan differs from one device with norms written out."""


def misread(trial: Trial, tolerance: float, say: Callable[[str], None] = lambda _: None) -> Misread | None:
    """Compare again where one device is no reference, because torch misreads norms on it; else None."""
    plan, output = trial.plan, trial.output_shape()
    batches = trial.batches(output)
    watched: list[MisreadNorms] = []

    def watch(net: nn.Module) -> MisreadNorms:
        watched.append(MisreadNorms(net.named_children()))
        return watched[0]

    say("one device, its norms written out")
    plain = _on_one_device(trial, plan, output, batches, watch)
    if not watched[0].names:
        return None
    written = _on_one_device(trial, plan, output, batches, lambda _: WrittenNorms())
    apart = between(plain, written).worst
    if apart <= tolerance:
        return None
    found, on_ranks = _on_ranks(trial, plan, output, written, say, watch=True)
    return Misread(watched[0].names, apart, on_ranks, found)


def rounding(trial: Trial) -> float | None:
    """By how much one device differs from itself when its images change in their last bit: what no plan can better.
    None for words, which have no last bit."""
    if trial.known.sequence:
        return None
    plan, output = trial.plan, trial.output_shape()
    batches = trial.batches(output)
    generator = torch.Generator().manual_seed(trial.seed + 1)
    bit = torch.finfo(trial.torch_dtype).eps
    nudged = [
        (images * (1 + bit * torch.randint(-1, 2, images.shape, generator=generator).to(images.dtype)), targets)
        for images, targets in batches
    ]
    ours, theirs = (_on_one_device(trial, plan, output, given) for given in (nudged, batches))
    return between(ours, theirs).worst


def _full_precision() -> None:
    """No rounding to TF32 on GPUs: it differs from one algorithm to the next, and with it from one plan to the next."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _compare_here(
    trial: Trial, output: tuple[int, ...], path: str, watch: bool
) -> tuple[Differences, list[str]] | _Failure:
    """One rank's part. An error is handed back: the launcher would print pages for one that is raised."""
    torch.set_num_threads(1)
    _full_precision()
    world = join(trial.device, deadline=trial.deadline)
    try:
        known = Reference(**torch.load(path, weights_only=True, mmap=True, map_location="cpu"))
        engine = Engine(
            trial.plan,
            trial.made().layers,
            loss=trial.chosen_loss(output),
            optimizer=trial.update,
            tied=trial.known.tied,
            world=world,
            sequence_parallel=trial.sequence_parallel,
            seed=trial.seed,
            dtype=trial.torch_dtype,
        )
        if not watch:
            return compare(engine, trial.batches(output), known), []
        with MisreadNorms([layer for layers in engine.modules.values() for layer in layers]) as watched:
            return compare(engine, trial.batches(output), known), watched.names
    except Exception as error:
        return _Failure(isinstance(error, PeerLost), time.time(), f"rank {world.rank}: {type(error).__name__}: {error}")
    finally:
        world.close()  # who waits for this rank is told at once
