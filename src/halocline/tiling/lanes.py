"""Lanes: a batch that is cut over ranks, alone or together with the image. What happens to each sample by itself
happens within a lane, whose ranks hold the tiles of the same samples.

    batch of 4, cut into 2 lanes, image cut into 2 tiles      rank          0      1      2      3
                                                              samples      0, 1   0, 1   2, 3   2, 3
    a convolution's halo travels within a lane                tile         left  right   left  right

Everything that mixes samples (statistics, losses) sees the batch as one more cut dim and needs nothing from here.
Knows specs and exchangers; no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from halocline.tiling.boxes import Box
from halocline.tiling.exchanger import Exchanger, Wait
from halocline.tiling.function import Function
from halocline.tiling.plain import all_for_tiles
from halocline.tiling.spec import TileSpec
from halocline.tiling.tensor import TileTensor, untiled

Rule = TypeVar("Rule", bound=Callable[..., Any])
Ints = tuple[int, ...]


class LaneExchanger(Exchanger):
    """The ranks of one lane, talking over the exchanger of the whole group; collectives are messages between them."""

    def __init__(self, whole: Exchanger, members: Ints) -> None:
        super().__init__(members.index(whole.rank), len(members), whole.deadline)
        self.whole, self.members = whole, members
        self.everyone, self.counter = whole, whole.counter

    def start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        return self.whole.start(self._named(sends), self._named(receives))

    def _named(self, messages: Mapping[int, Tensor]) -> dict[int, Tensor]:
        # A lane without samples has nothing to say.
        return {self.members[peer]: tensor for peer, tensor in messages.items() if tensor.numel()}

    def _start(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor]) -> Wait:
        return self.start(sends, receives)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [tensor if peer == self.rank else torch.empty_like(tensor) for peer in range(self.size)]
        others = [peer for peer in range(self.size) if peer != self.rank]
        self.start({peer: tensor for peer in others}, {peer: parts[peer] for peer in others})()
        return parts


@lru_cache(maxsize=1024)
def _exchanger(whole: Exchanger, members: Ints) -> LaneExchanger:
    return LaneExchanger(whole, members)


def cut_in_batch(x: TileTensor) -> bool:
    """Whether the first dim, that of the samples, is cut."""
    return x.spec.dims[0] == -x._local.ndim


@lru_cache(maxsize=4096)
def _within(spec: TileSpec, image: Ints, batch: bool) -> TileSpec:
    """The tiles of this rank's lane: cut in the last len(image) dims, some of them perhaps into one tile only."""
    lines = dict(zip(spec.dims, spec.cuts))
    dims = tuple(range(-len(image), 0))
    cuts = tuple(lines.get(d, (0, n)) for d, n in zip(dims, image))
    exchanger, ranks = spec.exchanger, spec.ranks
    if batch:
        tiles = prod(spec.grid[1:])
        lane = spec.ranks.index(exchanger.rank) // tiles
        members = spec.ranks[lane * tiles : (lane + 1) * tiles]
        exchanger, ranks = _exchanger(exchanger, members), tuple(range(tiles))

    def inside(box: Box) -> Box:
        intervals = dict(zip(spec.dims, box))
        return tuple(intervals.get(d, (0, n)) for d, n in zip(dims, image))

    held = [spec.have[rank] for rank in (members if batch else range(exchanger.size))]
    have = () if spec.bare else tuple(map(inside, held))
    return TileSpec(cuts, exchanger, dims, ranks, have)


