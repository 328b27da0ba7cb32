"""What a tile tensor is a tile of: the cuts of the whole image, who owns which box and who holds how much around it.

Knows boxes and the group's exchanger; nothing of tensors' values or of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, product

from halocline.tiling.boxes import Box, Cuts, contains, grow, intersect, shape
from halocline.tiling.exchanger import Exchanger


@dataclass(frozen=True, eq=False)
class TileSpec:
    """Frozen and hashable; all ranks of a group hold equal specs (their exchangers apart)."""

    cuts: tuple[Cuts, ...]
    """Per spatial dim the boundaries of the tiles in the whole image. Inner tiles may be empty."""
    exchanger: Exchanger
    dims: tuple[int, ...] = ()
    """The tensor dims that are spatial, negative, so that broadcasting keeps them: (-2, -1) for NCHW."""
    ranks: tuple[int, ...] = ()
    """The rank of each tile, row-major. Ranks of the group that are not here own an empty box."""
    have: tuple[Box, ...] = ()
    """By rank, the box it holds: its own box grown by its margin. Its own box unless given."""
    own: tuple[Box, ...] = field(init=False)
    """By rank, the box it owns."""
    size: tuple[int, ...] = field(init=False)
    """The whole image's size in the spatial dims."""
    box: Box = field(init=False)
    """The box this rank owns."""
    held: Box = field(init=False)
    """The box this rank holds."""
    bare: bool = field(init=False)
    """Whether no rank holds a margin."""

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        tiles = tuple(product(*(tuple(pairwise(c)) for c in self.cuts)))
        if not self.dims:
            put("dims", tuple(range(-len(self.cuts), 0)))
        if not self.ranks:
            put("ranks", tuple(range(len(tiles))))
        assert len(tiles) == len(self.ranks) and len(self.dims) == len(self.cuts), self
        nothing: Box = ((0, 0),) * len(self.cuts)
        own = [nothing] * self.exchanger.size
        for rank, box in zip(self.ranks, tiles):
            own[rank] = box
        put("own", tuple(own))
        put("size", tuple(c[-1] for c in self.cuts))
        if not self.have:
            put("have", self.own)
        assert all(contains(h, o) for h, o in zip(self.have, own)), "a rank must hold the box it owns"
        rank = self.exchanger.rank
        put("box", own[rank])
        put("held", self.have[rank])
        put("bare", self.have == self.own)
        put("_key", (self.cuts, self.exchanger, self.dims, self.ranks, self.have))
        put("_hash", hash(self._key))  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TileSpec) and self._key == other._key)  # type: ignore[attr-defined]

    @property
    def grid(self) -> tuple[int, ...]:
        return tuple(len(c) - 1 for c in self.cuts)

    def permuted_ranks(self, place: Callable[[tuple[int, ...]], Sequence[int]], grid: Sequence[int]) -> tuple[int, ...]:
        """The ranks of a grid of the same tiles in other places: `place` says where here each of its tiles lies."""
        ranks = dict(zip(product(*map(range, self.grid)), self.ranks))
        return tuple(ranks[tuple(place(new))] for new in product(*map(range, grid)))

    def positions(self, ndim: int) -> tuple[int, ...]:
        """The spatial dims of a tensor of `ndim` dims, counted from the front."""
        return tuple(ndim + d for d in self.dims)

    def whole_shape(self, local: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the whole tensor, of which this rank holds a part of shape `local`."""
        result = list(local)
        for dim, size in zip(self.dims, self.size):
            result[dim] = size
        return tuple(result)

    def local_shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the part this rank holds of a whole tensor of shape `whole`."""
        result = list(whole)
        for dim, size in zip(self.dims, shape(self.held)):
            result[dim] = size
        return tuple(result)

    # Found again rather than made anew: what is worked out for a spec is kept by it.

    @lru_cache(maxsize=4096)  # noqa: B019
    def with_have(self, have: tuple[Box, ...]) -> TileSpec:
        """The same tiles, holding other margins."""
        return TileSpec(self.cuts, self.exchanger, self.dims, self.ranks, have)

    @lru_cache(maxsize=4096)  # noqa: B019
    def with_dims(self, dims: tuple[int, ...]) -> TileSpec:
        """The same tiles, of a tensor whose spatial dims lie elsewhere (negative dims)."""
        return TileSpec(self.cuts, self.exchanger, dims, self.ranks, self.have)

    @lru_cache(maxsize=4096)  # noqa: B019
    def with_cuts(self, cuts: tuple[Cuts, ...], ranks: tuple[int, ...] = ()) -> TileSpec:
        """Other tiles on the same group, without margins."""
        return TileSpec(cuts, self.exchanger, self.dims, ranks or self.ranks)

    def mapped(self, place: Callable[[int, int], int]) -> TileSpec:
        """The same ranks' tiles of an image in which the edge at c of spatial dim number d lies at place(d, c)."""
        new = self.with_cuts(tuple(tuple(place(d, c) for c in line) for d, line in enumerate(self.cuts)))
        if self.bare:
            return new
        boxes = (tuple((place(d, a), place(d, b)) for d, (a, b) in enumerate(box)) for box in self.have)
        return new.with_have(tuple(boxes))

    def without_margin(self) -> TileSpec:
        return self if self.bare else self.with_have(self.own)

    def common(self, other: TileSpec) -> TileSpec:
        """The spec that holds, per rank, what both hold; both have the same cuts."""
        if self.have == other.have:
            return self
        return self.with_have(tuple(intersect(a, b) for a, b in zip(self.have, other.have)))

    def grown(self, margin: int) -> TileSpec:
        """The same tiles, each holding `margin` pixels more than it owns, on every side inside the image."""
        return self.with_have(tuple(grow(box, ((margin, margin),) * len(box), self.size) for box in self.own))
