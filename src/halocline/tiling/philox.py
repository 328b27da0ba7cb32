"""Dropout's random numbers on a GPU by their place in the whole tensor: a part of them takes the memory of the part.

Torch draws with Philox, which gives any number of a seed at once: thread `t` of T takes four numbers a call from the
counter (call, t). Which element takes which number follows from how torch's kernels walk over a tensor as it lies in
memory (native_dropout_cuda in Dropout.cu, vectors of v elements, and bernoulli_ in DistributionTemplates.h, v = 1):

    v = 1   element i        thread i % T           the number i // T of it
    v > 1   elements v j ..  thread j % T           one call for up to four of them, or two calls for eight

Torch itself is asked whether this holds, for every function, probability and dtype: `part_by_place` is None where it
does not. Needs Triton; knows nothing of tiles.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from halocline.tiling.boxes import Box, shape
from halocline.tiling.strides import Ints, strides_in

_FUSED = (F.dropout, torch.dropout)
"""Functions that have a kernel of their own; the others draw as bernoulli_ does."""
_OTHERS = (Tensor.bernoulli_, torch.dropout_, F.alpha_dropout, torch.alpha_dropout, torch.alpha_dropout_)

_WIDTH = 1024
_VARYING = ["count", "n1", "n2", "n3", "s0", "s1", "s2", "s3", "t1", "t2", "t3", "threads", "seed", "call", "p"]


@triton.jit(do_not_specialize=_VARYING)
def _kernel(  # type: ignore[no-untyped-def]
    out,
    count,
    n1,
    n2,
    n3,
    s0,
    s1,
    s2,
    s3,
    t1,
    t2,
    t3,
    threads,
    seed,
    call,
    p,
    VECTOR: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Which of `count` elements are kept, of a part of size (.., t1, t2, t3) that starts at s in (.., n1, n2, n3)."""
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inner = place // t3
    middle = inner // t2
    element = ((middle // t1 + s0) * n1 + (middle % t1 + s1)).to(tl.int64)
    element = (element * n2 + (inner % t2 + s2)) * n3 + (place % t3 + s3)
    if VECTOR == 1:
        thread = element % threads
        number = element // threads
    else:
        vector = element // VECTOR
        thread = vector % threads
        number = (vector // threads) * (((VECTOR + 3) // 4) * 4) + element % VECTOR
    counter = number // 4 + call
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    first, second, third, fourth = tl.philox(seed, low, high, thread.to(tl.uint32), (thread >> 32).to(tl.uint32))
    lane = number % 4
    bits = tl.where(lane == 0, first, tl.where(lane == 1, second, tl.where(lane == 2, third, fourth)))
    uniform = bits.to(tl.uint32, bitcast=True).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    tl.store(out + place, (uniform < p).to(tl.uint8), mask=place < count)


def part_by_place(
    draw: Callable[..., Tensor], value: float, size: Ints, part: Box, order: Ints, like: Tensor, *args: Any
) -> Tensor | None:
    """The `part` of `draw(whole, *args)`, of a whole of this size, order in memory and value; the default generator is
    then as torch leaves it. None, and nothing is drawn, if torch draws otherwise."""
    if draw not in _FUSED + _OTHERS or torch.cuda.is_current_stream_capturing():
        return None
    values = _values(draw, value, like.dtype, like.device, args)
    in_turn = tuple(range(len(size)))
    if values is None or max(len(_lines(size, part, o)) for o in (order, in_turn)) > 4:  # of which the kernel knows
        return None
    kept = _kept(draw, size, part, order, like, *args)
    out = torch.empty_strided(shape(part), strides_in(order, shape(part)), dtype=like.dtype, device=like.device)
    return torch.where(kept, *values, out=out)


def _kept(draw: Callable[..., Tensor], size: Ints, part: Box, order: Ints, like: Tensor, p: float, *_: Any) -> Tensor:
    count, vector = prod(size), 1
    if draw in _FUSED:
        vector = 16 // like.element_size()
        while count % vector:
            vector //= 2
        if vector == 1:  # that kernel does not look for the order in memory
            order = tuple(range(len(size)))
    threads = min(_threads(like.device), -(-count // 256) * 256)

    generator = torch.cuda.default_generators[like.device.index]
    state = generator.get_state()
    seed, offset = state.view(torch.int64).tolist()
    state.view(torch.int64)[1] += ((count - 1) // (threads * 4) + 1) * 4
    generator.set_state(state)

    kept = torch.empty([part[d][1] - part[d][0] for d in order], dtype=torch.uint8, device=like.device)
    if kept.numel():
        lines = _lines(size, part, order)
        sizes, starts, stops = zip(*[(1, 0, 1)] * (4 - len(lines)), *lines)
        lengths = [stop - start for start, stop in zip(starts, stops)]
        numbers = (kept.numel(), *sizes[1:], *starts, *lengths[1:], threads, seed, offset // 4)
        compared = _compared(p if draw is Tensor.bernoulli_ else 1 - p, like.dtype)
        with torch.cuda.device(like.device):
            _kernel[(triton.cdiv(kept.numel(), _WIDTH),)](kept, *numbers, compared, VECTOR=vector, WIDTH=_WIDTH)
    return kept.view(torch.bool).permute([order.index(d) for d in range(len(size))])


def _threads(device: torch.device) -> int:
    """How many threads draw at once, at most."""
    properties = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count * (properties.max_threads_per_multi_processor // 256) * 256)


def _compared(p: float, dtype: torch.dtype) -> float:
    """What torch compares single random numbers with: `p` rounded, or, in double, the least single not below it."""
    single = torch.tensor(p, dtype=torch.float32)
    if dtype is torch.float64 and single.item() < p:
        single = torch.nextafter(single, torch.tensor(2.0))
    return single.item()


def _lines(size: Ints, part: Box, order: Ints) -> list[tuple[int, int, int]]:
    """Size, start and stop of the dims as they lie in memory, the outermost first; a dim that is whole joins the one
    around it."""
    lines: list[tuple[int, int, int]] = []
    for dim in order:
        n, (start, stop) = size[dim], part[dim]
        if lines and (start, stop) == (0, n):
            lines[-1] = (lines[-1][0] * n, lines[-1][1] * n, lines[-1][2] * n)
        else:
            lines.append((n, start, stop))
    return lines


@lru_cache(maxsize=256)
def _values(
    draw: Callable[..., Tensor], value: float, dtype: torch.dtype, device: torch.device, args: tuple[Any, ...]
) -> tuple[Tensor, Tensor] | None:
    """What `draw` makes of `value` where it is kept, and where it is dropped; None if torch draws otherwise."""
    generator = torch.cuda.default_generators[device.index]
    state = generator.get_state()
    values: tuple[Tensor, Tensor] | None = None
    try:
        with torch.no_grad(), unset_fake_temporarily():
            many = 32 // dtype.itemsize * _threads(device)  # so that every thread draws again
            flat = [((many + k,), (0,)) for k in (64, 1, 2, 4)]
            generator.manual_seed(0x4F1BBCDCBFA53E0A)
            for size, order in (*flat, ((2, 3, 5, 8), (0, 2, 3, 1)), ((3, 5, 7), (1, 2, 0)), ((3, 2, 7), (1, 2, 0))):
                whole = torch.empty_strided(size, strides_in(order, size), dtype=dtype, device=device).fill_(value)
                before = generator.get_state()
                whole = draw(whole, *args)
                after = generator.get_state()
                generator.set_state(before)
                kept = _kept(draw, size, tuple((0, n) for n in size), order, whole, *args)
                values = values or (whole.max(), whole.min())
                same = torch.equal(torch.where(kept, *values), whole) and bool(values[0] > values[1])
                if not same or not torch.equal(generator.get_state(), after):
                    return None
    except Exception:  # Triton without a compiler, a dtype that it does not know: torch draws the whole then
        return None
    finally:
        generator.set_state(state)
    return values
