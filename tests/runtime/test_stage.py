"""A stage learns what it hands on from tensors without data: it is right, and leaves no trace in what follows."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from halocline.plan import Stage
from halocline.runtime.boundary.crossing import Crossing, wanted
from halocline.runtime.stage import Held, StageOptions, StageRunner
from halocline.tiling.exchanger import ThreadExchanger
from harness.ranks import assert_close, image, on_threads


class Families(nn.Module):
    """One of every family of operators that has tables, statistics or exchanges of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.GELU(), nn.GroupNorm(2, 4))
        self.reflect = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1, 1)
        self.norms = nn.Sequential(nn.InstanceNorm2d(4), nn.LocalResponseNorm(2), nn.Dropout(0.1), nn.Dropout2d(0.1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.reflect(self.first(x))
        y = F.max_pool2d(F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), 2)
        y = F.pad(self.norms(self.up(y)), (1, 0, 2, 1), mode="replicate")
        y = F.pixel_unshuffle(F.interpolate(y, size=(12, 14), mode="bicubic"), 2)
        y = torch.cat(
            [F.interpolate(y, scale_factor=1.5), F.interpolate(y, size=(9, 10), mode="area")[:, :, :, :10]], 1
        )
        y = F.layer_norm(y.permute(0, 2, 3, 1), (y.shape[1],)).permute(0, 3, 1, 2)
        y = F.adaptive_avg_pool2d(y.softmax(1), (4, 3)) + F.adaptive_max_pool2d(y, (4, 3)).roll(1, 3)
        gate = torch.sigmoid(y.mean((2, 3), keepdim=True))
        z = F.adaptive_avg_pool2d(y * gate + y.var((2, 3), keepdim=True), 1).flatten(1)
        return x, y.flip(3), z


@pytest.mark.parametrize(
    "stage",
    [
        Stage((0, 1), (2, 2)),
        Stage((0, 1), (1, 3)),
        Stage((0, 1), lanes=2),
        Stage((0, 1), (1, 2), lanes=2),
    ],
    ids=str,
)
def test_shapes_without_data(stage: Stage) -> None:
    torch.manual_seed(0)
    state = Families().double().state_dict()
    entering = Crossing((3, 3, 17, 19), "float64", True)
    whole = image(entering.size)
    model = Families().double()
    model.load_state_dict(state)
    model.norms.eval()  # ranks that are threads share one generator
    expected = model(whole)
    # Tensors without data are a mode of the process: ranks that are threads take turns.
    turn, together = threading.Lock(), threading.Barrier(stage.team_size, timeout=300)

    def run(exchanger: ThreadExchanger) -> None:
        with turn:
            mine = Families().double()
        mine.load_state_dict(state)
        mine.norms.eval()
        runner = StageRunner(0, stage, exchanger.rank, [("0", mine)], exchanger, range(exchanger.size), StageOptions())
        received = wanted(entering, stage)
        for _ in range(2):
            together.wait()
            with turn:
                leaving = runner.crossings_after([received])
            together.wait()
            for value in mine.state_dict().values():
                assert type(value) is Tensor
            mine.load_state_dict(state)
            parts: Any = tuple(slice(a, b) for a, b in runner.origin(received))
            held = Held([whole[parts].requires_grad_()], (received,))
            runner.forward(held, 0, 0, 1.0)
            assert [c.size for c in leaving] == [tuple(t.shape) for t in expected]
            for crossing, ours, theirs in zip(leaving, held.outputs, expected):
                owned = tuple(slice(a, b) for a, b in runner.origin(crossing))
                assert_close(ours, theirs[owned], 1e-11, "what the stage hands on")
            torch.autograd.backward(held.outputs, [torch.ones_like(t) for t in held.outputs])

    on_threads(stage.team_size, run)
