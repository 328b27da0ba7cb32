"""One module in several layers: tied where it can be, refused where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.guards.shared import built_where_shared
from halocline.runtime.layers import named_layers, own_randomness
from halocline.runtime.proof import verify
from halocline.runtime.state import holdings
from harness.checks.plans import world
from harness.one_process import AGAIN, CUT, MIRRORED, sgd
from harness.ranks import on_processes


class Wrap(nn.Module):
    """Uses a module under two names, and has something of its own."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.z, self.a, self.own = part, nn.Sequential(part), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.a(x)) + self.z(x)


class Other(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.register_buffer("table", torch.arange(3.0)[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x) + self.table


class Hides(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.parts = [part]

    def forward(self, x: Tensor) -> Tensor:
        return self.parts[0](x)


def conv() -> nn.Module:
    return nn.Conv2d(3, 3, 3, padding=1)


def head() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 5))


def built() -> list[Any]:
    part = conv()
    return [Wrap(part), nn.ReLU(), Other(part), head()]


def made() -> list[Any]:
    part = conv()
    return [lambda: Wrap(part), nn.ReLU, partial(Other, part), head]


def itself() -> Any:
    part = Other(conv())
    return nn.Sequential(part, nn.ReLU(), part, head())


def statistics() -> list[Any]:
    """Updated three times in a forward."""
    part = nn.BatchNorm2d(3, momentum=0.3)
    return [
        nn.Sequential(Wrap(part), nn.ReLU(), conv(), Other(part)),
        nn.ReLU(),
        nn.Sequential(nn.ReLU(), conv()),
        head(),
    ]


def hidden() -> list[Any]:
    part = conv()
    return [nn.Sequential(Wrap(part), Hides(part)), nn.ReLU(), conv(), head()]


def compare(model: Callable[[], Any], plan: Plan, **options: Any) -> tuple[float, list[str]]:
    """The largest difference from one device, and the names of what this rank writes to a checkpoint."""

    def layers() -> Any:
        with own_randomness(1):
            return model()

    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(n, 3, 9, 8, generator=generator, dtype=torch.float64), torch.arange(n) % 5) for n in (8, 9)]
    given: dict[str, Any] = {"loss": F.cross_entropy, "optimizer": sgd, "dtype": torch.float64}
    known = verify.reference(layers(), plan, batches, **given)
    run = Engine(plan, layers(), **given, **options)
    found = verify.compare(run, batches, known)
    if plan.world_size == 1:
        found.require(known)
    return found.worst, [f"{held.name} {held.key}" for held in holdings(run).tensors]


MODELS = [built, made, itself, statistics, hidden]


@pytest.mark.parametrize("plan", [CUT, AGAIN, MIRRORED], ids=["kept", "recomputed", "mirrored"])
@pytest.mark.parametrize("model", MODELS)
def test_one_module_in_several_layers(model: Callable[[], Any], plan: Plan) -> None:
    worst, names = compare(model, plan)
    assert worst < 1e-10
    assert len(names) == len(set(names))


def compare_all(plans: list[str]) -> float:
    given = [Plan.from_toml(text) for text in plans]
    return max(compare(model, plan, world=world())[0] for plan in given for model in MODELS)


def test_one_module_in_several_layers_on_two_ranks() -> None:
    plans = [
        Plan.from_flags(layers=4, split_size=2, parts=4),
        Plan.from_flags(layers=4, split_size=2, parts=4, schedule="gems"),
        Plan.from_flags(layers=4, split_size=1, parts=2, replicas=2),
        Plan.from_flags(layers=4, split_size=1, parts=2, num_spatial_parts=2, halo_D2=True),
    ]
    assert max(on_processes(2, compare_all, [plan.to_toml() for plan in plans])) < 1e-10


def test_what_two_stages_cannot_share() -> None:
    part, norm = conv(), nn.BatchNorm2d(3)
    with pytest.raises(ValueError, match=r"layers 0 and 2 of stages 0 and 2 share a Conv2d, and layer 2 does not"):
        Engine(CUT, [Wrap(part), nn.ReLU(), Hides(part), head()], loss=F.cross_entropy)
    with pytest.raises(ValueError, match=r"layers 0 and 2 of stages 0 and 2 share a BatchNorm2d, whose running stat"):
        Engine(CUT, [lambda: Other(norm), nn.ReLU, lambda: Wrap(norm), head], loss=F.cross_entropy)
    Engine(CUT, [Other(norm.eval()), nn.ReLU(), Wrap(norm), head()], loss=F.cross_entropy)


def test_hooks_of_a_model_that_knows_all_its_layers_share_nothing() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.features = nn.Sequential(conv(), nn.ReLU(), conv(), head()), {}
            for layer in self.layers:
                layer.register_forward_hook(self.save)

        def save(self, layer: nn.Module, args: Any, output: Any) -> None:
            self.features[layer] = output

    assert compare(lambda: Net().layers, CUT)[0] < 1e-10
    assert compare(lambda: Net().layers, MIRRORED)[0] < 1e-10


def test_a_function_that_shares_nothing_is_not_called_early() -> None:
    called: list[int] = []

    def layer() -> nn.Module:
        called.append(1)
        return conv()

    built_where_shared(named_layers([layer, lambda: nn.Sequential(layer(), nn.ReLU()), head]), 0)
    assert not called


class Uses(nn.Module):
    """A convolution with a weight of somebody's."""

    def __init__(self, weight: Tensor, registered: bool = True) -> None:
        super().__init__()
        self.weight = weight if registered else None
        self.get = lambda: self.weight if registered else weight

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.get(), padding=1)


def test_functions_that_build_around_one_parameter() -> None:
    def model() -> list[Any]:
        weight = nn.Parameter(torch.randn(3, 3, 3, 3))
        return [conv, lambda: Uses(weight), lambda: Uses(weight), head]

    for plan in (CUT, MIRRORED):
        assert compare(model, plan)[0] < 1e-10


def test_a_parameter_of_another_stage_that_is_not_registered() -> None:
    def model() -> list[Any]:
        part = conv()
        return [part, nn.ReLU(), Uses(part.weight, registered=False), head()]

    with pytest.raises(ValueError, match=r"layers 2 to 2 uses 0\.weight, a parameter of another stage"):
        compare(model, CUT)
    assert compare(model, MIRRORED)[0] < 1e-10


class Skips(nn.Module):
    """Keeps its input for a later layer, or takes what an earlier one kept."""

    def __init__(self, kept: dict[str, Any], gives: bool) -> None:
        super().__init__()
        self.conv, self.kept, self.gives = conv(), kept, gives

    def forward(self, x: Tensor) -> Tensor:
        if self.gives:
            self.kept["x"] = x
            return self.conv(x)
        return self.conv(x) + self.kept.get("x", 0)


def test_a_dict_through_which_stages_would_hand_over() -> None:
    def model() -> list[Any]:
        kept: dict[str, Any] = {}
        return [Skips(kept, True), nn.ReLU(), Skips(kept, False), head()]

    with pytest.raises(ValueError, match=r"changes 0\.kept, which layers 0 and 2 of several stages have in common"):
        compare(model, CUT)
    assert compare(model, Plan.from_flags(layers=4, split_size=1, parts=2))[0] < 1e-10
