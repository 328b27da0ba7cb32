"""Marks of this process's device: one clock for whoever wants to know when it did what. On a GPU marks are CUDA events
on the compute stream, read as seconds since the epoch.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch

from halocline.schedule.events import Marks, TimeMarks

_OFTEN = 1.0
"""Seconds after which the clock is set anew: a GPU's runs apart from the host's, and CUDA tells what has passed in 32
bits."""


@cache
def marks_of(device: torch.device) -> Marks:
    """The clock of a device, the same for all who ask."""
    return CudaMarks(device) if device.type == "cuda" else TimeMarks()


class CudaMarks:
    """The clock of a GPU. It is set by an event on a stream without work, which happens at once, whatever the GPU does
    elsewhere."""

    immediate = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle = torch.cuda.Stream(device)
        self._set()

    def mark(self) -> Any:
        return self._record(torch.cuda.current_stream(self._device))

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def happened(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, mark: Any) -> float:
        mark.synchronize()
        return self._since + self._base.elapsed_time(mark) / 1e3

    def anchor(self) -> None:
        if time.time() - self._since > _OFTEN:
            self._set()

    def _set(self) -> None:
        before = time.time()
        self._base = self._record(self._idle)
        self._base.synchronize()
        self._since = (before + time.time()) / 2
        """When the base happened."""

    def _record(self, stream: torch.cuda.Stream) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event
