"""A seat: where a rank sits in a job, in the words of the wire (pipeline, data and tensor rank). Client and server
agree here on how a plan's ranks are numbered.

The pipeline rank is the rank's place in the first pipe, the data rank its replica, and the tensor rank its index in the
team of its place: tiles, lanes and tensor ranks alike. Ranks of different replicas with the same place and index play
the same list of instructions, whatever numbers a launcher gave them.
"""

from __future__ import annotations

from typing import NamedTuple

from halocline.plan.layout import Layout
from halocline.plan.plan import Plan


class Seat(NamedTuple):
    """Where a rank sits."""

    replica: int
    place: int
    member: int

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Seat:
        """The seat of a plan's global rank."""
        layout = Layout(plan)
        role = layout.roles(rank)[0]
        return cls(role.replica, role.stage, layout.team(0, role.stage, role.replica).index(rank))

    def local_rank(self, plan: Plan) -> int:
        """Whose list of instructions is played here: a rank of one replica."""
        return sum(stage.team_size for stage in plan.stages[: self.place]) + self.member


def job_degrees(plan: Plan) -> dict[str, int]:
    """A plan in the four numbers of the wire. The tensor degree is the size of the largest team."""
    return {
        "pp_degree": plan.places,
        "dp_degree": plan.replicas,
        "tp_degree": max(stage.team_size for stage in plan.stages[: plan.places]),
        "world_size": plan.world_size,
    }
