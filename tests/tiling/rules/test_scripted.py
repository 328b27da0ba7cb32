"""TorchScript on tiles: a scripted function runs as the Python function it was; what has a state of its own is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.ranks import assert_exact, image

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own: TorchScript is about to go

SHAPE = (2, 3, 6, 5)


def swish(x: Tensor, slope: float = 1.5) -> Tensor:
    return x * torch.sigmoid(slope * x)


def centred(tensors: list[Tensor]) -> Tensor:
    return swish(tensors[0]) - tensors[1].mean()


CALLS: dict[str, tuple[Any, Callable[[Any, Tensor], Tensor]]] = {
    "by place": (swish, lambda script, x: script(x)),
    "by name": (swish, lambda script, x: script(x, slope=0.5)),
    "a list, by way of another": (centred, lambda script, x: script([x, 2 * x])),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_scripted_function_is_exact(name: str) -> None:
    function, call = CALLS[name]
    script = torch.jit.script(function)
    torch.testing.assert_close(call(script, image(SHAPE)), call(function, image(SHAPE)))
    assert_exact(lambda x: call(script, x), SHAPE, cuts=[[0, 6], [0, 2, 5]], tiled=True)


REFUSED: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "scripted module": (lambda x: torch.jit.script(nn.Conv2d(3, 3, 3).double())(x), "Conv2d.forward"),
    "traced module": (lambda x: torch.jit.trace(nn.ReLU(), torch.ones(1))(x), "ReLU.forward"),
    "traced function": (lambda x: torch.jit.trace(torch.special.expit, torch.ones(1))(x), "expit|special"),
    "a trace of a tile": (lambda x: torch.jit.trace(nn.ReLU(), x), "untraced"),
    "an unchecked trace of a tile": (lambda x: torch.jit.trace(nn.ReLU(), x, check_trace=False), "untraced"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused_by_name_and_with_the_way_out(name: str) -> None:
    x = tiling.tile(image(SHAPE), (1, 2), NoCommunication(0, 2))
    run, named = REFUSED[name]
    with pytest.raises(UntiledOperation, match=named) as refusal:
        run(x)
    assert "torch.jit." in str(refusal.value)


def test_a_scripted_part_of_a_module_is_named() -> None:
    net = nn.Sequential(nn.ReLU(), torch.jit.script(nn.Conv2d(3, 3, 3))).double()
    with pytest.raises(UntiledOperation, match=r"Conv2d.forward.* in module 1 "):
        net(tiling.tile(image(SHAPE), (1, 2), NoCommunication(0, 2)))
