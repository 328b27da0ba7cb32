"""A state in one-device names: any plan goes on from any other's, one device included, and nothing tells."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

from halocline.plan import Plan, Stage
from halocline.runtime import Engine
from halocline.runtime.layers import one_device
from halocline.runtime.processes.world import World
from halocline.runtime.proof import verify
from harness.checks.plans import batch, optimizer, world
from harness.plan_models import MODELS
from harness.ranks import on_processes
from harness.teams import ONE, plan_of, tiles

SAMPLES = 8


def adam(parameters: Any) -> torch.optim.Optimizer:
    """With two groups, of which the first layer has one, and the head of the pipe both."""
    every = list(parameters)
    groups = [
        {"params": [p for p in every if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in every if p.ndim == 1], "lr": 1e-3},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2, eps=1e-3)


def engine_of(text: str, make: Any = adam, **options: Any) -> Engine:
    given = {"loss": F.cross_entropy, "optimizer": make, "world": world(), "dtype": torch.float64, "seed": 3}
    return Engine(Plan.from_toml(text), MODELS["cnn"][0](), **{**given, **options})


def saved_after(text: str, steps: int, **options: Any) -> bytes:
    """What rank 0 would write after some steps; nothing on the others."""
    engine = engine_of(text, **options)
    for step in range(steps):
        engine.step(*batch("cnn", SAMPLES, step))
    assert engine.optimizer is not None
    engine.optimizer.param_groups[0]["lr"] = 5e-3
    state = engine.state_dict()
    assert bool(state) == (engine.world.rank == 0)
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue() if state else b""


def going_on(text: str, saved: bytes, **options: Any) -> tuple[dict[str, Tensor], list[float]]:
    """A step from what was saved: all that rank 0 has of the model then, and the learning rates."""
    engine = engine_of(text, **options)
    engine.load_state_dict(torch.load(io.BytesIO(saved)))
    engine.step(*batch("cnn", SAMPLES, engine.steps))
    assert engine.steps == 3 and engine.optimizer is not None
    return engine.state_dict().get("model", {}), [group["lr"] for group in engine.optimizer.param_groups]


def straight() -> dict[str, Tensor]:
    """The same three steps on one device, in torch alone."""
    net = one_device(MODELS["cnn"][0](), 3).double()
    update = adam(net.parameters())
    for step in range(3):
        x, y = batch("cnn", SAMPLES, step)
        if step == 2:
            update.param_groups[0]["lr"] = 5e-3
        update.zero_grad()
        for first in range(0, SAMPLES, 2):
            part = slice(first, first + 2)
            (F.cross_entropy(net(x[part]), y[part]) * 0.25).backward()
        update.step()
    return net.state_dict()


ALONE = Plan((Stage((0, 8)),), "layer", 4).to_toml()
# Four microbatches of two samples, whoever computes them.
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiles": (plan_of([tiles(2, 2)], "gpipe").to_toml(), {}),
    "stages": (plan_of([tiles(1, 2), ONE, ONE]).to_toml(), {}),
    "gems and ZeRO-1": (plan_of([ONE, ONE], "gems", 2, replicas=2).to_toml(), {"shard_optimizer": True}),
    "replicas, one stage with ZeRO-1": (
        Plan((Stage((0, 4), shard="optimizer"), Stage((4, 8))), "1f1b", 2, replicas=2).to_toml(),
        {},
    ),
    "FSDP2": (Plan((Stage((0, 8), shard="parameters"),), "1f1b", 1, replicas=4).to_toml(), {}),
}


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        scale = max(1e-3, theirs[name].abs().max().item())
        assert (ours[name].double() - theirs[name].double()).abs().max().item() <= 1e-10 * scale, name


@pytest.mark.parametrize("name", PLANS)
def test_any_plan_goes_on_from_any_other(name: str) -> None:
    """From one process to the plan, from the plan to one process and to a plain nn.Sequential; beside one device."""
    text, options = PLANS[name]
    known = straight()
    there = on_processes(4, going_on, text, saved_after(ALONE, 2), **options)
    assert_close(there[0][0], known)
    assert all(rates == [5e-3, 1e-3] for _, rates in there), "every rank has every group"
    saved = on_processes(4, saved_after, text, 2, **options)[0]
    assert_close(going_on(ALONE, saved)[0], known)

    state = torch.load(io.BytesIO(saved))
    net = one_device(MODELS["cnn"][0](), 0).double()
    net.load_state_dict(state["model"])
    update = adam(net.parameters())
    set_optimizer_state_dict(net, update, state["optimizer"])
    x, y = batch("cnn", SAMPLES, 2)
    for first in range(0, SAMPLES, 2):
        (F.cross_entropy(net(x[first : first + 2]), y[first : first + 2]) * 0.25).backward()
    update.step()
    assert_close(dict(net.state_dict()), known)


def test_the_same_plan_goes_on_bit_by_bit() -> None:
    text, options = PLANS["gems and ZeRO-1"]
    whole = on_processes(4, unbroken, text, **options)[0]
    saved = on_processes(4, saved_after, text, 2, **options)[0]
    model, _ = on_processes(4, going_on, text, saved, **options)[0]
    assert all(torch.equal(model[name], whole[name]) for name in whole) and len(model) == len(whole)


def unbroken(text: str, **options: Any) -> dict[str, Tensor]:
    engine = engine_of(text, **options)
    for step in range(3):
        assert engine.optimizer is not None
        if step == 2:
            engine.optimizer.param_groups[0]["lr"] = 5e-3
        engine.step(*batch("cnn", SAMPLES, step))
    return engine.state_dict().get("model", {})


# -- what no rank has whole, and what has two names ----------------------------------------------------------------


def words() -> list[Any]:
    return [lambda: nn.Embedding(12, 6), lambda: nn.Linear(6, 6), nn.Tanh, lambda: nn.Linear(6, 12, bias=False)]


def tied_engine(plan: Plan, **options: Any) -> Engine:
    tied = [("0.weight", "3.weight")]
    world = World.join(deadline=300)
    return Engine(
        plan, words(), loss=F.cross_entropy, optimizer=optimizer, tied=tied, world=world, dtype=torch.float64, **options
    )


def tied_state(text: str) -> dict[str, Any]:
    engine = tied_engine(Plan.from_toml(text))
    generator = torch.Generator().manual_seed(0)
    engine.step(*(torch.randint(12, (4,), generator=generator) for _ in range(2)))
    state = engine.state_dict()
    engine.load_state_dict(torch.load(_again(state)))
    return state


def _again(state: dict[str, Any]) -> io.BytesIO:
    """Rank 0's state on every rank, as a file would bring it there."""
    from torch.distributed import broadcast_object_list, is_initialized

    given = [state]
    if is_initialized():
        broadcast_object_list(given)
    file = io.BytesIO()
    torch.save(given[0], file)
    file.seek(0)
    return file


