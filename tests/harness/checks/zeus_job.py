"""A job that trains with the real Zeus client, every rank a process of its own, gloo between them. Run as a program by
test_zeus_client. What is not here, a GPU, is simulated: it writes down which clocks were set.

It loads torch and Zeus once and starts a job for every line of its input, [URL, FOLDER, SPEC] as JSON. SPEC has
`degrees` (pp, dp, tp), `microbatches`, `order` (of the degrees; the number of the last changes fastest from rank to
rank), `acts` (what each rank, or all, do one after the other), `blocking` (watts) and `law` (stage, kind, MHz
-> seconds, joules). FOLDER gets `rank-R.json`, each act with what came of it, up to the first that raised; `clocks-R`;
and when all ranks have ended `code`, the worst exit code, and `said`, what was on stderr.
"""

from __future__ import annotations

import atexit
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
import torch.distributed as dist
import zeus.device.gpu
import zeus.optimizer.pipeline_frequency.optimizer as pipeline
from zeus.optimizer.pipeline_frequency.common import (
    REGISTER_RANK_URL,
    REPORT_PROFILING_RESULT_URL,
    ProfilingResult,
    RankInfo,
)

FREQUENCIES = [1400, 1200, 1000]
PATIENCE = 120.0


class SimulatedGPU(zeus.device.gpu.GPU):
    """Has clocks, which it writes down, and nothing else."""

    def __init__(self, gpu_index: int, out: Path) -> None:
        super().__init__(gpu_index)
        self._out = out

    def get_supported_memory_clocks(self) -> list[int]:
        return [1215, 877]

    def get_supported_graphics_clocks(self, memory_clock_mhz: int | None = None) -> list[int]:
        assert memory_clock_mhz == 1215
        return sorted(FREQUENCIES)

    def set_gpu_locked_clocks(self, min_clock_mhz: int, max_clock_mhz: int, block: bool = True) -> None:
        assert min_clock_mhz == max_clock_mhz
        self._write(str(max_clock_mhz))

    def reset_gpu_locked_clocks(self, block: bool = True) -> None:
        self._write("reset")

    def _write(self, line: str) -> None:
        with self._out.open("a") as file:
            file.write(f"{line}\n")

    def _passed_over(self, *_: Any, **__: Any) -> None:
        """Settings that do not matter here."""

    reset_power_management_limit = set_memory_locked_clocks = reset_memory_locked_clocks = _passed_over

    def _missing(self, *_: Any, **__: Any) -> Any:
        raise zeus.device.gpu.ZeusGPUNotSupportedError("a simulated GPU has clocks only")

    get_power_management_limit_constraints = get_power_management_limit = set_power_management_limit = _missing
    set_persistence_mode = get_persistence_mode = get_average_power_usage = get_instant_power_usage = _missing
    get_average_memory_power_usage = get_total_energy_consumption = get_gpu_temperature = get_name = _missing
    supports_nonblocking_setters = property(lambda self: False)
    supports_get_total_energy_consumption = _missing


class SimulatedGPUs(zeus.device.gpu.GPUs):
    """One of them, as device 0 of this process."""

    def __init__(self, out: Path) -> None:
        self._gpus = [SimulatedGPU(0, out)]

    def __del__(self) -> None:
        """There is no driver to let go."""

    @property
    def gpus(self) -> Sequence[SimulatedGPU]:
        return self._gpus


