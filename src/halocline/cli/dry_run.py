"""What `--dry-run` prints: a run's plan, stages, proof and predicted time and memory, with nothing started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from halocline.cli.drawing import table_of
from halocline.plan.plan import Plan
from halocline.plan.stage import PARAMETERS
from halocline.train.settings import Settings

if TYPE_CHECKING:
    from halocline.train.forecast import Forecast

_UNEQUAL = 1.25
"""A stage this many times as long as the mean is worth a line."""


def dry_run(settings: Settings) -> int:
    """Print what the run would be."""
    from halocline.train.forecast import forecast

    _draw(forecast(settings))
    return 0


def _draw(found: Forecast) -> None:
    columns = ("stage", "ranks", "layers", "parameters", "TFLOP", "forward ms", "backward ms", "GiB a rank, about")
    console, table = table_of(*columns, least=120)
    plan = found.plan
    console.print(
        f"[bold]{found.model}[/bold]: {found.layers} layers, {_amount(found.parameters)} parameters", soft_wrap=True
    )
    console.print(f"{plan.world_size} processes = {arithmetic(plan)}")
    console.print(_batch(found), soft_wrap=True)
    for number, stage in enumerate(found.stages):
        first, stop = stage.layers
        table.add_row(
            str(number),
            _span(stage.ranks[0], stage.ranks[-1]),
            _span(first, stop - 1),
            _amount(stage.parameters),
            "-" if stage.flops is None else f"{stage.flops / 1e12:.4g}",
            *(("-", "-") if stage.seconds is None else (f"{1e3 * seconds:.4g}" for seconds in stage.seconds)),
            "-" if found.memory is None else f"{max(found.memory[rank] for rank in stage.ranks) / 2**30:.2f}",
        )
    console.print(table)
    console.print("TFLOP and ms are a microbatch's: operations of the forward on all ranks, time on each")
    console.print(
        f"schedule {plan.schedule}: {found.instructions} instructions proved complete, ordered, agreed between ranks, "
        f"free of deadlock and reduced once",
        soft_wrap=True,
    )
    console.print(_price(found), soft_wrap=True)
    for advice in _advice(found):
        console.print(advice, soft_wrap=True)
    console.print("nothing was started: leave out --dry-run to train")


def _price(found: Forecast) -> str:
    """What a step takes, and on what."""
    plan = found.plan
    if found.speed is None:
        return (
            f"simulated as if all layers were alike: makespan {found.makespan:.4g} forwards of one layer, bubble "
            f"{found.bubble:.1%}; no device is priced, as {found.uncounted}"
        )
    assert plan.batch is not None
    inside = any(stage.team_size > stage.lanes or stage.shard == PARAMETERS for stage in plan.stages)
    return (
        f"simulated on {found.speed.name}: makespan {found.makespan:.4g} s, bubble {found.bubble:.1%}, "
        f"{plan.batch * plan.replicas / found.makespan:.4g} samples/s"
        + ("; without what ranks tell each other inside a stage" if inside else "")
    )


def _advice(found: Forecast) -> Iterator[str]:
    """What would cost nothing: which stage the others wait for, and what is recomputed in vain."""
    last = found.plan.stages[-1]
    if found.plan.schedule == "1f1b" and last.recompute and len(found.plan.stages) > 1:
        yield "--recompute but-last saves time and costs no memory: the last stage's backward comes at once"
    times = [sum(stage.seconds) for stage in found.stages if stage.seconds is not None]
    if found.plan.pipes > 1 or found.plan.chunks > 1 or len(times) < 2:
        return  # a rank has several stages: which of them is long says little
    if max(times) >= _UNEQUAL * sum(times) / len(times):
        longest, ratio = times.index(max(times)), max(times) * len(times) / sum(times)
        yield f"stage {longest} takes {ratio:.2g} times as long as the mean one, and others wait: move layers off it"


def arithmetic(plan: Plan) -> str:
    """How the number of processes comes about: Merak's three degrees where every stage is alike, else a sum."""
    sizes = {stage.team_size for stage in plan.stages}
    tensor = plan.stages[0].tensor
    if sizes == {tensor}:
        return f"pp {plan.places} x tp {tensor} x dp {plan.replicas}"
    return teams(plan)


def teams(plan: Plan) -> str:
    """The sizes of the stages' teams as a sum."""
    found = " + ".join(str(stage.team_size) for stage in plan.stages[: plan.places])
    return found if plan.replicas == 1 else f"{plan.replicas} replicas x ({found})"


def _batch(found: Forecast) -> str:
    plan = found.plan
    assert plan.batch is not None
    of_all = f" x {plan.replicas} replicas" if plan.replicas > 1 else ""
    return (
        f"a step takes {plan.batch * plan.replicas} samples of {found.sample} = "
        f"{plan.microbatches} microbatches x {plan.batch / plan.microbatches:g}{of_all}"
    )


def _amount(count: int) -> str:
    return f"{count / 1e6:,.2f} M" if count >= 1e6 else f"{count:,}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
