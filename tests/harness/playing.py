"""Runs the instruction lists of a schedule on simulated devices in threads of this process, hooks and all, without
tensors: a device waits for another where training would wait for a message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from halocline.runtime.executor import Simulated
from halocline.schedule.events import Events, Observer
from halocline.schedule.instruction import COMPUTE, STEP, Instruction, Schedule


def play(schedule: Schedule, ranks: Sequence[Sequence[Any]], steps: int | Callable[[int], bool]) -> None:
    """`ranks[rank]` holds what acts there and who watches; for so many steps, or while `steps(rank)` is true."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            number = 0
            events = Events([one for one in ranks[rank] if isinstance(one, Observer)])
            devices = [one for one in ranks[rank] if not isinstance(one, Observer)]
            while steps(rank) if callable(steps) else number < steps:
                _step(schedule.ranks[rank % len(schedule.ranks)], devices, events, number)
                number += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _step(row: Sequence[Instruction], devices: Sequence[Simulated], events: Events, number: int) -> None:
    for device in devices:
        device.step_begins(number)
    events.step_begins(number)
    for instruction in row:
        for device in devices:
            device.begin(instruction)
        events.begin(instruction)
        if instruction.kind in COMPUTE or instruction.kind == STEP:
            events.wait(instruction)
            for device in devices:
                device.ready(instruction)
            events.ready(instruction)
        for device in devices:
            device.end(instruction)
        events.end(instruction)
    events.step_ends(number)
