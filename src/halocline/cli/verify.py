"""`halocline verify`: runs a model under a plan on processes of this machine and compares it with one device."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halocline.cli.drawing import table_of
from halocline.models.zoo import find
from halocline.plan.flags.fields import flat
from halocline.plan.plan import Plan
from halocline.plan.settings import PlanSettings
from halocline.train.settings import TOLERANCE, ModelSettings, Settings

if TYPE_CHECKING:
    from halocline.runtime.proof.verify import Differences
    from halocline.train.trial import Misread

"""The largest difference that counts as exact, by dtype."""
_ROWS, _NAMES = 20, 4


@dataclass(frozen=True)
class Options:
    """Is this plan exact for this model? Runs it on processes of this machine and the same steps on one device, and
    reports the largest relative difference of the loss, of each gradient, and of parameters and buffers at the end.

    Exits with 0 if none exceeds 1e-10 (1e-4 in float32), and with 1 if one does. Without --stages there are 2 stages,
    or 1 with tiles."""

    model: ModelSettings = field(default_factory=ModelSettings)
    plan: PlanSettings = field(default_factory=PlanSettings)
    dtype: str = "float64"
    """float64 or float32."""
    steps: int = 2
    """Optimizer steps to compare."""
    loss: str | None = None
    """cross-entropy or mse (left out: the model's own, else cross-entropy where its output has classes, else mse)."""
    seed: int = 0
    """Of the weights, the data and the dropout."""
    deadline: float = 60.0
    """Seconds that any process may wait for another."""
    device: str = "cpu"
    """cpu, or cuda: where both sides compute; several ranks may share one GPU."""
    json: bool = False
    """Print one JSON object."""


def run(options: Options) -> int:
    name = options.model.name
    if name is None:
        raise ValueError("no model to verify: write halocline verify MODEL, e.g. small-cnn or package.module:callable")
    find(name)
    if options.dtype not in TOLERANCE:
        raise ValueError(f"--dtype {options.dtype} is not known: use {' or '.join(TOLERANCE)}")
    if options.device not in ("cpu", "cuda"):
        raise ValueError(f"--device {options.device} is not known: use cpu or cuda")
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps} is below 1: use 1 or more")

    from rich.console import Console

    console = Console(stderr=True)
    with console.status("loading") as status:
        # torch takes seconds to load: wrong options have been answered by now, and something moves.
        from halocline.runtime.layers import named_layers
        from halocline.train.planning import options_for, plan_of
        from halocline.train.trial import Trial, known_model, misread, rounding
        from halocline.train.trial import run as run_trial

        settings = Settings().but(**flat(options.model), **flat(options.plan), seed=options.seed)
        made_with, counted = options_for(settings, name)
        known = known_model(name, made_with, options.seed)
        layers = len(named_layers(known.layers))
        if counted not in (None, layers):
            raise ValueError(f"--layers {counted} but {name} has {layers} layers: leave out --layers")
        plan = plan_of(settings, known, stages=2 if options.plan.tiles is None else 1)
        trial = Trial(
            name,
            plan,
            plan.image or known.image,
            plan.replicas * (plan.batch or plan.microbatches * max(2, *(s.lanes for s in plan.stages), 2)),
            options.steps,
            options.dtype,
            options.loss,
            options.seed,
            options.deadline,
            options.device,
            made_with,
            options.plan.sequence_parallel,
        )

        def say(what: str) -> None:
            status.update(f"{name}: {options.steps} steps on {what}")

        tolerance = TOLERANCE[options.dtype]
        found = run_trial(trial, say)
        wrong = None if found.worst <= tolerance else misread(trial, tolerance, say)
        found = found if wrong is None else wrong.found
        exact = found.worst <= tolerance
        alone = None
        if not exact and math.isfinite(found.worst) and not (wrong and wrong.on_ranks):
            status.update(f"{name}: what rounding alone does")
            alone = rounding(trial)
    if options.json:
        print(json.dumps(_facts(options, plan, found, exact, wrong, alone)))
        return 0 if exact else 1
    _draw(options, plan, found, exact, "one device" if wrong is None else "one device with its norms written out")
    if wrong is not None:
        print(_explained(wrong, exact))
    if alone is not None:
        print(
            f"One device differs from itself by {alone:.2e} when its images change in their last bit. If that is "
            f"as much, rounding grows in this model: use --steps 1, larger images or larger microbatches."
        )
    return 0 if exact else 1


def _explained(wrong: Misread, exact: bool) -> str:
    """What torch's kernel has to do with it, in one line."""
    said = (
        f"torch's CPU kernel misreads the gradient of {_norms(wrong.norms)} on one device (strides that fit two memory "
        f"formats), which is off by {wrong.one_device:.2e}; so the plan was held against norms written out in "
        f"elementary operations."
    )
    if wrong.on_ranks:
        said += (
            f" On this plan's processes it misreads {_norms(wrong.on_ranks)}, too: train with two or more samples per "
            f"microbatch, tiles in that stage, GroupNorm for InstanceNorm, or a GPU."
        )
    elif not exact:
        said += " The plan differs from those as well, for another reason."
    return said


def _norms(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"norm{'s' * (len(names) > 1)} {', '.join(names[:_NAMES])}{more}"


def _facts(
    options: Options, plan: Plan, found: Differences, exact: bool, wrong: Misread | None, alone: float | None
) -> dict[str, Any]:
    def tables(table: dict[str, float]) -> dict[str, float | None]:
        return {name: _number(value) for name, value in sorted(table.items())}

    facts: dict[str, Any] = {
        "exact": exact,
        "worst": _number(found.worst),
        "tolerance": TOLERANCE[options.dtype],
        "loss": _number(found.loss),
        "gradients": tables(found.gradients),
        "parameters": tables(found.parameters),
        "buffers": tables(found.buffers),
        "processes": plan.world_size,
        "schedule": plan.schedule,
        "steps": options.steps,
        "dtype": options.dtype,
    }
    if wrong is not None:
        off = _number(wrong.one_device)
        facts["misread"] = {"norms": wrong.norms, "one_device": off, "on_ranks": wrong.on_ranks}
    if alone is not None:
        facts["rounding"] = alone
    return facts


def _number(value: float) -> float | None:
    """JSON has no infinity: null stands for a tensor that is missing, not a number, or there on one side only."""
    return value if math.isfinite(value) else None


def _draw(options: Options, plan: Plan, found: Differences, exact: bool, known: str) -> None:
    console, drawn = table_of("difference", "of", "name", left=("of", "name"))
    rows = [(found.loss, "loss", "")]
    for kind, table in (("gradient", found.gradients), ("parameter", found.parameters), ("buffer", found.buffers)):
        rows += [(value, kind, name) for name, value in table.items()]
    rows.sort(key=lambda row: -row[0])
    for value, kind, name in rows[:_ROWS]:
        drawn.add_row(f"{value:.2e}", kind, name)
    console.print(drawn)
    if len(rows) > _ROWS:
        console.print(f"and {len(rows) - _ROWS} more, none larger than {rows[_ROWS][0]:.2e}")
    verdict = "exact" if exact else "NOT EXACT"
    console.print(
        f"[bold]{verdict}[/bold]: {options.model.name} under {plan.schedule} on {plan.world_size} processes differs "
        f"from {known} by at most {found.worst:.2e} ({options.dtype}, {options.steps} steps, "
        f"tolerance {TOLERANCE[options.dtype]:g})",
        soft_wrap=True,
    )