class Rank:
    """One rank and what it can do."""

    def __init__(self, number: int, url: str, folder: Path, spec: dict[str, Any]) -> None:
        self.rank, self._url, self._folder, self._spec = number, url, folder, spec
        degrees = dict(zip(("pp", "dp", "tp"), spec["degrees"]))
        self._degrees, self._seat = degrees, {}
        for name in reversed(spec["order"]):
            number, self._seat[name] = divmod(number, degrees[name])
        stage, microbatches = self._seat["pp"], spec["microbatches"]
        early = min(degrees["pp"] - 1 - stage, microbatches)
        late = ["backward"] * early
        self.list = ["forward"] * early + ["forward", "backward"] * (microbatches - early) + late
        """1F1B, by its definition."""
        self._client: pipeline.PipelineFrequencyOptimizer | None = None

    # -- what a training framework does ------------------------------------------------------------------------------

    def begin(self) -> Any:
        """A job: registered by rank 0, then every rank; and its first schedule."""
        self.end()
        seat, degrees = self._seat, self._degrees
        self._client = pipeline.PipelineFrequencyOptimizer(
            rank=self.rank, dp_rank=seat["dp"], pp_rank=seat["pp"], tp_rank=seat["tp"], device_id=0,
            dp_degree=degrees["dp"], pp_degree=degrees["pp"], tp_degree=degrees["tp"],
            world_size=dist.get_world_size(), server_url=self._url, job_metadata="a Zeus client",
        )  # fmt: skip
        return [self._client.job_id, self._client.freq_schedule]

    def step(self) -> None:
        self._play(self.list)

    def fetch(self) -> Any:
        """The next schedule, by the client's own request."""
        self.client.freq_schedule = self.client._get_frequency_schedule()
        self.client.freq_schedule_iter = iter(self.client.freq_schedule)
        return self.client.freq_schedule

    def report(self) -> Any:
        """Two iterations of the schedule, by the law, in Zeus's own message."""
        rows: dict[str, list[list[float]]] = {"forward": [], "backward": []}
        for name, frequency in self.client.freq_schedule:
            rows[name].append(self._spec["law"][self._seat["pp"]][name][str(frequency)])
        times, energies = ({k: [[row[i] for row in v]] * 2 for k, v in rows.items()} for i in range(2))
        busy, spent = (sum(sum(lists[0]) for lists in table.values()) for table in (times, energies))
        waits = max(0.0, 1.0 - busy)
        found = ProfilingResult(
            rank=self.rank, iter_time=[busy + waits] * 2, iter_energy=[spent + self._spec["blocking"] * waits] * 2,
            time_breakdown=times, energy_breakdown=energies,
        )  # fmt: skip
        return self._post(REPORT_PROFILING_RESULT_URL, found)

    # -- what it should not do ---------------------------------------------------------------------------------------

    def tangled(self) -> None:
        """Ends before begins, begins without ends, a step that begins twice."""
        self.client.on_step_begin()
        self.client.on_instruction_end(self.list[0])
        self.client.on_step_begin()
        for name in self.list:
            self.client.on_instruction_begin(name)
        self.client.on_instruction_end("forward")
        self.client.on_step_end()

    def longer(self) -> None:
        self._play([*self.list, "forward"])

    def shorter(self) -> None:
        self._play(self.list[:-1])

    def other(self) -> None:
        """Another instruction than the schedule's."""
        self._play(["backward" if name == "forward" else "forward" for name in self.list])

    def register(self) -> Any:
        return self._post(REGISTER_RANK_URL, self._info(FREQUENCIES))

    def register_otherwise(self) -> Any:
        return self._post(REGISTER_RANK_URL, self._info(FREQUENCIES[1:]))

    def absent(self) -> None:
        """Hears of the job, and leaves before it registers."""
        dist.broadcast_object_list([None], src=0)

    def late(self) -> Any:
        """Hears of the job, and begins when it is told."""
        begun = dist.broadcast_object_list
        try:
            dist.broadcast_object_list = lambda objects, src: (begun(objects, src=src), self.told())
            return self.begin()
        finally:
            dist.broadcast_object_list = begun

    # -- among each other, and with the test -------------------------------------------------------------------------

    def meet(self) -> None:
        dist.barrier()

    def told(self) -> None:
        """Says that it is here, and waits until the test says go."""
        (self._folder / f"here-{self.rank}").touch()
        end = time.monotonic() + PATIENCE
        while not (self._folder / "go").exists():
            assert time.monotonic() < end, "the test did not say go"
            time.sleep(0.02)
        url = (self._folder / "go").read_text()
        if url and self._client is not None:
            self._url = self._client.server_url = url

    def end(self) -> None:
        """The clock is given back."""
        if self._client is not None:
            self._client.frequency_controller.end()
            self._client.frequency_controller._proc.join(PATIENCE)
        self._client = None

    @property
    def client(self) -> pipeline.PipelineFrequencyOptimizer:
        assert self._client is not None
        return self._client

    def _play(self, names: Sequence[str]) -> None:
        self.client.on_step_begin()
        for name in names:
            self.client.on_instruction_begin(name)
            self.client.on_instruction_end(name)
        self.client.on_step_end()

    def _info(self, frequencies: list[int]) -> RankInfo:
        seat = self._seat
        return RankInfo(
            rank=self.rank, dp_rank=seat["dp"], pp_rank=seat["pp"], tp_rank=seat["tp"],
            available_frequencies=sorted(frequencies, reverse=True),
        )  # fmt: skip

    def _post(self, path: str, message: Any) -> Any:
        reply = httpx.post(self._url + path.format(job_id=self.client.job_id), json=message.dict(), timeout=60)
        return [reply.status_code, reply.json()]


def main(number: int, url: str, folder: Path, spec: dict[str, Any]) -> None:
    zeus.device.gpu._gpus = SimulatedGPUs(folder / f"clocks-{number}")
    torch.cuda.set_device = lambda device: None
    pipeline.sync_execution = lambda *_, **__: None  # there is nothing to wait for on a simulated GPU
    world = math.prod(spec["degrees"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=number, world_size=world)
    rank = Rank(number, url, folder, spec)
    done: list[dict[str, Any]] = []
    for act in spec["acts"][min(number, len(spec["acts"]) - 1)]:
        try:
            done.append({"act": act, "answer": getattr(rank, act.replace(" ", "_"))()})
        except RuntimeError as error:  # what Zeus raises
            done.append({"act": act, "error": str(error)})
            break
    (folder / f"rank-{number}.json").write_text(json.dumps(done))
    rank.end()


def start(url: str, folder: Path, spec: dict[str, Any]) -> None:
    """Starts a job: forks its leader, who forks the ranks. Returns here, and in every rank that is done."""
    if os.fork():
        return
    os.setsid()  # a job that does not end can be ended as a whole
    (folder / "leader").write_text(str(os.getpid()))
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    ranks = []
    for number in range(math.prod(spec["degrees"])):
        rank = os.fork()
        if not rank:
            main(number, url, folder, spec)
            # As at the end of any program Zeus gives the clock back; it starts a thread for that, which an interpreter
            # of Python 3.12 that is ending does not let it.
            atexit._run_exitfuncs()
            os._exit(0)
        ranks.append(rank)
    code = max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks)
    (folder / "code-").write_text(str(code))
    (folder / "code-").rename(folder / "code")
    os._exit(0)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # the client's own process must have the simulated GPU, too
    for line in sys.stdin:
        url, folder, spec = json.loads(line)
        start(url, Path(folder), spec)
