"""Plans as TOML: what `plan.toml` may hold, read strictly (unknown keys and wrong types are named) and written back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from typing import Any

from halocline.plan.plan import Plan
from halocline.plan.require import require_choice, require_type
from halocline.plan.stage import Stage


def read(text: str) -> Plan:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the plan is not valid TOML: {error}: write one key = value per line") from error
    if "stages" not in data:
        raise ValueError(
            "stages is missing: a plan needs at least one [[stages]] table with layers = [first, last + 1]"
        )
    require_type("stages", data["stages"], list, "[[stages]] tables")
    stages = []
    for index, table in enumerate(data.pop("stages")):
        where = f"stages[{index}]"
        require_type(where, table, dict, "a [[stages]] table")
        if "layers" not in table:
            raise ValueError(f"{where}.layers is missing: write layers = [first, last + 1]")
        try:
            stages.append(Stage(**_fields(Stage, table, "stage.")))
        except ValueError as error:
            raise ValueError(str(error).replace("stage.", f"{where}.", 1)) from error
    return Plan(stages=tuple(stages), **_fields(Plan, data, ""))


def write(plan: Plan) -> str:
    lines = _lines(plan, skip="stages")
    for stage in plan.stages:
        lines += ["", "[[stages]]", *_lines(stage)]
    return "\n".join(lines) + "\n"


def _fields(cls: type, table: dict[str, Any], where: str) -> dict[str, Any]:
    known = [field.name for field in dataclasses.fields(cls)]
    for key in table:
        require_choice(f"{where}key", key, known)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _lines(item: Plan | Stage, skip: str = "") -> list[str]:
    """One `key = value` per field that differs from its default (and the fields without one)."""
    lines = []
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        # The schedule and the microbatches are written even at their defaults: they are what a reader looks for.
        if field.name == skip or (value == field.default and field.name not in ("schedule", "microbatches")):
            continue
        lines.append(f"{field.name} = {value_text(value)}")
    return lines


def value_text(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return "[" + ", ".join(value_text(v) for v in value) + "]"
    return repr(value)
