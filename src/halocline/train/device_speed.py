"""The speed of the device that a dry run is priced on: one that is named, or the one that is here, measured at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from halocline.simulation.speed import ASSUMED, KNOWN, Speed
from halocline.train.settings import RunSettings

_SECONDS = 0.2
"""Of measuring, for each number."""
_ROW = 8
"""Calls that are timed together."""
_IN_A_MODULE = 4
"""Times that an operator's launch takes in a module, under autograd, of a bare one's: measured on an H200's host."""
_TORCH = {"bf16": torch.bfloat16, "tf32": torch.float32, "float32": torch.float32, "float64": torch.float64}


def speed_of(run: RunSettings) -> Speed:
    """Of the device that the settings name. Where none is named and no GPU is here, of one that is assumed."""
    return _speed(run).channels_last() if run.channels_last else _speed(run)


def _speed(run: RunSettings) -> Speed:
    if run.device in KNOWN:
        return KNOWN[run.device]
    if run.device == "cpu" or torch.cuda.is_available():
        return _measured(torch.device("cpu" if run.device == "cpu" else "cuda"))
    return replace(KNOWN[ASSUMED], name=f"{ASSUMED} (assumed: --device names another)")


def _measured(device: torch.device) -> Speed:
    """Matrix products, a copy that no cache holds, and operators on one number."""
    on_gpu = device.type == "cuda"
    side, length = (4096, 2**26) if on_gpu else (768, 2**23)
    compute = {}
    allowed = torch.backends.cuda.matmul.allow_tf32
    for dtype, kind in _TORCH.items():
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a = torch.ones(side, side, device=device, dtype=kind)
        compute[dtype] = 2 * side**3 / _seconds(partial(torch.mm, a, a), device)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    source = torch.ones(length, device=device)
    target, one = torch.empty_like(source), torch.ones(1, device=device)
    memory = 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)
    launch = _IN_A_MODULE * _seconds(lambda: one + 1, device, wait=False)
    # One process cannot measure what is between two devices: a GPU's link is taken from one we know, a CPU's is memory.
    if on_gpu:
        return Speed(f"{torch.cuda.get_device_name(device)}, measured", compute, memory, KNOWN[ASSUMED].link, launch)
    return Speed("this CPU, measured", compute, memory, memory / 4, launch, shares={})


def _seconds(work: Callable[[], object], device: torch.device, wait: bool = True) -> float:
    """Of one call: the best of some rows of calls, as others use the machine, too."""

    def row() -> float:
        begin = time.perf_counter()
        for _ in range(_ROW):
            work()
        if device.type == "cuda" and wait:
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / _ROW

    end = time.perf_counter() + _SECONDS
    row()  # warms up
    best = row()
    while time.perf_counter() < end:
        best = min(best, row())
    return best
