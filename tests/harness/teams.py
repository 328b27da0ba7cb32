"""Teams of ranks and the plans made of them, for the tests of the runtime."""

from __future__ import annotations

from halocline.plan import Plan, Stage

Team = dict[str, object]

ONE: Team = {}
LANES: Team = {"lanes": 2}


def tiles(*grid: int, lanes: int = 1) -> Team:
    return {"tiles": grid, "lanes": lanes}


def plan_of(
    teams: list[Team],
    schedule: str = "1f1b",
    microbatches: int = 4,
    pipes: int = 1,
    replicas: int = 1,
    recompute: bool = False,
    fused: int = 0,
    layers: int = 8,
) -> Plan:
    """The plan whose stages share the layers as evenly as they go."""
    chunks = 2 if schedule == "interleaved" else 1
    teams = teams * chunks
    recompute = recompute or schedule == "early-recompute-1f1b"
    ends = [layers * (i + 1) // len(teams) for i in range(len(teams))]
    stages = [
        Stage((start, end), recompute=recompute and i < len(teams) - 1, **team)  # type: ignore[arg-type]
        for i, (start, end, team) in enumerate(zip([0, *ends], ends, teams))
    ]
    pipes = 2 if schedule in ("gems", "chimera") else pipes
    if schedule == "interleaved":
        microbatches = max(2, 4 // (len(teams) // 2)) * (len(teams) // 2)
    return Plan(tuple(stages), schedule, microbatches, pipes, replicas, chunks, fused=fused)
