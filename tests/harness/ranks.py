"""Runs a function on n ranks (threads of this process, or gloo processes that are started once) and compares tiles
with one device.

    assert_exact(nn.Conv2d(3, 4, 3, padding=1), (2, 3, 17, 13), grid=(2, 2))
    assert_exact(lambda x: F.max_pool2d(x, 2), (1, 3, 9, 9), cuts=((0, 4, 9), (0, 9)))
    assert_exact(lambda x, y: torch.cat([x, y], 1), [(1, 3, 9, 9), (1, 2, 9, 9)], grid=(1, 3))

    on_threads(4, lambda exchanger: ...)           # returns the four results
    in_turns(4, 0, lambda exchanger: ...)          # the same, each with random numbers of its own
    on_processes(2, function, 7)                   # function(7) in each of two gloo processes
"""

from __future__ import annotations

import atexit
import copy
import importlib.util
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

import halocline.tiling.rules  # noqa: F401  (a tile without rules could do nothing)
from halocline import tiling
from halocline.tiling.exchanger import ThreadExchanger
from halocline.tiling.plain import cut
from halocline.tiling.spec import TileSpec
from harness.processes import CONTEXT

# ---------------------------------------------------------------------------------------------------------- threads


class TakingTurns(ThreadExchanger):
    """Ranks of which one runs at a time, until it waits for another: so each draws random numbers of its own."""

    turn = threading.Lock()

    def _take(self, peer: int) -> Tensor:
        state = torch.get_rng_state()
        self.turn.release()
        try:
            return super()._take(peer)
        finally:
            self.turn.acquire()
            torch.set_rng_state(state)


def in_turns(size: int, seed: int, function: Callable[[ThreadExchanger], Any]) -> list[Any]:
    """`on_threads` for functions that draw random numbers: every rank starts with this seed."""

    def on_turn(exchanger: ThreadExchanger) -> Any:
        with TakingTurns.turn:
            torch.manual_seed(seed)
            return function(exchanger)

    return on_threads(size, on_turn, kind=TakingTurns)


def on_threads(
    size: int,
    function: Callable[[ThreadExchanger], Any],
    deadline: float = 300.0,
    kind: type[ThreadExchanger] = ThreadExchanger,
) -> list[Any]:
    """What `function(exchanger)` returns on each of `size` ranks; the first error of any rank is raised here."""
    exchangers = kind.connect(size, deadline)
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        try:
            results[rank] = function(exchangers[rank])
        except BaseException as error:
            errors.append((rank, error))
            exchangers[rank].abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(1, size)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    if errors:
        # The first one is the cause; the others are ranks that waited for it in vain.
        raise errors[0][1]
    return results


# --------------------------------------------------------------------------------------------------------- processes

PATIENCE = 300
_POOLS: dict[int, list[tuple[Any, Any]]] = {}


