"""`halocline models`: every model with its layers, parameters and activation memory, or one of them layer by layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halocline.cli.drawing import table_of
from halocline.models.zoo import ZOO, find
from halocline.plan.flags.fields import flat
from halocline.train.settings import ModelSettings, Settings

if TYPE_CHECKING:
    from halocline.models.count import Count
    from halocline.models.model import Model


@dataclass(frozen=True)
class Options:
    """The models there are, or one of them layer by layer, which is what --balance wants to know. Nothing is run:
    activation memory (what one training sample makes the layers keep for the backward, in float32, without the loss) is
    found from shapes alone, in a second or so per model."""

    model: ModelSettings = field(default_factory=ModelSettings)
    image_size: str | None = None
    """Height and width of the image: 512 for a square, or 512,384 (left out: each model's own). Models of text
    take their own sequence."""
    layers: int | None = None
    """Transformers: number of blocks."""
    no_activations: bool = False
    """Count layers and parameters only."""
    json: bool = False
    """Print a JSON list, one object for each model."""


@dataclass(frozen=True)
class _Row:
    """A model and what was found about it."""

    model: Model
    count: Count
    image: tuple[int, ...] | None
    options: dict[str, Any]


def run(options: Options) -> int:
    one = options.model.name
    if one is not None:
        find(one)  # a wrong name is answered before torch is loaded
    settings = Settings().but(**flat(options.model), image_size=options.image_size, layers=options.layers)
    said, asked = settings.options_of_model, settings.plan.image
    names = list(ZOO) if one is None else [one]

    from rich.console import Console

    with Console(stderr=True).status("loading") as status:
        # torch takes seconds to load, and some models a second each: something moves meanwhile.
        from halocline.models.count import count
        from halocline.models.model import make, options_of

        rows = []
        for name in names:
            status.update(f"counting {name}")
            known = options_of(name)
            # In the whole table an option goes to the models that have it; to a single model it goes as it was said.
            taken = {key: value for key, value in said.items() if one is not None or key in known}
            model = make(name, **taken)
            size = None if model.sequence else asked or model.image
            image = None if size is None else (size[0], size[1])
            rows.append(_Row(model, count(model, image, not options.no_activations), image, {**known, **taken}))
    if options.json:
        print(json.dumps([_facts(row, one is not None) for row in rows], indent=1, default=str))
    elif one is None:
        _draw_table(rows)
    else:
        _draw_layers(rows[0])
    return 0


def _facts(row: _Row, layers: bool) -> dict[str, Any]:
    facts = {
        "name": row.model.name,
        "layers": len(row.count.layers),
        "parameters": row.count.parameters,
        "activation_bytes": row.count.activation_bytes,
        "image": None if row.image is None else [*row.image],
        "sequence": row.model.sequence or None,
        "task": row.model.task,
        "classes": row.model.classes,
        "options": row.options,
        "note": find(row.model.name).note,
    }
    if layers:
        facts["per_layer"] = [
            {"layer": layer.name, "parameters": layer.parameters, "activation_bytes": layer.activation_bytes}
            for layer in row.count.layers
        ]
    return facts


# -- drawing -------------------------------------------------------------------------------------------------------


def _draw_table(rows: Sequence[_Row]) -> None:
    console, table = table_of("model", "layers", "parameters", "activations", "of", left=("model", "of"), wrap=False)
    for row in rows:
        count = row.count
        table.add_row(
            row.model.name,
            str(len(count.layers)),
            _millions(count.parameters),
            _bytes(count.activation_bytes),
            _sample(row),
        )
    console.print(table)
    console.print(
        "activations: what one sample makes the layers keep for the backward, in float32. resnet-v1-N and resnet-v2-N "
        "take any N of the form 6n+2 and 9n+2. halocline models NAME tells the layers of one.",
        soft_wrap=True,
    )
    for row in rows:
        _draw_note(row, console)


def _draw_layers(row: _Row) -> None:
    console, table = table_of("layer", "parameters", "activations", left=("layer",), wrap=False)
    for layer in row.count.layers:
        table.add_row(layer.name, f"{layer.parameters:,}", _bytes(layer.activation_bytes))
    console.print(table)
    whole = row.count
    console.print(
        f"[bold]{row.model.name}[/bold]: {len(whole.layers)} layers, {whole.parameters:,} parameters, "
        f"{_bytes(whole.activation_bytes)} of activations for a sample of {_sample(row)}",
        soft_wrap=True,
    )
    if row.options:
        console.print(f"options: {', '.join(f'{key}={value}' for key, value in row.options.items())}", soft_wrap=True)
    _draw_note(row, console)


def _draw_note(row: _Row, console: Any) -> None:
    note = find(row.model.name).note
    if note:
        console.print(f"{row.model.name}: {note}", soft_wrap=True)


def _sample(row: _Row) -> str:
    if row.image is None:
        return f"{row.model.sequence} tokens"
    return " x ".join(map(str, row.image))


def _millions(count: int) -> str:
    return f"{count / 1e6:.2f} M"


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
