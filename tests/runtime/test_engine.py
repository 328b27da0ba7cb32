"""What an engine is given that it cannot use is refused in one line with the way out, before or at the first step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan, Stage
from halocline.runtime import Engine, join

PLAN = Plan((Stage((0, 1)),), microbatches=2)


class Learns(nn.Module):
    """A loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))


def engine(**given: Any) -> Engine:
    options: dict[str, Any] = {"loss": F.mse_loss, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), **given}
    return Engine(PLAN, options.pop("layers", [nn.Linear(2, 2)]), **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": None}, "loss = None is not a function"),
        ({"loss": nn.MSELoss}, r"the class MSELoss, not one of it: pass MSELoss\(\)"),
        ({"loss": nn.MSELoss(reduction="sum")}, "reduction = 'sum', and the 2 microbatches .* use .* 'mean'"),
        ({"loss": partial(F.mse_loss, reduction="sum")}, "reduction = 'sum'"),
        ({"loss": Learns()}, "a Learns, has parameters of its own, .* or freeze them"),
        ({"clip": 0.0}, r"clip = 0\.0 is not above 0"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, "optimizer is a SGD, not a function that makes one"),
        ({"optimizer": lambda p: None}, "optimizer made a NoneType"),
        ({"optimizer": torch.optim.LBFGS}, "LBFGS needs a closure"),
        ({"layers": ["linear"]}, "layer 0 is a str"),
    ],
)
def test_refused_when_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine(**given)


def test_a_mean_over_samples_is_taken() -> None:
    x = torch.ones(4, 2)
    for loss in (nn.MSELoss(), nn.KLDivLoss(reduction="batchmean"), partial(F.mse_loss, reduction="mean")):
        engine(loss=loss).step(x, x)


def test_a_sum_that_is_no_mistake() -> None:
    """A function of one's own may call a mean what it likes, and a batch that is not cut has but one sum."""

    def own(output: Tensor, target: Tensor, reduction: str) -> Tensor:
        return F.mse_loss(output, target, reduction=reduction) / output.numel()

    x = torch.ones(4, 2)
    engine(loss=partial(own, reduction="sum")).step(x, x)
    layers, whole = [nn.Linear(2, 2)], Plan((Stage((0, 1)),))
    known = F.mse_loss(layers[0](x), x, reduction="sum").item()
    assert Engine(whole, layers, loss=nn.MSELoss(reduction="sum")).step(x, x).loss == pytest.approx(known)


@pytest.mark.parametrize(
    ("inputs", "targets", "samples", "said"),
    [
        (torch.ones(4, 2), torch.ones(3, 2), None, "have 3 and 4 samples"),
        (torch.ones(4, 2), torch.ones(4, 2), 5, "samples = 5 but the batch has 4"),
        ([[1.0, 2.0]], torch.ones(4, 2), None, "the inputs are a list with a list in it: give a tensor"),
        ({"x": torch.ones(4, 2)}, torch.ones(4, 2), None, "the inputs are a dict"),
        (torch.ones(4, 2), torch.ones(()), None, "the targets are a tensor without dims"),
    ],
)
def test_refused_at_a_step(inputs: Any, targets: Any, samples: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        engine().step(inputs, targets, samples)


def test_an_evaluation_of_nothing() -> None:
    with pytest.raises(ValueError, match="a batch of 0 samples has no loss"):
        engine().evaluate(torch.ones(0, 2), torch.ones(0, 2))
    with pytest.raises(ValueError, match="measure 'wide' returned a tensor of shape"):
        engine().evaluate(torch.ones(4, 2), torch.ones(4, 2), {"wide": lambda output, target: output})


def test_two_engines_of_one_process_take_turns() -> None:
    """The logbook knows the instructions of the one that was made last."""
    world = join()
    plans = [Plan((Stage((0, 1)),), microbatches=count) for count in (2, 1)]
    engines = [Engine(plan, [nn.Linear(4, 2)], loss=F.mse_loss, world=world) for plan in plans]
    for engine in (*engines, *engines):
        assert engine.step(torch.zeros(2, 4), torch.zeros(2, 2)).samples == 2
