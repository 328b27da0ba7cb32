"""One rank that trains with the real Zeus client. Run as a program by test_zeus_client; what is not here (a GPU) has a
stand-in that writes down which clocks were set.

    python zeus_rank.py RANK URL RENDEZVOUS LIST OUT        LIST: the rank's instructions as JSON
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import zeus.device.gpu
import zeus.optimizer.pipeline_frequency.optimizer as pipeline

FREQUENCIES = [1400, 1200, 1000]


class Gpus:
    """What the client asks of `zeus.device`."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def get_supported_memory_clocks(self, device: int) -> list[int]:
        return [1215, 877]

    def get_supported_graphics_clocks(self, device: int, memory: int) -> list[int]:
        assert memory == 1215
        return sorted(FREQUENCIES)

    def set_gpu_locked_clocks(self, device: int, low: int, high: int) -> None:
        with self._out.open("a") as file:
            file.write(f"{high}\n")

    def _nothing(self, *_: Any) -> None:
        """Settings that do not matter here."""

    reset_power_management_limit = set_memory_locked_clocks = reset_memory_locked_clocks = _nothing

    def reset_gpu_locked_clocks(self, device: int) -> None:
        with self._out.open("a") as file:
            file.write("reset\n")


def main() -> None:
    number, url, rendezvous, instructions, out = sys.argv[1:]
    rank = int(number)
    multiprocessing.set_start_method("fork")  # the client's own process must inherit the stand-in
    zeus.device.gpu._gpus = Gpus(Path(out))  # type: ignore[assignment]
    torch.cuda.set_device = lambda device: None
    pipeline.sync_execution = lambda *_, **__: None
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    client = pipeline.PipelineFrequencyOptimizer(
        rank=rank, dp_rank=0, pp_rank=rank, tp_rank=0, device_id=0,
        dp_degree=1, pp_degree=2, tp_degree=1, world_size=2, server_url=url, job_metadata="a Zeus client",
    )  # fmt: skip
    for _ in range(2):
        client.on_step_begin()
        for name in json.loads(instructions):
            client.on_instruction_begin(name)
            client.on_instruction_end(name)
        client.on_step_end()  # raises unless exactly these instructions were in the schedule
    client.frequency_controller.end()
    client.frequency_controller._proc.join(60)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
