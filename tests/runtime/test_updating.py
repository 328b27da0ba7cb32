"""What torch's users put around an optimizer: its learning-rate schedulers, a scaler of losses, a plain DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from halocline.plan import Plan, Stage
from halocline.runtime import Engine
from halocline.runtime.layers import one_device
from harness.checks.plans import batch, world
from harness.plan_models import MODELS
from harness.ranks import on_processes
from harness.teams import ONE, plan_of, tiles

SAMPLES, MICROBATCHES, STEPS = 8, 4, 4
ALONE = Plan((Stage((0, 8)),), "layer", MICROBATCHES).to_toml()
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiles and a stage": (Plan((Stage((0, 4), tiles=(1, 3)), Stage((4, 8))), "1f1b", 4).to_toml(), {}),
    "gems and ZeRO-1": (plan_of([ONE, ONE], "gems", 2, replicas=2).to_toml(), {"shard_optimizer": True}),
    "FSDP2": (Plan((Stage((0, 8), shard="parameters"),), "1f1b", 1, replicas=4).to_toml(), {}),
}


def momentum(parameters: Any) -> torch.optim.Optimizer:
    """Two groups: the stage of pooling and flattening has neither, others one or both."""
    every = list(parameters)
    groups = [{"params": [p for p in every if (p.ndim > 1) == wide], "weight_decay": 0.1 * wide} for wide in (1, 0)]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=0.05, momentum=0.9)


def assert_equal(engine: Engine, known: dict[str, Tensor]) -> None:
    state = engine.state_dict().get("model", {})
    for name, tensor in state.items():
        scale = max(1e-3, known[name].abs().max().item())
        assert (tensor.double() - known[name].double()).abs().max().item() <= 1e-10 * scale, name
    assert not state or state.keys() == known.keys()


# -- schedulers ----------------------------------------------------------------------------------------------------

Make = Callable[[Any], Any]
SCHEDULERS: dict[str, Make] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "warmup, then steps": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.5, total_iters=2), lr_scheduler.MultiStepLR(o, [1])], [2]
    ),
    "a function for each group": lambda o: lr_scheduler.LambdaLR(o, [lambda s: 0.9**s, lambda s: 0.8**s]),
    "one cycle, of momentum too": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=8),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5),
}


def after(scheduler: Any, loss: float) -> None:
    scheduler.step(loss) if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else scheduler.step()


def in_torch(name: str, optimizer: Any = momentum) -> dict[str, Tensor]:
    net = one_device(MODELS["cnn"][0](), 3).double()
    update = optimizer(net.parameters())
    scheduler = SCHEDULERS[name](update)
    for step in range(STEPS):
        update.zero_grad()
        losses = []
        x, y = batch("cnn", SAMPLES, step)
        for a, b in zip(x.split(SAMPLES // MICROBATCHES), y.split(SAMPLES // MICROBATCHES)):
            losses.append(F.cross_entropy(net(a), b) / MICROBATCHES)
            losses[-1].backward()
        update.step()
        after(scheduler, float(torch.stack(losses).sum().detach()))
    return net.state_dict()


def scheduled(text: str, name: str, steps: tuple[int, int], saved: Any = None, **options: Any) -> Any:
    """Some steps, from a state and a scheduler's if there is one; the two after them."""
    given = {"loss": F.cross_entropy, "optimizer": momentum, "world": world(), "dtype": torch.float64, "seed": 3}
    engine = Engine(Plan.from_toml(text), MODELS["cnn"][0](), **given, **options)
    scheduler = SCHEDULERS[name](engine.optimizer)
    if saved is not None:
        engine.load_state_dict(saved[0])
        scheduler.load_state_dict(saved[1])
    for step in range(*steps):
        after(scheduler, engine.step(*batch("cnn", SAMPLES, step)).loss)
    if steps[1] == STEPS:
        assert_equal(engine, in_torch(name))
    state = {k: v for k, v in scheduler.state_dict().items() if k != "_schedulers"}
    return engine.state_dict(), scheduler.state_dict() if len(state) == len(scheduler.state_dict()) else None


@pytest.mark.parametrize("plan", PLANS)
def test_schedulers_are_exact(plan: str) -> None:
    text, options = PLANS[plan]
    for name in SCHEDULERS:
        on_processes(4, scheduled, text, name, (0, STEPS), **options)


@pytest.mark.parametrize("name", ["cosine", "one cycle, of momentum too", "plateau"])
def test_a_scheduler_goes_on_under_another_plan(name: str) -> None:
    """Its groups are the same under every plan, on ranks without parameters, too."""
    text, _ = PLANS["tiles and a stage"]
    saved = on_processes(4, scheduled, text, name, (0, 2))
    assert all(state == saved[0][1] for _, state in saved)
    scheduled(ALONE, name, (2, STEPS), saved[0])
    empty = plan_of([tiles(1, 2), ONE, ONE], layers=8)
    last = Plan((*(s for s in empty.stages[:1]), Stage((2, 7)), Stage((7, 8))), "1f1b", 4).to_toml()
    on_processes(4, scheduled, last, name, (2, STEPS), saved[0])


def bare(text: str) -> list[float]:
    """A rank whose stage has nothing to update."""
    layers = [lambda: nn.Linear(6, 5), nn.Tanh]
    engine = Engine(
        Plan.from_toml(text), layers, loss=F.cross_entropy, optimizer=momentum, world=world(), dtype=torch.float64
    )
    scheduler = lr_scheduler.ExponentialLR(engine.optimizer, 0.5)  # type: ignore[arg-type]
    engine.step(*batch("mlp", 4, 0))
    scheduler.step()
    return [group["lr"] for group in engine.optimizer.param_groups]  # type: ignore[union-attr]


