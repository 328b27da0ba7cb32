"""Models that are not plain sequences of operators: each equals one device across stage boundaries, or is refused.

All stages are on one process, which hands over from one to the next as ranks do, but for the messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Plan, Stage
from halocline.runtime import Engine
from halocline.runtime.guards.arguments import refuse_sync_batch_norm
from halocline.runtime.proof import verify
from harness.one_process import AGAIN, CUT, MIRRORED, batch, engine, linear, sgd


class Does(nn.Module):
    """A layer of one line."""

    def __init__(self, what: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), what

    def forward(self, x: Any) -> Any:
        return self.what(self.linear(x) if torch.is_tensor(x) and not x.is_complex() else x)


class Shared(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.both = nn.Sequential(self.one, nn.Tanh(), self.one)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x) + self.one(x)


class Counts(nn.Module):
    """Changes a buffer in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


class Keeps(nn.Module):
    """Makes a table when it is first needed: as an attribute, a buffer, and an entry."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None
        self.tables: dict[int, Tensor] = {}
        self.register_buffer("scale", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        if self.table is None:
            self.table, self.scale = torch.arange(width, dtype=x.dtype), torch.ones(width, dtype=x.dtype)
        if width not in self.tables:
            self.tables[width] = torch.ones(width, dtype=x.dtype)
        return x * self.scale + self.table * self.tables[width]


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x


class WritesTo(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(3).add_(1)


class Image(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[..., None] * torch.arange(1, 4, dtype=x.dtype)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean(-1)


MODELS: dict[str, list[Any]] = {
    "one module under two names": [Shared, Shared, nn.Tanh, linear],
    "tables that are made once": [linear, Keeps, nn.Tanh, linear],
    "layers that write to their input": [linear, lambda: nn.Hardswish(inplace=True), WritesTo, linear],
    "complex numbers": [lambda: Does(torch.fft.fft), lambda: Does(torch.conj), lambda: Does(torch.real), linear],
    "statistics that are used and not changed": [linear, lambda: nn.BatchNorm1d(4).eval(), nn.Tanh, linear],
    "statistics that nobody counts": [Image, lambda: nn.InstanceNorm1d(4, track_running_stats=True), Mean, linear],
    "an average instead of a momentum": [linear, lambda: nn.BatchNorm1d(4, momentum=None), nn.Tanh, linear],
}


@pytest.mark.parametrize("plan", [CUT, AGAIN, MIRRORED], ids=["kept", "recomputed", "mirrored"])
@pytest.mark.parametrize("model", MODELS)
def test_equals_one_device(model: str, plan: Plan) -> None:
    batches = [batch(6), batch(5)]
    known = verify.reference(MODELS[model], plan, batches, loss=F.cross_entropy, optimizer=sgd, dtype=torch.float64)
    found = verify.compare(engine(plan, MODELS[model]), batches, known)
    found.require(known)
    assert found.worst < 1e-10


def test_a_buffer_that_a_forward_changes() -> None:
    layers = [linear, Counts, nn.Tanh, linear]
    engine(CUT, layers).step(*batch(4))
    with pytest.raises(ValueError, match=r"buffer 1\.calls, which would happen more than once"):
        engine(AGAIN, layers).step(*batch(4))
    unfilled = linear()
    unfilled.register_buffer("unfilled", torch.full((2,), float("nan")))
    engine(AGAIN, [linear, unfilled, nn.Tanh, linear]).step(*batch(4))


def test_a_layer_that_asks_for_values() -> None:
    with pytest.raises(ValueError, match=r"layer 1 \(Decides\) asks for values of its data .* the last stage"):
        engine(CUT, [linear, Decides, nn.Tanh, linear]).step(*batch(4))
    engine(CUT, [linear, linear, nn.Tanh, lambda: nn.Sequential(Decides(), nn.Linear(4, 4))]).step(*batch(4))


def test_a_layer_that_talks_to_all_processes() -> None:
    with pytest.raises(ValueError, match="layer 1 holds a SyncBatchNorm, which sums over all processes"):
        refuse_sync_batch_norm("1", nn.Sequential(nn.Conv2d(3, 3, 1), nn.SyncBatchNorm(3)))
    refuse_sync_batch_norm("1", nn.Sequential(nn.Conv2d(3, 3, 1), nn.SyncBatchNorm(3).eval()))


def test_an_error_in_a_layer_names_it() -> None:
    for plan, when in ((CUT, ", run without data"), (Plan((Stage((0, 4)),)), "")):
        with pytest.raises(RuntimeError) as caught:
            engine(plan, [linear, linear, lambda: nn.Linear(5, 5), linear]).step(*batch(4))
        assert caught.value.__notes__[0].startswith(f"in layer 2 (Linear){when}")


def test_a_layer_that_writes_to_its_input_in_training_only() -> None:
    """An evaluation had shown that it does not."""
    x, y = batch(4)
    known = x.clone()
    run = engine(CUT, [lambda: nn.Dropout(0.5, inplace=True), lambda: nn.Dropout(0.5, inplace=True), linear, linear])
    with torch.inference_mode():
        engine(Plan((Stage((0, 1)),)), [linear]).evaluate(x, y)
    run.evaluate(x, y)
    run.step(x, y)
    assert torch.equal(x, known)


def test_inputs_that_want_gradients() -> None:
    x, y = batch(4)
    plain = engine(CUT, [linear] * 4).step(x, y).loss
    assert engine(CUT, [linear] * 4).step(x.clone().requires_grad_(), y).loss == plain


def test_a_tuple_of_one_tensor() -> None:
    layers = [linear, lambda: Does(lambda x: (x,)), lambda: Does(lambda x: x[0]), linear]
    with pytest.raises(ValueError, match="layer 1 returned a tuple of Tensor, and the next stage would be given"):
        engine(CUT, layers).step(*batch(4))


def test_a_write_to_a_tensor_that_was_returned_twice() -> None:
    """On one device both change."""
    layers = [linear, lambda: Does(lambda x: (x, x)), lambda: Does(lambda pair: pair[0].mul_(2) + pair[1]), linear]
    with pytest.raises(ValueError, match="layers 2 to 2 write to an input that the stage before returned twice"):
        engine(CUT, layers).step(*batch(4))
    rows = [linear, lambda: Does(lambda x: (x[:, :3], x[:, 1:])), *layers[2:]]
    with pytest.raises(ValueError, match=r"layers 2 to 2 write to an input .* beside another view of"):
        engine(CUT, rows).step(*batch(4))
    halves = [linear, lambda: Does(lambda x: x.chunk(2, 1)), lambda: Does(lambda pair: pair[0].mul_(2) + pair[1]), Wide]
    engine(CUT, halves).step(*batch(4))


def test_a_list_arrives_as_a_list() -> None:
    layers = [linear, lambda: Does(lambda x: [x, 2 * x]), lambda: Does(lambda parts: parts.pop() + parts.pop()), linear]
    known = verify.reference(layers, CUT, [batch(4)], loss=F.cross_entropy, dtype=torch.float64)
    assert verify.compare(engine(CUT, layers), [batch(4)], known).loss < 1e-10


class Parts(NamedTuple):
    one: Tensor
    other: Tensor


def test_a_tuple_with_names() -> None:
    layers = [linear, lambda: Does(lambda x: Parts(x, 2 * x)), lambda: Does(lambda x: x.one + x.other), linear]
    with pytest.raises(ValueError, match=r"layer 2 \(Does\) asks what it is given for an attribute, .* by number"):
        engine(CUT, layers).step(*batch(4))


class Builds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "part"):
            self.part = nn.Linear(4, 4).to(x.dtype)
        return self.part(x)


class Shrinks(nn.Module):
    """Writes to a parameter that its backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.9)
        return self.linear(x)


def test_what_torch_cannot_do_in_a_pipeline_is_said_in_one_line() -> None:
    for layer, words in (
        (Builds, r"layer 1 \(Builds\) makes a module in its forward and moves it"),
        (Shrinks, "layers 1 to 1 write in a forward to what a backward needs"),
        (lambda: nn.Sequential(nn.LazyLinear(4)), "1.0 is a LazyLinear, whose parameters have no shape"),
    ):
        with pytest.raises(ValueError, match=words):
            engine(CUT, [linear, layer, nn.Tanh, linear]).step(*batch(4))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def test_a_layer_that_asks_whether_gradients_are_recorded_is_refused_where_stages_recompute() -> None:
    def what(x: Tensor) -> Tensor:
        return x * 2 if torch.is_grad_enabled() else x

    layers = [nn.Linear(4, 4), Does(what), nn.Linear(4, 4), nn.Linear(4, 4)]
    engine = Engine(AGAIN, layers, loss=F.mse_loss, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"layers 1 to 1 make something else of a microbatch when they recompute it"):
        engine.step(torch.randn(4, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64))
