"""Runs the instruction lists of a schedule on simulated devices in threads of this process, hooks and all, without
tensors: a device waits for another where training would wait for a message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from halocline.schedule.instruction import COMPUTE, STEP, Schedule


def play(schedule: Schedule, observers: Sequence[Sequence[Any]], steps: int | Callable[[int], bool]) -> None:
    """`observers[rank]` hear of every instruction of their rank, for so many steps, or while `steps(rank)` is true."""
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            number = 0
            while steps(rank) if callable(steps) else number < steps:
                _step(schedule, rank, observers[rank], number)
                number += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(observers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _step(schedule: Schedule, rank: int, observers: Sequence[Any], number: int) -> None:
    for observer in observers:
        observer.begin(number)
    for instruction in schedule.ranks[rank % len(schedule.ranks)]:
        for observer in observers:
            observer.before(instruction)
        if instruction.kind in COMPUTE or instruction.kind == STEP:
            for observer in observers:
                observer.waits(instruction)
            for observer in observers:
                observer.ready(instruction)
        for observer in observers:
            observer.after(instruction)
    for observer in observers:
        observer.end(number)