def test_tied_weights_have_both_names() -> None:
    known = tied_state(Plan((Stage((0, 4)),), "layer", 2).to_toml())
    found, _ = on_processes(2, tied_state, Plan((Stage((0, 2)), Stage((2, 4))), "1f1b", 2).to_toml())
    assert found["model"]["0.weight"] is found["model"]["3.weight"]
    assert_close(found["model"], known["model"])
    assert found["optimizer"]["state"].keys() == known["optimizer"]["state"].keys()
    net = one_device(words()).double()
    verify.tie(net, [("0.weight", "3.weight")])
    net.load_state_dict(found["model"])


GPT = {"layers": 1, "hidden": 8, "heads": 2, "vocab": 12, "seq": 4}


def divided_state(text: str) -> dict[str, Any]:
    from halocline.models.model import make

    model = make("gpt3-small", **GPT)
    world = World.join(deadline=300)
    engine = Engine(
        Plan.from_toml(text),
        model.layers,
        loss=model.loss,
        optimizer=optimizer,
        tied=model.tied,
        world=world,
        dtype=torch.float64,
    )
    generator = torch.Generator().manual_seed(0)
    engine.step(*(torch.randint(12, (4, 4), generator=generator) for _ in range(2)))
    state = engine.state_dict()
    before = copy.deepcopy(state)
    engine.load_state_dict(torch.load(_again(state)))
    after = engine.state_dict()
    if state:
        assert all(torch.equal(after["model"][name], tensor) for name, tensor in before["model"].items())
    return state


def test_what_tensor_ranks_share_is_whole() -> None:
    known = divided_state(Plan((Stage((0, 4)),), "layer", 2).to_toml())
    tensor = Plan((Stage((0, 2), tensor=2), Stage((2, 4), tensor=2)), "1f1b", 2).to_toml()
    divided = Plan((Stage((0, 4), tensor=2, shard="parameters"),), "1f1b", 1, replicas=2).to_toml()
    for text in (tensor, divided):
        found = on_processes(4, divided_state, text)[0]
        assert_close(found["model"], known["model"])
        for name, kept in known["optimizer"]["state"].items():
            assert_close(found["optimizer"]["state"][name], kept)


# -- what does not fit ---------------------------------------------------------------------------------------------


def test_weights_alone_begin_a_run() -> None:
    net = one_device(MODELS["cnn"][0](), 7).double()
    engine = engine_of(ALONE)
    engine.load_state_dict({"model": net.state_dict()})
    assert engine.steps == 0
    assert_close(engine.state_dict()["model"], net.state_dict())


def test_what_does_not_fit_is_named() -> None:
    engine = engine_of(ALONE)
    engine.step(*batch("cnn", SAMPLES, 0))
    state = engine.state_dict()
    with pytest.raises(ValueError, match=r"rank 0 was given a state without 'model' .it has nothing.: save what"):
        engine.load_state_dict({})
    with pytest.raises(ValueError, match=r"7.bias has shape .5. in the model and .6. in the state"):
        engine.load_state_dict({"model": {**state["model"], "7.bias": torch.zeros(6)}})
    with pytest.raises(ValueError, match=r"the state has 9.bias, which the model of 8 layers has not"):
        engine.load_state_dict({"model": {**state["model"], "9.bias": torch.zeros(6)}})
    with pytest.raises(ValueError, match="optimizer AdamW and this run uses SGD"):
        engine_of(ALONE, optimizer).load_state_dict(state)
    one_group = {**state["optimizer"], "param_groups": state["optimizer"]["param_groups"][:1]}
    with pytest.raises(ValueError, match="the state's optimizer has 1 groups of parameters and this one 2"):
        engine.load_state_dict({**state, "optimizer": one_group})
    plain = state["model"]
    without = {name: plain[name] for name in plain if name != "1.weight"}
    with pytest.raises(ValueError, match=r"the state has no 1.weight, which the model has"):
        engine.load_state_dict({"model": without})
