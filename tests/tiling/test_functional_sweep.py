"""Every public function of torch.nn.functional, given tiles, is exact or refused: never a silent local result, never
another kind of failure.
"""

import pytest
import torch
import torch.nn.functional as F

from halocline import tiling
from halocline.tiling import UntiledOperation
from harness.operators import FUNCTIONAL, IMAGE, NOT_OPERATORS, Case
from harness.ranks import assert_exact, image, on_processes, on_threads, weighted_loss

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of functions that it is about to drop


def line(size: int, parts: int) -> list[int]:
    """Uneven cuts: the first tile has all but 2 pixels per other tile."""
    return [0, *(size - 2 * i for i in range(parts - 1, 0, -1)), size]


def uneven(shape: tuple[int, ...], dims: int, parts: int) -> list[list[int]]:
    """Uneven tiles along the last dim."""
    return [[0, n] for n in shape[-dims:-1]] + [line(shape[-1], parts)]


def square(shape: tuple[int, ...], dims: int) -> list[list[int]]:
    """2 x 2 tiles, or 4 in a line."""
    if dims == 1:
        return [line(shape[-1], 4)]
    return [[0, n] for n in shape[-dims:-2]] + [[0, n // 2, n] for n in shape[-2:]]


def single(shape: tuple[int, ...], dims: int) -> list[list[int]]:
    """Tiles of one pixel beside large ones."""
    return [[0, n] for n in shape[-dims:-2]] + [
        [0, 1, n] if i % 2 else [0, n - 1, n] for i, n in enumerate(shape[-dims:][-2:])
    ]


GRIDS = {
    "2x2": lambda case: square(case.shapes[0], case.dims),
    "1x3": lambda case: uneven(case.shapes[0], case.dims, 3),
    "one pixel": lambda case: single(case.shapes[0], case.dims),
}


def public() -> list[str]:
    return [n for n in dir(F) if not n.startswith("_") and callable(getattr(F, n)) and n not in NOT_OPERATORS]


def test_no_function_is_forgotten() -> None:
    assert sorted(set(public()) - set(FUNCTIONAL)) == [], "functions of torch.nn.functional without a case"


def refused(case: Case, cuts: list[list[int]]) -> None:
    """Every rank refuses the call before it exchanges anything that the others wait for."""
    size = 1
    for c in cuts:
        size *= len(c) - 1
    plain = [image(s, 8) for s in case.plain]

    def on_tile(exchanger: tiling.ThreadExchanger) -> str:
        tiles = [tiling.tile(image(s, i), cuts=cuts, group=exchanger) for i, s in enumerate(case.shapes)]
        with pytest.raises(UntiledOperation) as refusal:
            case.call(*tiles, *plain)
        return str(refusal.value)

    for message in on_threads(size, on_tile):
        assert "tiling.rule(" in message and "full()" in message


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", [n for n in FUNCTIONAL if hasattr(F, n) and not FUNCTIONAL[n].random])
def test_is_exact_or_refused(name: str, grid: str) -> None:
    case = FUNCTIONAL[name]
    cuts = GRIDS[grid](case)
    if case.refused:
        refused(case, cuts)
        return
    plain = [image(s, 8).requires_grad_() for s in case.plain]
    assert_exact(case.call, case.shapes, cuts=cuts, plain=plain)


@pytest.mark.parametrize("name", [n for n, c in FUNCTIONAL.items() if hasattr(F, n) and not c.random | c.refused])
def test_can_be_written_in_place_as_on_one_device(name: str) -> None:
    """An activation in place after any function: autograd refuses some results of custom functions."""
    case = FUNCTIONAL[name]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        outputs = case.call(*tensors)
        listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [F.leaky_relu_(o, 0.1) if o.dtype.is_floating_point else o for o in listed]

    plain = [image(s, 8).requires_grad_() for s in case.plain]
    try:
        weighted_loss(call(*[image(s).requires_grad_().clone() for s in case.shapes], *plain)).backward()
    except RuntimeError as error:
        pytest.skip(f"one device refuses it: {str(error)[:60]}")
    assert_exact(call, case.shapes, cuts=GRIDS["1x3"](case), plain=plain)


def draw(name: str) -> None:
    """A random function on this process's rank, against one device with the same seed."""
    case = FUNCTIONAL[name]
    shape = case.shapes[0]
    one, tiled = image(shape).requires_grad_(), image(shape).requires_grad_()
    torch.manual_seed(5)
    expected = case.call(one)
    torch.manual_seed(5)
    out = case.call(tiling.tile(tiled, cuts=uneven(shape, case.dims, 2))).full()
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    weights = image(expected.shape, 2)
    (expected * weights).sum().backward()
    tiling.backward((out * weights).sum(), [])
    torch.testing.assert_close(tiled.grad, one.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n, case in FUNCTIONAL.items() if case.random])
def test_draws_what_one_device_draws(name: str) -> None:
    on_processes(2, draw, name)


def test_the_cases_are_cut_unevenly() -> None:
    assert line(13, 4) == [0, 7, 9, 11, 13]
    assert uneven(IMAGE[3], 3, 3) == [[0, 6], [0, 5], [0, 3, 5, 7]]
