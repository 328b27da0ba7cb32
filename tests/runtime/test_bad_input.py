"""Bad input: each is refused with both values and the way out, on every rank that could know."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from halocline.plan import Plan
from halocline.runtime import Engine, World
from halocline.runtime.guards.errors import OutOfMemory, advice, is_shortage
from halocline.schedule.instruction import Instruction
from harness.checks import bad_input as check
from harness.ranks import close, on_processes

ALONE = "microbatches = 2\nstages = [{layers = [0, 4]}]"


def test_a_world_of_another_size() -> None:
    for said in on_processes(2, check.mismatched):
        assert "the plan needs 3 processes and 2 are running: start it with torchrun --nproc-per-node 3" in said


def test_the_command_is_the_launchers_own() -> None:
    world = World(0, 1, torch.device("cpu"), launcher="Open MPI")
    with pytest.raises(ValueError, match="needs 2 processes and 1 are running: start it with mpirun -n 2"):
        Engine(Plan.from_toml(check.TWO), [nn.Linear(4, 4) for _ in range(4)], loss=F.mse_loss, world=world)


def test_fewer_layers_than_stages() -> None:
    with pytest.raises(ValueError, match="the model has 1 layers and the plan's 2 stages hold 4: use fewer stages"):
        Engine(Plan.from_toml(check.TWO), [nn.Linear(4, 4)], loss=F.mse_loss)


def test_a_batch_smaller_than_the_microbatches() -> None:
    for said in on_processes(2, check.too_small, check.TWO):
        assert "a batch of 1 samples cannot fill 2 microbatches (1 replicas x 2): use a batch of at least 2" in said


def test_a_layer_that_returns_no_tensor() -> None:
    with pytest.raises(ValueError, match="layer 1 returned a str: a layer must return a tensor or a tuple of tensors"):
        check.engine(ALONE, [check.linear, check.Words, check.linear, check.linear]).step(*check.vectors())


def test_a_layer_that_returns_no_tensor_elsewhere() -> None:
    first, second = on_processes(2, check.words, 1)
    assert "layer 1 returned a str" in first
    assert "PeerLost: rank 1 waits for the shapes that stage 0 hands to stage 1: they did not come in 3 s" in second


@pytest.mark.parametrize("text", [check.TWO, check.GEMS], ids=["1f1b", "gems"])
def test_a_nan_loss_stops_every_rank_and_says_where(text: str) -> None:
    for message, losses, unchanged in on_processes(2, check.nan, text, "stop", 0):
        assert message.startswith("NotFinite: the loss of step 2 is "), message
        assert "microbatch 1, stage 0: it began in layer 0; lower the learning rate" in message
        assert len(losses) == 1 and unchanged


def test_a_nan_loss_names_a_later_stage() -> None:
    for message, _, unchanged in on_processes(2, check.nan, check.TWO, "stop", 2):
        assert unchanged
        assert "microbatch 1, stage 1: it began in layer 2" in message


@pytest.mark.parametrize("text", [check.TWO, check.GEMS], ids=["1f1b", "gems"])
def test_a_nan_loss_is_skipped_without_a_trace(text: str) -> None:
    for message, losses, unchanged in on_processes(2, check.nan, text, "skip", 0):
        assert message == "" and unchanged
        assert not math.isfinite(losses[1]) and math.isfinite(losses[2]) and losses[2] < losses[0]


def test_inputs_that_are_nan_are_blamed() -> None:
    run = check.engine(ALONE, [check.linear] * 4)
    x, y = check.vectors()
    x[2, 1] = math.nan
    with pytest.raises(ArithmeticError, match="microbatch 1, stage 0: its inputs are not finite; look at the data"):
        run.step(x, y)


def test_a_loss_that_is_nan_by_itself() -> None:
    run = check.engine(ALONE, [check.linear] * 4)
    x, y = check.vectors()
    y[0, 0] = math.inf
    with pytest.raises(ArithmeticError, match="microbatch 0, stage 0: every layer's output is finite, so the loss"):
        run.step(x, y)


def test_an_unknown_policy() -> None:
    with pytest.raises(ValueError, match="nan='ignore' is no policy: use 'stop' or 'skip'"):
        check.engine(ALONE, [check.linear] * 4, nan="ignore")


def test_out_of_memory_says_what_was_held_and_what_would_halve_it() -> None:
    run = check.engine(ALONE, [check.linear, check.Hungry, check.linear, check.linear])
    with pytest.raises(OutOfMemory) as caught:
        run.step(*check.vectors(8))
    said = str(caught.value)
    where = "rank 0 is out of memory on cpu in forward p0 s0 m1 (stage 0 holds 640 B of parameters and "
    assert said.startswith(where), said
    assert "1 microbatches at work with" in said, said


def test_out_of_memory_on_one_of_two() -> None:
    first, second = on_processes(2, check.hungry)
    close(2)  # an expired wait closes gloo's connections
    assert second.startswith("OutOfMemory: rank 1 is out of memory on cpu in forward p0 s1 m1 (stage 1 holds ")
    assert first.startswith("PeerLost: rank 0 waits in ")


def test_advice_follows_what_weighs_most() -> None:
    plan = Plan.from_toml("microbatches = 2\nstages = [{layers = [0, 4], tiles = [2, 2], recompute = true}]")
    forward = Instruction("forward", 0, 0, 0)
    assert "cut stages[0] (4 layers) into two stages of 2 and 2 layers" in advice(plan, forward, [8], True)
    assert "4 microbatches instead of 2 halve them (8 -> 4 samples each)" in advice(plan, forward, [8], False)
    assert "tiles = [2, 4] instead of [2, 2]" in advice(plan, forward, [1], False)
    volume = Plan.from_toml("stages = [{layers = [0, 4], tiles = [2, 1, 1], recompute = true}]")
    assert "tiles = [2, 1, 2] instead of [2, 1, 1]" in advice(volume, forward, [1], False)
    plain = Plan.from_toml("microbatches = 2\nstages = [{layers = [0, 4]}]")
    assert "set stages[0].recompute" in advice(plain, forward, [1], False)


def test_what_is_a_shortage() -> None:
    assert is_shortage(MemoryError()) and is_shortage(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_shortage(caught.value)
    assert not is_shortage(RuntimeError("shapes differ"))
