"""What is replaced in torch: nothing before the first tile. On tiles a scripted function runs as the Python function it
was; what has a state of its own is refused. The other replacements are tried where their rules are."""

import subprocess
import sys
import textwrap
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


def _in_a_fresh_interpreter(code: str) -> None:
    names = """
    import copy, pickle, threading
    import torch
    from torch import nn
    from torch.autograd.function import _SingleLevelFunction

    def places():
        return {
            "SyncBatchNorm": nn.SyncBatchNorm.forward,
            "apply": getattr(_SingleLevelFunction, "apply"),
            "backward": torch.autograd.backward,
            "make_grads": torch.autograd._make_grads,
            "scripted": torch.jit.ScriptFunction.__call__,
            "data": torch.Tensor.data,
        }

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    kept = Double.apply
    torchs = places()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(names) + textwrap.dedent(code)], check=True, timeout=300)


def test_an_import_replaces_nothing_in_torch() -> None:
    _in_a_fresh_interpreter(
        """
        import halocline, halocline.tiling, halocline.runtime, halocline.train
        import halocline.runtime.engine, halocline.runtime.stage, halocline.train.trainer
        from halocline.tiling import TileTensor, fuse, rule, tile
        import halocline.tiling.replacements
        assert places() == torchs
        """
    )


def test_the_first_tile_replaces_once_whichever_thread_makes_it() -> None:
    _in_a_fresh_interpreter(
        """
        from halocline import tiling
        from halocline.tiling import replacements

        made = []
        norm = nn.SyncBatchNorm(3)
        again = copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))
        exchangers = tiling.ThreadExchanger.connect(4)
        start = threading.Barrier(4)

        def run(exchanger):
            start.wait()
            x = tiling.tile(torch.ones(2, 3, 8, 8).cumsum(-1), (2, 2), exchanger)
            made.append([net(kept(x)).full() for net in (nn.BatchNorm2d(3), copy.deepcopy(norm), *again)])

        threads = [threading.Thread(target=run, args=(e,)) for e in exchangers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 4 and all(torch.allclose(out, outs[0]) for outs in made for out in outs)
        now = places()
        assert all(now[name] != torchs[name] for name in torchs)
        assert len(replacements._DONE) == len(replacements._REPLACEMENTS)
        replacements.install()
        tiling.TileTensor.wrap(torch.ones(1, 1, 4, 4), tiling.tile(torch.ones(1, 1, 4, 4), (1, 1)).spec)
        assert places() == now

        net = pickle.loads(pickle.dumps(nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(3)).eval()))
        try:
            net(torch.ones(2, 3, 4, 4))  # as torch refuses a plain tensor on a CPU
        except ValueError as error:
            assert "GPU" in str(error)
        plain = torch.ones(3, requires_grad=True)
        plain.data = torch.full((3,), 2.0)
        kept(plain).backward(torch.ones(3))
        assert plain.grad.tolist() == [2.0] * 3 and plain.data.tolist() == [2.0] * 3
        """
    )