def _serve(rank: int, size: int, store: str, pipe: Any) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    while True:
        task = pipe.recv()
        if task is None:
            break
        module, file, name, args, kwargs = task
        try:
            function = getattr(_module(module, file), name)
            torch.manual_seed(0)
            pipe.send((True, function(*args, **kwargs)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


def _module(name: str, file: str) -> Any:
    """What is importable is imported; a test module, which is not, is loaded from its file."""
    if name.startswith("harness."):
        return importlib.import_module(name)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def on_processes(size: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """What a module-level `function` returns on each of `size` gloo processes, which are kept for the next call."""
    if size not in _POOLS:
        store = tempfile.mktemp(prefix="halocline_ranks_")
        pool = []
        for rank in range(size):
            ours, theirs = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_serve, args=(rank, size, store, theirs), daemon=True)
            process.start()
            pool.append((process, ours))
        _POOLS[size] = pool
    pool = _POOLS[size]
    for _, pipe in pool:
        pipe.send((function.__module__, function.__code__.co_filename, function.__name__, args, kwargs))
    answers = []
    for rank, (_, pipe) in enumerate(pool):
        if not pipe.poll(PATIENCE):
            close(size)  # what they still answer would be taken for the next question's
            raise TimeoutError(f"rank {rank} of {size} gave no answer in {PATIENCE} s")
        answers.append(pipe.recv())
    failed = [f"rank {rank} of {size} failed:\n{value}" for rank, (good, value) in enumerate(answers) if not good]
    assert not failed, "\n".join(failed)
    return [value for _, value in answers]


@atexit.register
def close(size: int | None = None) -> None:
    """End the kept processes: all, or those of one size, whose connections a test has spoiled."""
    ended = [member for n in list(_POOLS) if size in (None, n) for member in _POOLS.pop(n)]
    for _, pipe in ended:
        try:
            pipe.send(None)
        except OSError:
            continue
    patience = time.monotonic() + 3
    for process, _ in ended:
        process.join(max(0.0, patience - time.monotonic()))
        if process.is_alive():
            process.terminate()


# ------------------------------------------------------------------------------------------------------- one device


def image(shape: Sequence[int], salt: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A random tensor that depends on its arguments only."""
    generator = torch.Generator().manual_seed(zlib.crc32(repr((tuple(shape), salt)).encode()))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def assert_close(actual: Tensor | None, expected: Tensor | None, tolerance: float, what: str) -> None:
    """Equal shapes, and the largest difference within `tolerance` of the largest value expected."""
    if expected is None or actual is None:
        assert actual is expected, f"{what}: {actual is not None} against one device's {expected is not None}"
        return
    assert actual.shape == expected.shape, f"{what}: shape {tuple(actual.shape)}, one device {tuple(expected.shape)}"
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, one device {expected.dtype}"
    if not expected.numel():
        return
    actual, expected = as_real(actual), as_real(expected)
    if not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected), f"{what} differs from one device"
        return
    finite = torch.isfinite(expected)
    assert torch.equal(finite, torch.isfinite(actual)), f"{what}: infinite where one device is not"
    difference = (actual - expected)[finite].abs().max().item() if finite.any() else 0.0
    scale = max(1.0, expected[finite].abs().max().item() if finite.any() else 0.0)
    assert difference <= tolerance * scale, f"{what}: off by {difference:.3g} (largest value {scale:.3g})"


def whole(value: Any) -> list[Tensor]:
    """The whole tensors in what a model returned: tiles are gathered, tuples and dicts are walked."""
    if isinstance(value, tiling.TileTensor):
        return [value.full()]
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in whole(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in whole(v)]
    return []


def tensors(value: Any) -> list[Tensor]:
    """The tensors in what a function returned, tiles as they are."""
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers; any other as it is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def weighted_loss(outputs: Sequence[Tensor]) -> Tensor:
    """A scalar that depends on every value of every output, each with another weight."""
    outputs = [as_real(o) for o in outputs]
    terms = [(o * image(o.shape, salt=9, dtype=o.dtype)).sum() for o in outputs if o.dtype.is_floating_point]
    return torch.stack([t.double() for t in terms]).sum()


def _tile(
    leaf: Tensor, grid: Any, cuts: Any, dims: Sequence[int] | None, exchanger: ThreadExchanger
) -> tiling.TileTensor:
    if dims is None:
        return tiling.tile(leaf, grid, exchanger, cuts=cuts)
    lines = cuts or [tuple(leaf.shape[d] * i // n for i in range(n + 1)) for d, n in zip(dims, grid)]
    spec = TileSpec(tuple(map(tuple, lines)), exchanger, tuple(dims))
    return tiling.TileTensor.wrap(cut(leaf, spec), spec)


def assert_exact(
    function: Callable[..., Any],
    shape: Sequence[int] | Sequence[Sequence[int]],
    grid: Sequence[int] | None = None,
    cuts: Sequence[Sequence[int]] | None = None,
    *,
    tolerance: float = 1e-12,
    margin: int = 0,
    plain: Sequence[Tensor] = (),
    dtype: torch.dtype = torch.float64,
    gradients: bool = True,
    tiled: bool | None = None,
    dims: Sequence[int] | None = None,
) -> None:
    """`function` on tiles equals `function` on one device: outputs, input and parameter gradients, and buffers.

    `function` is a module or a function of one tiled image per shape in `shape`, followed by the tensors in `plain`
    (whole on every rank; their gradients are compared, too). `margin` gives the tiles that many pixels more than they
    own. `tiled` demands that the first output is (or is not) a TileTensor. `dims` names the dims that are cut, if these
    are not the last ones: (-4, -2, -1) for lanes of tiles.
    """
    shapes = [tuple(shape)] if isinstance(shape[0], int) else [tuple(s) for s in shape]  # type: ignore[arg-type,index]
    size = prod(grid) if grid is not None else prod(len(c) - 1 for c in cuts or ())
    if isinstance(function, nn.Module):
        function = function.to(dtype)

    def leaves() -> tuple[list[Tensor], list[Tensor]]:
        images = [image(s, i, dtype).requires_grad_(gradients) for i, s in enumerate(shapes)]
        extra = [p.detach().clone().requires_grad_(p.requires_grad and gradients) for p in plain]
        return images, extra

    model = copy.deepcopy(function) if isinstance(function, nn.Module) else function
    images, extra = leaves()
    # In-place functions cannot write to leaves: give every function a copy.
    outputs = whole(model(*[i.clone() for i in images], *extra))
    buffers = [b.clone() for b in model.buffers()] if isinstance(model, nn.Module) else []
    trained = list(model.parameters()) if isinstance(model, nn.Module) else []
    if gradients:
        weighted_loss(outputs).backward()
    copies = [copy.deepcopy(function) if isinstance(function, nn.Module) else function for _ in range(size)]

    def on_tiles(exchanger: ThreadExchanger) -> None:
        where = f"on rank {exchanger.rank} of {size}"
        mine = copies[exchanger.rank]
        my_images, my_extra = leaves()
        tiles = []
        for leaf in my_images:
            x = _tile(leaf, grid, cuts, dims, exchanger)
            tiles.append(x.fetched(x.spec.grown(margin).have).clone())
        result = mine(*tiles, *my_extra)
        if tiled is not None:
            first = result[0] if isinstance(result, (list, tuple)) else result
            assert isinstance(first, tiling.TileTensor) == tiled, f"{type(first)} {where}"
        my_outputs = whole(result)
        assert len(my_outputs) == len(outputs)
        for i, (actual, expected) in enumerate(zip(my_outputs, outputs)):
            assert_close(actual, expected, tolerance, f"output {i} {where}")
        if isinstance(mine, nn.Module):
            for (name, actual), expected in zip(mine.named_buffers(), buffers):
                assert_close(actual, expected, tolerance, f"buffer {name} {where}")
        if not gradients:
            return
        my_trained = list(mine.parameters()) if isinstance(mine, nn.Module) else []
        tiling.backward(weighted_loss(my_outputs), [*my_trained, *my_extra], exchanger)
        for i, (actual, expected) in enumerate(zip(my_images, images)):
            assert_close(actual.grad, expected.grad, tolerance, f"gradient of image {i} {where}")
        for i, (actual, expected) in enumerate(zip([*my_trained, *my_extra], [*trained, *extra])):
            assert_close(actual.grad, expected.grad, tolerance, f"gradient of parameter {i} {where}")

    on_threads(size, on_tiles)
