"""A trial: a model, a plan and a few made-up batches, run on processes of this machine and compared with one device.

What `halocline verify` does. Every process finds the model by its address and builds only what it holds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan.plan import Plan
from halocline.runtime.address import layers_at
from halocline.runtime.engine import Engine
from halocline.runtime.launch import join, run_local
from halocline.runtime.layers import Layer, one_device, own_randomness
from halocline.runtime.lost import PeerLost
from halocline.runtime.stage import Loss
from halocline.runtime.verify import Differences, Reference, compare, reference

LOSSES: dict[str, Loss] = {"cross-entropy": F.cross_entropy, "mse": F.mse_loss}
CHANNELS = 3


@dataclass(frozen=True)
class Trial:
    """What is compared. Plain values only: it travels to the processes."""

    model: str
    """Where it stands: package.module:callable."""
    plan: str
    """As TOML."""
    image: tuple[int, ...]
    samples: int
    """Of a step, all replicas."""
    steps: int = 2
    dtype: str = "float64"
    loss: str | None = None
    """A key of LOSSES; cross-entropy over the model's second dim where there is one, else mse."""
    seed: int = 0
    deadline: float = 60.0
    device: str = "cpu"
    """cpu, or cuda for both sides of the comparison."""

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    def layers(self) -> nn.Sequential | Sequence[Layer]:
        """The model's layers. A model that is built at once is built from the same random numbers everywhere."""
        with own_randomness(self.seed):
            return layers_at(self.model)

    def output_shape(self) -> tuple[int, ...]:
        """What the model makes of two samples, found on one device."""
        net = one_device(self.layers(), self.seed).to(self.torch_dtype).eval()
        with torch.no_grad(), own_randomness(self.seed):
            value: Any = torch.zeros(2, CHANNELS, *self.image, dtype=self.torch_dtype)
            for name, layer in net.named_children():
                try:
                    value = layer(value)
                except (RuntimeError, TypeError, ValueError) as error:
                    raise ValueError(
                        f"layer {name} of {self.model} fails on one device, with images of {CHANNELS} x "
                        f"{' x '.join(map(str, self.image))}: {error}"
                    ) from error
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{self.model} returned a {type(value).__name__}: a trial needs a model that ends in a tensor"
            )
        return tuple(value.shape)

    def named_loss(self, output: Sequence[int]) -> str:
        if self.loss is not None:
            if self.loss not in LOSSES:
                raise ValueError(f"loss = {self.loss!r} is not known: use one of {', '.join(LOSSES)}")
            return self.loss
        return "cross-entropy" if len(output) > 1 and output[1] > 1 else "mse"

    def batches(self, output: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The steps' inputs and targets: classes by sample, or by pixel where the output is an image; or values."""
        generator = torch.Generator().manual_seed(self.seed)
        made = []
        for _ in range(self.steps):
            images = torch.randn(self.samples, CHANNELS, *self.image, generator=generator, dtype=torch.float64)
            if self.named_loss(output) == "mse":
                shape = (self.samples, *output[1:])
                targets = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.torch_dtype)
            else:
                targets = torch.randint(0, output[1], (self.samples, *output[2:]), generator=generator)
            made.append((images.to(self.torch_dtype), targets))
        return made


class _Failure(NamedTuple):
    """Why a rank could not do its part."""

    lost: bool
    """Whether it only lost another rank, which has the better story."""
    when: float
    story: str


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """Momentum, so that a wrong step shows in the next one."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def run(trial: Trial, say: Callable[[str], None] = lambda _: None) -> Differences:
    """Compare. `say` is told what is going on."""
    plan = Plan.from_toml(trial.plan)
    if trial.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda' but this machine has no CUDA device that torch can use: use cpu")
    _full_precision()
    say("one device")
    output = trial.output_shape()
    with own_randomness(trial.seed):
        known = reference(
            trial.layers(),
            plan,
            trial.batches(output),
            loss=LOSSES[trial.named_loss(output)],
            optimizer=optimizer,
            seed=trial.seed,
            dtype=trial.torch_dtype,
            device=trial.device,
        )
    with tempfile.TemporaryDirectory(prefix="halocline-verify-") as directory:
        path = Path(directory) / "reference.pt"
        torch.save(vars(known), path)
        say(f"{plan.world_size} processes")
        ranks = run_local(plan.world_size, _compare_here, trial, output, str(path))
    failed = sorted(rank for rank in ranks if isinstance(rank, _Failure))
    if failed:
        # The first is the cause; the others are ranks that waited for it in vain.
        raise ValueError(failed[0].story)
    found = Differences()
    for rank in ranks:
        found.merge(rank)
    found.require(known)
    return found


def _full_precision() -> None:
    """No rounding to TF32 on GPUs: it differs from one algorithm to the next, and with it from one plan to the next."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def _compare_here(trial: Trial, output: tuple[int, ...], path: str) -> Differences | _Failure:
    """One rank's part. An error is handed back: the launcher would print pages for one that is raised."""
    torch.set_num_threads(1)
    _full_precision()
    world = join(trial.device, deadline=trial.deadline)
    try:
        known = Reference(**torch.load(path, weights_only=True, mmap=True, map_location="cpu"))
        engine = Engine(
            Plan.from_toml(trial.plan),
            trial.layers(),
            loss=LOSSES[trial.named_loss(output)],
            optimizer=optimizer,
            world=world,
            seed=trial.seed,
            dtype=trial.torch_dtype,
        )
        return compare(engine, trial.batches(output), known)
    except Exception as error:
        return _Failure(isinstance(error, PeerLost), time.time(), f"rank {world.rank}: {type(error).__name__}: {error}")
    finally:
        world.close()  # who waits for this rank is told at once