@lru_cache(maxsize=4096)
def _lifted(spec: TileSpec, out: TileSpec, batch: bool) -> TileSpec:
    """The tiles of all lanes, from those of this one's output."""
    images = [i for i, d in enumerate(out.dims) if d in spec.dims]
    cuts = tuple(out.cuts[i] for i in images)
    dims = tuple(out.dims[i] for i in images)
    if not batch:
        have = () if out.bare else tuple(tuple(box[i] for i in images) for box in out.have)
        return TileSpec(cuts, spec.exchanger, dims, spec.ranks, have)
    new = TileSpec((spec.cuts[0], *cuts), spec.exchanger, (spec.dims[0], *dims), spec.ranks)
    if out.bare:
        return new
    tiles = len(out.ranks)
    boxes = list(new.own)
    for number, rank in enumerate(spec.ranks):
        held = out.have[number % tiles]  # every lane does with its samples what this one does
        boxes[rank] = (new.own[rank][0], *(held[i] for i in images))
    return new.with_have(tuple(boxes))


def per_sample(function: Any, dims: int | None = None) -> Callable[[Rule], Rule]:
    """Decorate the rule of a function that acts on each sample by itself, over its last `dims` dims (all but two).

    The rule itself is written for tiles cut in all of those and in no other dim. A batch that is cut, too, is seen one
    lane at a time; a dim that is not cut is seen as one tile; where only the batch is cut, nothing but `function` on
    the samples held here is needed. Anything else is refused.
    """

    def decorate(run: Rule) -> Rule:
        @wraps(run)
        def on_lanes(x: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(x, TileTensor):
                raise untiled(function, (x, *args), kwargs, why="its input is not tiled but another argument is")
            image = x._local.ndim - 2 if dims is None else dims
            cut = x.spec.dims
            if len(cut) == image and cut[0] == -image:
                return run(x, *args, **kwargs)
            return _in_lane(function, run, x, image, args, kwargs)

        return on_lanes  # type: ignore[return-value]

    return decorate


def _in_lane(function: Any, run: Any, x: TileTensor, image: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    spec, ndim = x.spec, x.ndim
    batch = cut_in_batch(x) and ndim == image + 2
    other = [d for d in spec.dims if d < -image and not (batch and d == -ndim)]
    if other or ndim < image or (batch and len(spec.ranks) < spec.exchanger.size):
        why = f"it works on the last {image} dims and others must not be cut, but the dims {spec.dims} are"
        if len(spec.dims) < image:
            why = f"{why}; tile with grid={(1,) * (image - len(spec.dims)) + spec.grid}"
        raise untiled(function, (x,), why=why)
    if batch and len(spec.dims) == 1:
        args = all_for_tiles(args, spec.exchanger)
        kwargs = dict(zip(kwargs, all_for_tiles(tuple(kwargs.values()), spec.exchanger)))
        out = function(x.local, *args, **kwargs)
        return TileTensor.wrap(out, spec) if isinstance(out, Tensor) else tuple(TileTensor.wrap(o, spec) for o in out)
    if batch and not spec.bare:  # samples held beyond the lane's own are of no use here
        x = x.cropped(spec.with_have(tuple((own[0], *held[1:]) for own, held in zip(spec.own, spec.have))))
        spec = x.spec
    inner = TileTensor.wrap(x.local, _within(spec, tuple(x.shape[ndim - image :]), batch))
    out = run(inner, *args, **kwargs)
    if isinstance(out, TileTensor):
        return TileTensor.wrap(out.local, _lifted(spec, out.spec, batch))
    if not isinstance(out, Tensor):
        raise untiled(function, (x, *args), kwargs, why="it returns more than one tensor, with the batch cut")
    return _OfAllLanes.apply(out, spec) if batch else out


class _OfAllLanes(Function):
    """A plain tensor of the whole batch, from one that is equal on all ranks of a lane, and so is its gradient."""

    @staticmethod
    def forward(ctx: Any, samples: Tensor, spec: TileSpec) -> Tensor:
        ctx.spec = spec
        start, stop = spec.box[0]
        whole = samples.new_zeros(spec.size[0], *samples.shape[1:])
        if spec.ranks.index(spec.exchanger.rank) % prod(spec.grid[1:]) == 0:  # the first rank of a lane speaks for it
            whole[start:stop] = samples
        return spec.exchanger.all_reduce(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[slice(*ctx.spec.box[0])], None
