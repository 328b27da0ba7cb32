"""A process that sets a simulated clock and then ends in the way it is told: python clock.py FILE WAY."""

from __future__ import annotations

import os
import sys
import time

from halocline.energy.device.clock import GuardedClock
from halocline.energy.simulated.rack import ClockFile


class FileClock:
    """A clock that is only its file."""

    name = "simulated clock"

    def __init__(self, path: str) -> None:
        self.file = ClockFile(path)

    def frequencies(self) -> list[int]:
        return [1410, 1200, 900]

    def actual(self) -> int:
        return self.file.read() or 1410

    def set(self, frequency: int) -> None:
        self.file.write(frequency)

    def reset(self) -> None:
        self.file.write(None)

    def rescue(self) -> list[str]:
        return ["simulated", str(self.file.path)]


def main(path: str, way: str) -> None:
    clock = GuardedClock(FileClock(path))
    assert clock.set(900)
    print("set", flush=True)
    sys.stdin.readline()  # the test has seen the clock set
    if way == "exception":
        raise RuntimeError("as asked")
    if way == "sys.exit":
        sys.exit(3)
    if way == "os._exit":
        os._exit(4)
    if way == "abort":
        os.abort()
    if way != "return":
        print("waiting", flush=True)
        time.sleep(600)  # for a signal


if __name__ == "__main__":
    main(*sys.argv[1:])
