"""The messages of the wire, checked as they are read: whole numbers are whole, nothing is NaN, infinite or negative.

The first four are the Zeus pipeline-frequency client's; what is marked "beyond" is ours and may be left out. What is
wrong with a message is told by a `Refusal`: nothing else of an error ever reaches a client.
"""

from __future__ import annotations

import json
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.responses import Response

Degree = Annotated[int, Field(ge=1, le=1 << 16)]
Rank = Annotated[int, Field(ge=0, lt=1 << 32)]
Frequency = Annotated[int, Field(ge=1, le=100_000)]
Amount = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
"""Seconds, joules or watts; bounded, so that no sum of them overflows."""
LONGEST_PLAN = 1 << 20
"""Characters of a plan.toml."""
Text = Annotated[str, Field(max_length=4096)]
Breakdown = Annotated[dict[str, list[list[Amount]]], Field(max_length=256)]


class Refusal(Exception):
    """A request that is answered no, with the status and the one line that say why."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail

    def response(self) -> Response:
        """Whoever may ask again is told when, whoever lacks the token how to send it."""
        again, token = {"retry-after": "1"}, {"www-authenticate": "Bearer"}
        headers = {401: token, 408: again, 429: again}.get(self.status)
        return Response(json.dumps({"detail": self.detail}), self.status, headers, "application/json")


class Message(BaseModel):
    """Unknown fields are left out, as the original does, so that newer clients are understood."""

    model_config = ConfigDict(strict=True, frozen=True)


class SweepMessage(Message):
    """How the profiler goes down the frequencies, as in the settings of those names."""

    lowest_frequency: Annotated[int, Field(ge=0)]
    stride: Annotated[int, Field(ge=1)]
    patience: Annotated[int, Field(ge=1)]


class JobInfo(Message):
    """POST /register_job."""

    job_id: Annotated[str, Field(max_length=0)] = ""
    """The server gives it."""
    pp_degree: Degree
    dp_degree: Degree
    tp_degree: Degree
    world_size: Annotated[int, Field(ge=1, le=1 << 16)]
    job_metadata: Text | None = None
    plan: Annotated[str, Field(max_length=LONGEST_PLAN)] | None = None
    """Beyond: the plan as TOML."""
    device: Annotated[str, Field(max_length=200)] | None = None
    """Beyond: what the ranks run on; "simulated..." is shown as such."""
    blocking_power: Amount | None = None
    """Beyond: watts of a rank that waits."""
    scheduler: Annotated[str, Field(max_length=64)] | None = None
    """Beyond: another scheduler than the server's own."""
    sweep: SweepMessage | None = None
    """Beyond: another sweep than the server's own."""

    @model_validator(mode="after")
    def _product(self) -> JobInfo:
        pp, dp, tp = self.pp_degree, self.dp_degree, self.tp_degree
        if self.plan is None and pp * dp * tp != self.world_size:
            raise ValueError(
                f"pp_degree {pp} x dp_degree {dp} x tp_degree {tp} = {pp * dp * tp} is not world_size "
                f"{self.world_size}: send degrees whose product it is"
            )
        return self


class RankInfo(Message):
    """POST /register_rank/{job}."""

    rank: Rank
    dp_rank: Rank
    pp_rank: Rank
    tp_rank: Rank
    available_frequencies: Annotated[list[Frequency], Field(min_length=1, max_length=4096)]


class Result(Message):
    """POST /result/{job}."""

    rank: Rank
    iter_time: Annotated[list[Amount], Field(min_length=1, max_length=100_000)]
    iter_energy: Annotated[list[Amount], Field(min_length=1, max_length=100_000)]
    time_breakdown: Breakdown | None = None
    energy_breakdown: Breakdown | None = None
    round: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    """Beyond: which schedule it is about; said twice, it counts once."""

    @model_validator(mode="after")
    def _lengths(self) -> Result:
        if len(self.iter_time) != len(self.iter_energy):
            raise ValueError(
                f"iter_time has {len(self.iter_time)} iterations and iter_energy {len(self.iter_energy)}: "
                f"send one number of each per iteration"
            )
        return self


class Straggler(Message):
    """POST /straggler/{job}."""

    factor: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)]
    """How many times the shortest iteration an iteration now takes; 1: the straggler is over."""
    rank: Rank | None = None
    """The straggler, if it is a rank of this job."""
    dp_rank: Rank | None = None
    """The straggler's replica, if it is one of this job's."""


M = TypeVar("M", bound=Message)


def read(model: type[M], body: bytes) -> M:
    """The message a body holds; a Refusal that names the first field that is wrong. The value is not repeated: it
    may be anything."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part)[:40] for part in first["loc"][:6])
        said = " ".join(first["msg"].removeprefix("Value error, ").split())
        raise Refusal(422, f"{where}: {said}" if where else said) from None
