"""Every function with a rule takes its arguments as torch does: by place or by name, numpy's names included."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

import halocline.tiling.rules  # noqa: F401
from halocline import tiling
from halocline.tiling import NoCommunication, TileTensor, UntiledOperation, tensor
from harness.operators import ARGUMENTS, FUNCTIONAL, NOT_SWEPT, SHAPE
from harness.ranks import assert_exact, image

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of functions that it is about to drop

Call = tuple[tuple[Any, ...], dict[str, Any]]
NUMPYS = {"dim": "axis", "keepdim": "keepdims", "input": "x1", "other": "x2"}


def signatures(function: Callable[..., Any]) -> list[list[str]]:
    """The names of the arguments that torch lets a function be called with, per overload, in order."""
    if isinstance(function, FunctionType):
        try:
            return [list(inspect.signature(function).parameters)]
        except ValueError:
            return []
    found = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{function.__name__}"):
        if not any("Tensor" in str(a.type) for a in schema.arguments):  # one of scripts
            continue
        names = ["input" if a.name == "self" else a.name for a in schema.arguments if not a.is_out]
        if names not in found:
            found.append(names)
    return found


def by_name(function: Callable[..., Any], call: Call) -> Iterator[Call]:
    """The same call with its last arguments, or all of them, by name. Not all of these are torch's: ask it."""
    args, kwargs = call
    first = 1 if hasattr(function, "__objclass__") else 0  # of a method the tensor has no name
    seen = []
    for names in signatures(function):
        if len(names) < len(args):
            continue
        for start in {first, max(first, len(args) - 1)} - {len(args)}:
            named = dict(zip(names[start:], args[start:]))
            for renamed in (named, {NUMPYS.get(name, name): value for name, value in named.items()}):
                if renamed.keys() not in seen:
                    seen.append(renamed.keys())
                    yield args[:start], {**renamed, **kwargs}


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([mapped(v, change) for v in value])
    return {k: mapped(v, change) for k, v in value.items()} if isinstance(value, dict) else value


def answer(function: Callable[..., Any], call: Call) -> Any:
    """The tensors returned, whole, or the kind of error."""
    try:
        # Functions that work in place shall not change what the next call is given.
        args, kwargs = mapped(call, Tensor.clone)
        torch.default_generator.manual_seed(0)
        out = function(*args, **kwargs)
    except Exception as error:
        return type(error)
    found: list[Any] = []
    mapped(list(out) if isinstance(out, (list, tuple)) else [out], found.append)
    return [f.full() if isinstance(f, TileTensor) else f for f in found] or out


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list) and a and isinstance(a[0], Tensor):
        pairs = list(zip(a, b))
        return len(a) == len(b) and all(
            x.shape == y.shape and x.dtype == y.dtype and torch.allclose(x, y, 1e-10, 1e-10, equal_nan=True)
            for x, y in pairs
        )
    return type(a) is type(b) and (a is b or a == b)


def shown(value: Any) -> str:
    return str([tuple(v.shape) if isinstance(v, Tensor) else v for v in value] if isinstance(value, list) else value)


def differences(function: Callable[..., Any], call: Call, cut: Callable[[Tensor], Any]) -> Iterator[str | None]:
    """Per way of calling: None, or how tiles differ from one device."""
    placed = answer(function, mapped(call, cut))
    for other in by_name(function, call):
        expected = answer(function, other)
        if isinstance(expected, type):
            continue
        got = answer(function, mapped(other, cut))
        good = got is UntiledOperation is placed or same(got, expected)
        form = f"{function.__name__} of {len(other[0])} places and {list(other[1])}"
        yield None if good else f"{form}: {shown(got)}, one device {shown(expected)}, by place {shown(placed)}"


