"""Every function of torch that can be told of tiles (torch, torch.Tensor, linalg, fft, special), tried with the first
arguments that one device takes: exact, refused, or as wrong as on one device. Never a silent local result.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import get_overridable_functions

from halocline import tiling
from halocline.tiling import NoCommunication, UntiledOperation
from harness.operators import ARGUMENTS, NOT_SWEPT, SHAPE, Arguments
from harness.ranks import assert_exact, image, on_threads, tensors, weighted_loss

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of functions that it is about to drop

CUTS = [[0, 6], [0, 2, 5]]


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    seen = set()
    for space, members in get_overridable_functions().items():
        if space is F:
            continue
        for function in members:
            if function in seen:
                continue
            seen.add(function)
            owner = getattr(function, "__self__", None)
            name = getattr(function, "__name__", repr(function))
            if hasattr(owner, "__objclass__"):
                name = f"{owner.__name__}.{name}"
            yield f"{space.__name__ if isinstance(space, ModuleType) else 'Tensor'}.{name}", function


def accepted(function: Callable[..., Any]) -> list[Arguments]:
    """The arguments that one device takes, at most two of them."""
    found: list[Arguments] = []
    for arguments in ARGUMENTS:
        try:
            if function(*arguments(image(SHAPE))) is not NotImplemented:
                found.append(arguments)
        except Exception:
            continue
        if len(found) == 2:
            break
    return found


def has_gradient(function: Callable[..., Any], arguments: Arguments) -> bool:
    x = image(SHAPE).requires_grad_()
    try:
        outputs = [t for t in tensors(function(*arguments(x.clone()))) if t.requires_grad]
        if not outputs:
            return False
        weighted_loss(outputs).backward()
    except RuntimeError:
        return False
    return x.grad is not None


def verdict(function: Callable[..., Any], arguments: Arguments) -> str:
    """ "exact" or "refused"; an AssertionError for anything else."""
    expected = function(*arguments(image(SHAPE)))
    try:
        if tensors(expected):
            wide = all(t.dtype in (torch.float64, torch.complex128) for t in tensors(expected) if t.is_floating_point())
            assert_exact(
                lambda x: tensors(function(*arguments(x))),
                SHAPE,
                cuts=CUTS,
                gradients=has_gradient(function, arguments),
                tolerance=1e-12 if wide else 1e-6,
            )
        else:
            answers = on_threads(2, lambda e: function(*arguments(tiling.tile(image(SHAPE), cuts=CUTS, group=e))))
            assert all(type(a) is type(expected) and a == expected for a in answers), (answers, expected)
    except UntiledOperation:
        return "refused"
    return "exact"


def test_every_function_is_exact_or_refused() -> None:
    found = {}
    for name, function in functions():
        if name.rpartition(".")[2] in NOT_SWEPT:
            continue
        for i, arguments in enumerate(accepted(function)):
            try:
                found[f"{name} #{i}"] = verdict(function, arguments)
            except Exception as error:
                found[f"{name} #{i}"] = f"{type(error).__name__}: {error}"
    wrong = {name: what for name, what in found.items() if what not in ("exact", "refused")}
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    # So that this cannot pass by trying nothing:
    verdicts = list(found.values())
    assert verdicts.count("exact") > 900 and verdicts.count("refused") > 150, verdicts.count("exact")


READERS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "np.asarray": np.asarray,
    "bool": bool,
    "float": float,
    "int": int,
    "as an index of a list": lambda x: [1, 2][x],
    "in": lambda x: 1.0 in x,
    "equal": lambda x: torch.equal(x, x),
    "format": lambda x: f"{x:.2f}",
    "from_dlpack": torch.from_dlpack,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "save": lambda x: torch.save(x, io.BytesIO()),
    "data_ptr": lambda x: x.data_ptr(),
    "storage": lambda x: x.untyped_storage(),
    "stride": lambda x: x.stride(),
    "out=": lambda x: torch.add(x, 1, out=torch.zeros(SHAPE)),
    "set_": lambda x: x.set_(torch.zeros(SHAPE)),
    "aten": torch.ops.aten.sum.default,
    "torch.tensor": lambda x: torch.tensor(x),
    "torch.Tensor": lambda x: torch.Tensor(x.float()),
    "new_tensor": lambda x: torch.zeros(1).new_tensor(x),
    "set_ of a plain tensor": lambda x: torch.zeros(1, dtype=x.dtype).set_(x),
    "as_subclass": lambda x: x.as_subclass(Tensor),
    "vmap": torch.func.vmap(lambda row: row * row.mean()),
    "func.grad": torch.func.grad(lambda x: x.square().mean()),
    "compile": lambda x: torch.compile(lambda t: t * t.shape[-1], backend="eager")(x),
    "jit": lambda x: torch.jit.script(torch.nn.ReLU())(x),
    "backward": lambda x: x.backward(),
}


@pytest.mark.parametrize("name", READERS)
def test_nobody_reads_one_tile_for_the_whole(name: str) -> None:
    x = tiling.tile(image(SHAPE), cuts=CUTS, group=NoCommunication(0, 2))
    with pytest.raises(UntiledOperation):
        READERS[name](x)


def test_a_tile_can_be_printed() -> None:
    x = tiling.tile(image(SHAPE), cuts=CUTS, group=NoCommunication(1, 2))
    assert f"{x}" == str(x) == repr(x)
    assert "rank 1 of 2 owns [0:6, 2:5]" in str(x)
