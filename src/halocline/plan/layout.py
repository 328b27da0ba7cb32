"""The layout: a plan with ranks on it. Rank <-> (replica, pipe, stage, tile, lane, tensor), and who talks to whom.

Inside a replica, stage 0's ranks come first (tiles row-major, lanes consecutive, tensor ranks innermost), then stage
1's, and so on. The second pipe is the first one seen in a mirror: its local rank r sits on n - 1 - r. Only the tensor
ranks of a group keep their order, so that a rank which has a stage in both pipes holds the same shard in both.

    2x2 tiles, then two plain stages, two pipes (n = 6)      rank    0     1     2     3     4     5
                                                             pipe 0  s0t0  s0t1  s0t2  s0t3  s1    s2
                                                             pipe 1  s2    s1    s0t3  s0t2  s0t1  s0t0
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

from halocline.plan.plan import Plan

ACTIVATION = "activation"
GRADIENT = "gradient"


class Role(NamedTuple):
    """What a rank is in one pipe and one stage."""

    replica: int
    pipe: int
    stage: int
    tile: int
    lane: int
    tensor: int

    def __str__(self) -> str:
        return (
            f"replica {self.replica} pipe {self.pipe} stage {self.stage} tile {self.tile} "
            f"lane {self.lane} tensor {self.tensor}"
        )


class Link(NamedTuple):
    """One message at a stage boundary: `source` sends, `target` receives (ranks of one replica)."""

    source: int
    target: int


class Layout:
    """Ranks for a plan. Ranks inside a replica are called local; global rank = replica x n + local rank."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ranks_per_replica = plan.ranks_per_replica
        self.world_size = plan.world_size
        starts = [0]
        for stage in plan.stages[: plan.places]:
            starts.append(starts[-1] + stage.team_size)
        self._starts = starts

    # -- rank <-> role -------------------------------------------------------------------------------------------

    def rank(self, role: Role) -> int:
        """The global rank that plays a role."""
        stage = self.plan.stages[role.stage]
        start = self._starts[role.stage % self.plan.places]
        first = start + (role.tile * stage.lanes + role.lane) * stage.tensor
        if role.pipe:
            first = self.ranks_per_replica - first - stage.tensor
        # Of any `tensor` consecutive ranks, one has each remainder: the shard goes by that, in both pipes.
        local = first + (role.tensor + start - first) % stage.tensor
        return role.replica * self.ranks_per_replica + local

    def roles(self, rank: int) -> tuple[Role, ...]:
        """A global rank's roles: one per pipe and chunk, pipe 0 first, stages ascending."""
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"rank {rank} is outside the plan's {self.world_size} ranks: use 0 to {self.world_size - 1}"
            )
        replica, local = divmod(rank, self.ranks_per_replica)
        return tuple(role._replace(replica=replica) for role in self._local_roles[local])

    @cached_property
    def _local_roles(self) -> tuple[tuple[Role, ...], ...]:
        roles: list[list[Role]] = [[] for _ in range(self.ranks_per_replica)]
        for pipe, (index, stage) in product(range(self.plan.pipes), enumerate(self.plan.stages)):
            for tile, lane, tensor in product(range(stage.tile_count), range(stage.lanes), range(stage.tensor)):
                role = Role(0, pipe, index, tile, lane, tensor)
                roles[self.rank(role)].append(role)
        return tuple(tuple(r) for r in roles)

    # -- groups --------------------------------------------------------------------------------------------------

    def team(self, pipe: int, stage: int, replica: int = 0) -> tuple[int, ...]:
        """The ranks that compute a stage of a pipe together, ordered by (tile, lane, tensor)."""
        return tuple(rank + replica * self.ranks_per_replica for rank in self._teams[pipe][stage])

    @cached_property
    def _teams(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(
            tuple(
                tuple(
                    self.rank(Role(0, pipe, index, tile, lane, tensor))
                    for tile, lane, tensor in product(range(stage.tile_count), range(stage.lanes), range(stage.tensor))
                )
                for index, stage in enumerate(self.plan.stages)
            )
            for pipe in range(self.plan.pipes)
        )

    def tensor_index(self, rank: int, stage: int) -> int:
        """Which shard of a stage a rank holds that has the stage, in whichever pipe."""
        return next(role.tensor for role in self.roles(rank) if role.stage == stage)

    def tensor_groups(self, stage: int) -> tuple[tuple[int, ...], ...]:
        """The groups of global ranks that each hold all shards of a stage between them, ordered by shard."""
        degree = self.plan.stages[stage].tensor
        groups = {
            team[first : first + degree] for team in self._every_team(stage) for first in range(0, len(team), degree)
        }
        return tuple(sorted(groups))

    def sharers(self, stage: int, tensor: int = 0) -> tuple[int, ...]:
        """The global ranks that hold a copy of a stage's parameters (its shard `tensor`), ascending: their gradients
        are summed. Tiles, lanes, the mirrored pipe and the replicas all share."""
        degree = self.plan.stages[stage].tensor
        return tuple(sorted({rank for team in self._every_team(stage) for rank in team[tensor::degree]}))

    def _every_team(self, stage: int) -> Iterator[tuple[int, ...]]:
        """A stage's teams in all pipes and replicas."""
        for replica, pipe in product(range(self.plan.replicas), range(self.plan.pipes)):
            yield self.team(pipe, stage, replica)

    def reduces(self, stage: int) -> bool:
        """Whether a stage's gradients have to be summed over ranks."""
        return len(self.sharers(stage)) > 1

    # -- messages ------------------------------------------------------------------------------------------------

    def links(self, pipe: int, stage: int, what: str = ACTIVATION) -> tuple[Link, ...]:
        """The messages between `stage` and `stage + 1`: activations downwards, gradients upwards.

        Ranks are linked when their shares of the tensor overlap: tile with tile (cuts fall at equal fractions of the
        image), lane with lane (equal fractions of the samples). Every tensor rank holds the whole boundary, so each
        takes it from one tensor rank of the other side. A stage that shares its ranks with the next needs no message.
        """
        return self._links[pipe][stage][what]

    @cached_property
    def _links(self) -> tuple[tuple[dict[str, tuple[Link, ...]], ...], ...]:
        return tuple(
            tuple(self._boundary(pipe, stage) for stage in range(len(self.plan.stages) - 1))
            for pipe in range(self.plan.pipes)
        )

    def _boundary(self, pipe: int, stage: int) -> dict[str, tuple[Link, ...]]:
        upper, lower = self.plan.stages[stage], self.plan.stages[stage + 1]
        if self._teams[pipe][stage] == self._teams[pipe][stage + 1]:
            return {ACTIVATION: (), GRADIENT: ()}
        down: list[Link] = []
        up: list[Link] = []
        for a, b in product(range(upper.tile_count), range(lower.tile_count)):
            if not _tiles_overlap(a, upper.tiles, b, lower.tiles):
                continue
            for i, j in product(range(upper.lanes), range(lower.lanes)):
                if not _overlap(i, upper.lanes, j, lower.lanes):
                    continue
                tops = [self.rank(Role(0, pipe, stage, a, i, t)) for t in range(upper.tensor)]
                ends = [self.rank(Role(0, pipe, stage + 1, b, j, t)) for t in range(lower.tensor)]
                down += [Link(tops[t % upper.tensor], end) for t, end in enumerate(ends)]
                up += [Link(ends[t % lower.tensor], top) for t, top in enumerate(tops)]
        return {ACTIVATION: tuple(sorted(down)), GRADIENT: tuple(sorted(up))}


def _overlap(i: int, n: int, j: int, m: int) -> bool:
    """Whether [i/n, (i+1)/n) and [j/m, (j+1)/m) meet."""
    return i * m < (j + 1) * n and j * n < (i + 1) * m


def _tiles_overlap(a: int, grid: tuple[int, ...], b: int, other: tuple[int, ...]) -> bool:
    for n, m in zip(reversed(grid), reversed(other)):
        a, i = divmod(a, n)
        b, j = divmod(b, m)
        if not _overlap(i, n, j, m):
            return False
    return True