def test_a_rank_without_parameters_has_the_groups_of_all() -> None:
    assert on_processes(2, bare, Plan((Stage((0, 1)), Stage((1, 2))), "1f1b", 2).to_toml()) == [[0.025, 0.025]] * 2


def test_an_optimizer_is_not_stepped_twice() -> None:
    engine = Engine(
        Plan((Stage((0, 8)),)), MODELS["cnn"][0](), loss=F.cross_entropy, optimizer=momentum, dtype=torch.float64
    )
    engine.step(*batch("cnn", 4, 0))
    assert engine.optimizer is not None
    engine.optimizer.zero_grad()
    for wrong in (engine.optimizer.step, engine.optimizer.state_dict, lambda: engine.optimizer.load_state_dict({})):  # type: ignore[union-attr]
        with pytest.raises(ValueError, match=r"leave out optimizer.step|use Engine.(load_)?state_dict"):
            wrong()


# -- a scaler ------------------------------------------------------------------------------------------------------


class Narrow(nn.Module):
    """Hands on float16 values, so that their gradients are float16, too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.half().to(x.dtype)


def narrow() -> list[Any]:
    return [lambda: nn.Linear(6, 8), nn.Tanh, Narrow, lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Linear(8, 5)]


def scaler() -> torch.amp.GradScaler:
    """Overflows at first, and grows again after two good steps."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=2)


def scaled(text: str, steps: int = 14, **options: Any) -> tuple[dict[str, Tensor], list[bool], list[float]]:
    ours = scaler()
    given = {"loss": F.cross_entropy, "optimizer": momentum, "world": world(), "dtype": torch.float64, "seed": 3}
    engine = Engine(Plan.from_toml(text), narrow(), scaler=ours, clip=0.5, **given, **options)
    skipped, scales = [], []
    for step in range(steps):
        skipped.append(engine.step(*batch("mlp", SAMPLES, step)).skipped)
        scales.append(ours.get_scale())
    return engine.state_dict().get("model", {}), skipped, scales


def scaled_in_torch(steps: int = 14) -> tuple[dict[str, Tensor], list[float]]:
    net, ours = one_device(narrow(), 3).double(), scaler()
    update, scales = momentum(net.parameters()), []
    for step in range(steps):
        update.zero_grad()
        x, y = batch("mlp", SAMPLES, step)
        for a, b in zip(x.split(SAMPLES // MICROBATCHES), y.split(SAMPLES // MICROBATCHES)):
            ours.scale(F.cross_entropy(net(a), b) / MICROBATCHES).backward()
        ours.unscale_(update)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        ours.step(update)
        ours.update()
        scales.append(ours.get_scale())
    return net.state_dict(), scales


@pytest.mark.parametrize("name", ["stages", "gems and ZeRO-1", "FSDP2"])
def test_a_scaler_is_exact_and_all_ranks_skip_alike(name: str) -> None:
    """Gradients overflow in the first stage only; those of the last are finite."""
    plan, options = {
        "stages": (Plan((Stage((0, 3)), Stage((3, 6))), "1f1b", 2, replicas=2), {}),
        "gems and ZeRO-1": (
            Plan((Stage((0, 3)), Stage((3, 6))), "gems", 2, pipes=2, replicas=2),
            {"shard_optimizer": True},
        ),
        "FSDP2": (Plan((Stage((0, 6), shard="parameters"),), "1f1b", 1, replicas=4), {}),
    }[name]
    known, scales = scaled_in_torch()
    ranks = on_processes(4, scaled, plan.to_toml(), **options)
    for _, skipped, ours in ranks:
        assert ours == scales
        assert skipped[0] and not all(skipped) and skipped == ranks[0][1]
    for key, tensor in ranks[0][0].items():
        assert (tensor - known[key]).abs().max().item() <= 1e-10 * max(1e-3, known[key].abs().max().item()), key


def test_a_loss_that_is_not_finite_lowers_the_scale() -> None:
    engine = Engine(
        Plan((Stage((0, 6)),)),
        narrow(),
        loss=F.cross_entropy,
        optimizer=momentum,
        scaler=(ours := scaler()),
        nan="skip",
    )
    x, y = batch("mlp", 4, 0)
    assert engine.step(x.float() * torch.inf, y).skipped
    assert ours.get_scale() == 2.0**23
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert Engine(Plan((Stage((0, 6)),)), narrow(), loss=F.cross_entropy, scaler=off).scale is None


# -- a DataLoader --------------------------------------------------------------------------------------------------


def loaded(text: str) -> None:
    """Epochs of 19 samples in batches of 8: the last one has 3, and every rank shuffles alike."""
    x, y = batch("mlp", 19, 0)
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(5))
    layers = [layer for layer in narrow() if layer is not Narrow]
    given = {"loss": F.cross_entropy, "optimizer": momentum, "world": world(), "dtype": torch.float64, "seed": 3}
    engine = Engine(Plan.from_toml(text), layers, **given)
    for _ in range(2):
        for inputs, targets in loader:
            engine.step(inputs, targets)
    net = one_device(layers, 3).double()
    update = momentum(net.parameters())
    loader.generator.manual_seed(5)
    for _ in range(2):
        for inputs, targets in loader:
            update.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            update.step()
    assert_equal(engine, net.state_dict())


def test_a_plain_data_loader() -> None:
    on_processes(2, loaded, Plan((Stage((0, 3)), Stage((3, 5))), "1f1b", 3).to_toml())
