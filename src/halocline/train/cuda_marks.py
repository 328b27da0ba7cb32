"""Marks on a GPU: CUDA events on the compute stream, read as seconds since the epoch. The host runs ahead of the
device, so a mark is taken long before it happens.
"""

from __future__ import annotations

import time
from typing import Any

import torch

_LONG = 5.0
"""Seconds after which the base moves on: CUDA counts milliseconds in 32 bits."""


class CudaMarks:
    """Fits `halocline.energy.device.marks.Marks`."""

    immediate = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = self.mark()
        self._base.synchronize()
        self._since = time.time()
        """When the base happened."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self, mark: Any) -> None:
        mark.synchronize()

    def seconds(self, mark: Any) -> float:
        mark.synchronize()
        after = self._base.elapsed_time(mark) / 1e3
        seconds = self._since + after
        if after > _LONG:
            self._base, self._since = mark, seconds
        return seconds