class Recorder(TorchFunctionMode):
    """Remembers the calls of functions that have rules."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Call]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in tensor._RULES and not hasattr(func, "__self__"):
            self.calls.append((func, mapped((args, kwargs or {}), Tensor.detach)))
        return func(*args, **(kwargs or {}))


def recorded() -> list[tuple[Any, Call]]:
    with Recorder() as recorder:
        for case in FUNCTIONAL.values():
            if not case.random:
                tensors = [image(s, i) for i, s in enumerate(case.shapes)]
                try:
                    case.call(*tensors, *[image(s, 8) for s in case.plain])
                except Exception:  # a case that is refused need not be right on one device
                    continue
    return recorder.calls


def test_arguments_by_name_are_those_by_place() -> None:
    """Every function that has a rule, with every argument by name and with the last one."""

    def cut(t: Tensor) -> Tensor:
        return tiling.tile(t, (1, 1), NoCommunication(0, 1)) if tuple(t.shape) == SHAPE else t

    found = []
    for function in list(tensor._RULES):
        name = getattr(function, "__name__", "__get__")
        if name in (*NOT_SWEPT, "new_empty") or name.startswith("__") or not signatures(function):
            continue
        for arguments in ARGUMENTS:
            call = (arguments(image(SHAPE)), {})
            if not isinstance(answer(function, call), type):
                found += list(differences(function, call, cut))
    wrong = [what for what in found if what is not None]
    assert not wrong, f"{len(wrong)} of {len(found)}\n" + "\n".join(wrong)
    assert len(found) > 1000, len(found)  # so that this cannot pass by trying nothing


def test_functional_arguments_by_name_are_those_by_place() -> None:
    """The calls that the cases of torch.nn.functional make; the image is what has most values."""
    found = []
    for function, call in recorded():
        sizes: list[int] = []
        mapped(call, lambda t, sizes=sizes: sizes.append(t.numel()))  # type: ignore[misc]

        def cut(t: Tensor, largest: int = max(sizes, default=0)) -> Tensor:
            return tiling.tile(t, (1,), NoCommunication(0, 1)) if t.numel() == largest and t.ndim > 2 else t

        found += list(differences(function, call, cut))
    wrong = [what for what in found if what is not None]
    assert not wrong, f"{len(wrong)} of {len(found)}\n" + "\n".join(wrong)
    assert len(found) > 200, len(found)


NAMED: dict[str, Callable[[Tensor], Any]] = {
    "mul": lambda x: torch.mul(input=x, other=2.0),
    "where": lambda x: torch.where(condition=x > 0, input=x, other=-2 * x),
    "clamp without min": lambda x: torch.clamp(input=x, max=0.2),
    "add": lambda x: torch.add(alpha=3, other=image((5,)), input=x),
    "sum by numpy's names": lambda x: x.sum(axis=(1, 3), keepdims=True),
    "std": lambda x: [torch.std(keepdim=True, dim=1, input=x), x.std(unbiased=False), x.var(correction=0, dim=(2, 3))],
    "max": lambda x: [torch.max(input=x, other=-x), torch.max(dim=1, input=x), x.max(dim=3, keepdim=True)],
    "gather": lambda x: x.gather(index=(x[:, :1] > 0).long(), dim=1),
    "masked_fill_": lambda x: x.clone().masked_fill_(mask=x > 0, value=1.0),
    "conv2d": lambda x: F.conv2d(padding=1, weight=image((2, 4, 3, 3)), input=x),
    "pools": lambda x: [F.max_pool2d(kernel_size=2, input=x), F.avg_pool2d(input=x, kernel_size=3, padding=1)],
    "nll_loss": lambda x: F.nll_loss(target=(x[:, 0] > 0).long(), input=x, reduction="sum"),
    "cat": lambda x: [torch.cat(tensors=[x, x], axis=1), torch.stack(dim=-1, tensors=(x, x))],
    "tensor_split": lambda x: torch.tensor_split(input=x, sections=2, dim=1),
    "swapaxes": lambda x: torch.swapaxes(input=x, axis1=3, axis0=1),
    "kthvalue without dim": lambda x: torch.kthvalue(x, k=2, keepdim=True).values,
    "softmax": lambda x: [F.softmax(dim=1, input=x), torch.softmax(input=x, dim=3, dtype=torch.float64)],
    "memory_format": lambda x: x.contiguous(memory_format=torch.channels_last).to(memory_format=torch.preserve_format),
    "out=None": lambda x: [torch.add(x, 1, out=None), torch.norm(x, out=None), F.normalize(x, out=None)],
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_by_name_are_exact(name: str) -> None:
    assert_exact(lambda x: NAMED[name](x), SHAPE, grid=(1, 2))


def test_lanes_are_found_in_arguments_by_name() -> None:
    def run(x: Tensor) -> list[Tensor]:
        return [F.conv2d(input=x, weight=image((2, 4, 3, 3)), padding=1), F.interpolate(input=x, scale_factor=2.0)]

    assert_exact(run, SHAPE, grid=(2, 1, 2), dims=(-4, -2, -1))


def test_an_unknown_name_is_torchs_own_error() -> None:
    x = tiling.tile(image(SHAPE), (1, 1), NoCommunication(0, 1))
    for call in (lambda t: torch.mul(t, othr=2.0), lambda t: t.sum(dims=1), lambda t: F.pad(t, (1, 1), kind="reflect")):
        with pytest.raises(TypeError) as one_device:
            call(image(SHAPE))
        with pytest.raises(TypeError) as tiled:
            call(x)
        assert str(tiled.value).partition("(")[0] == str(one_device.value).partition("(")[0]


@pytest.mark.parametrize(
    "rule",
    [
        lambda input, *, end, weight: ("own", end, weight),
        lambda input, weight=None, end=None: ("own", end, weight),  # in another order than torch's
        lambda x, *args: ("own", *args),
        lambda x, **kwargs: ("own", kwargs["end"], kwargs["weight"]),
        lambda first, second, third: ("own", second, third),
    ],
)
def test_a_users_rule_gets_what_torch_got(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name where it has the name, else by place."""
    monkeypatch.setitem(tensor._RULES, torch.lerp, rule)
    x = tiling.tile(image(SHAPE), (1, 1), NoCommunication(0, 1))
    assert torch.lerp(input=x, weight=0.5, end=x) == ("own", x, 0.5)


