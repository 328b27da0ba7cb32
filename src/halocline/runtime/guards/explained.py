"""Errors of torch's and Python's that a plan brings about, in the plan's words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.parameter import is_lazy

KNOWN = {
    "'tuple' object has no attribute": (
        "asks what it is given for an attribute, and a stage is given a plain tuple of what the one before returned: "
        "take its parts by number, or put both layers into one stage"
    ),
    "_apply(): Couldn't swap": (
        "makes a module in its forward and moves it, which a run without data cannot: make it in __init__"
    ),
    "modified by an inplace operation": (
        "write in a forward to what a backward needs, perhaps that of an earlier microbatch: change parameters between "
        "steps and other tensors not in place, or use one microbatch"
    ),
    "torch.utils.checkpoint is incompatible with .grad()": (
        "call torch.utils.checkpoint with use_reentrant=True, and zb-h1 runs a backward in two halves: pass "
        "use_reentrant=False, or use another schedule"
    ),
}
"""What such an error says -> what layers do then, and a way out."""


def tell(error: Exception, who: str, where: str = "") -> None:
    """Say which layers an error came from, and why if the plan is the reason."""
    for sign, reason in KNOWN.items():
        if sign in str(error):
            raise ValueError(f"{who} {reason}") from error
    error.__notes__ = [*getattr(error, "__notes__", ()), f"in {who}{where}"]  # as Python 3.11's add_note does


def refuse_lazy(name: str, layer: nn.Module) -> None:
    """A lazy module has no parameters that ranks could compare, share or update before it has seen data."""
    for path, module in layer.named_modules():
        if any(is_lazy(t) for t in (*module._parameters.values(), *module._buffers.values()) if t is not None):
            place = ".".join(filter(None, (name, path)))
            raise ValueError(
                f"{place} is a {type(module).__name__}, whose parameters have no shape before its first forward: run "
                f"the model once on a sample before, or name the number of channels"
            )


def named(layers: Sequence[tuple[str, nn.Module]]) -> str:
    return f"layers {layers[0][0]} to {layers[-1][0]}"
