"""Compiled layers: torch.compile on each layer of the stages that run on plain tensors.

A layer at a time, so that all blocks of a transformer, which have one code, are compiled once. Stages with tiles or
lanes stay as they are: their operators are found by rules that a compiler does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from halocline.plan.plan import Plan


def compile_layers(
    plan: Plan, modules: Mapping[int, Sequence[tuple[str, nn.Module]]], backend: str | bool = True
) -> None:
    """Have layers compiled when they are first called; `backend` is one of torch.compile's, or True for its own."""
    for stage, layers in modules.items():
        if plan.stages[stage].tile_count * plan.stages[stage].lanes > 1:
            continue
        for _, layer in layers:
            if not any(True for _ in layer.parameters()):
                continue  # nothing worth it
            if isinstance(backend, str):
                layer.compile(backend=backend)
            else:
                # Random numbers as eager layers draw them, so that dropout is the same on one device.
                layer.compile(options={"fallback_random": True})