def test_a_users_function_may_name_an_argument_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(out: Tensor, target: Tensor) -> Any:
        return torch.overrides.handle_torch_function(loss, (out, target), out=out, target=target)

    monkeypatch.setitem(tensor._RULES, loss, lambda out, target: (out - target).mean())
    x = tiling.tile(image(SHAPE), (1, 1), NoCommunication(0, 1))
    assert loss(out=x, target=x) == 0
    with pytest.raises(UntiledOperation, match="out= has no rule"):
        torch.add(x, 1, out=image(SHAPE))


WRONG: dict[str, Callable[[Tensor], Any]] = {
    "a dim twice": lambda x: x.sum((2, 2)),
    "a dim twice, from both ends": lambda x: x.var((1, -3)),
    "three strides": lambda x: F.max_pool2d(x, 3, [1, 2, 3]),
    "a negative padding": lambda x: F.avg_pool2d(x, 1, 3, -1),
    "a negative size": lambda x: F.adaptive_avg_pool2d(x, -2),
    "no chunks": lambda x: x.chunk(0),
    "no sections": lambda x: x.tensor_split(0),
    "a negative factor": lambda x: F.pixel_unshuffle(x, -1),
    "a bias of another size": lambda x: F.conv2d(x, image((3, 4, 1, 1)), image((1,))),
    "a turn of one dim": lambda x: torch.rot90(x, 1, (2, -2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_one_device_refuses_is_not_computed(name: str) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        WRONG[name](image(SHAPE))
    with pytest.raises((RuntimeError, ValueError)):
        WRONG[name](tiling.tile(image(SHAPE), (1, 2), NoCommunication(0, 2)))


def test_numbers_of_numpy_name_dims_of_a_transform() -> None:
    two, one = torch.tensor(2), np.int64(1)
    assert_exact(lambda x: [torch.fft.fft(x, np.int64(2), one), torch.fft.fftshift(x, two)], SHAPE, grid=(1, 2))


def test_a_truth_that_stands_for_one_does_not_stay() -> None:
    """As a kernel of True, which torch refuses, once did for later kernels of 1."""
    x = tiling.tile(image(SHAPE), (1, 1), NoCommunication(0, 1))
    with contextlib.suppress(TypeError):  # some releases of torch refuse it
        F.max_pool2d(x, 2, True)
    torch.testing.assert_close(F.max_pool2d(x, 2, 1).full(), F.max_pool2d(image(SHAPE), 2, 1))
