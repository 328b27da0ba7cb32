"""Which boxes of a batch a rank must read: its tiles of the images if it holds the first stage, and what it needs of
the targets if it holds the last. Knows boxes; nothing of files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halocline.plan.plan import Plan
from halocline.runtime.batch import Field
from halocline.runtime.boundary.crossing import Crossing, target_crossing
from halocline.runtime.boundary.relay import Relay
from halocline.runtime.stage import StageRunner
from halocline.tiling.boxes import Box, is_empty


@dataclass(frozen=True)
class Reads:
    """The boxes of a batch that one rank needs, batch dim included: a list for each tensor, empty if it needs none."""

    inputs: tuple[tuple[Box, ...], ...]
    targets: tuple[tuple[Box, ...], ...]


def reads(
    plan: Plan,
    runners: Mapping[tuple[int, int], StageRunner],
    relay: Relay,
    cuts: Sequence[tuple[int, int]],
    inputs: Sequence[Field],
    targets: Sequence[Field],
) -> Reads:
    """`cuts`: the samples of each microbatch of this replica, counted in the whole batch."""
    last = len(plan.stages) - 1
    sizes = sorted({b - a for a, b in cuts if b > a}, reverse=True)
    relay.learn(inputs if any(stage == 0 for _, stage in runners) else [], sizes)
    wanted_inputs: list[list[Box]] = [[] for _ in inputs]
    wanted_targets: list[list[Box]] = [[] for _ in targets]
    for microbatch, (begin, end) in enumerate(cuts):
        if begin == end:
            continue
        pipe, samples = plan.pipe_of(microbatch), end - begin
        if (pipe, 0) in runners:
            runner = runners[pipe, 0]
            for boxes, crossing in zip(wanted_inputs, relay.received(0, samples)):
                boxes.append(_placed(runner.origin(crossing), begin))
        if (pipe, last) in runners:
            runner = runners[pipe, last]
            for boxes, (shape, dtype) in zip(wanted_targets, targets):
                size = (samples, *shape)
                crossing = Crossing(size, "", False)
                if runner.exchanger is not None:
                    crossing = target_crossing(relay.prediction(samples), size, dtype)
                boxes.append(_placed(runner.origin(crossing), begin))
    return Reads(_kept(wanted_inputs), _kept(wanted_targets))


def _placed(box: Box, first: int) -> Box:
    """A microbatch's box in the whole batch."""
    return ((box[0][0] + first, box[0][1] + first), *box[1:])


def _kept(boxes: Sequence[Sequence[Box]]) -> tuple[tuple[Box, ...], ...]:
    return tuple(tuple(dict.fromkeys(b for b in found if not is_empty(b))) for found in boxes)
