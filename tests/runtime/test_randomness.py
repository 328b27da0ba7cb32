"""A step draws random numbers of its own: those of whoever calls it go on as if there had been none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from halocline.plan import Plan
from halocline.runtime import Engine
from halocline.runtime.processes.launch import join

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, GPU])])
def test_a_step_leaves_the_callers_random_numbers_alone(device: str) -> None:
    layers = [nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3)]
    world = join(device)
    engine = Engine(Plan.from_flags(split_size=1, layers=3), layers, loss=F.cross_entropy, world=world)
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    torch.manual_seed(3)
    expected = [torch.rand(2), torch.rand(2, device=device)]
    torch.manual_seed(3)
    engine.step(x, y)
    engine.evaluate(x, y)
    for found, known in zip([torch.rand(2), torch.rand(2, device=device)], expected):
        assert torch.equal(found, known)
    engine.close()
    world.close()
