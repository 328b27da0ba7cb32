"""The warden: a process that resets a clock when the process that set it is gone without having done so.

    python -m halocline.energy.device.warden nvml GPU-8f3c...      # started by the clock's guard, which holds its input

It waits for its input to end. "done" means that the clock was reset; an end without it, that nobody else will.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from halocline.energy.device.meter import ClockRefused

WATCHING = b"watching\n"
"""What it says once nothing can end it but the end of whom it watches."""


def main(words: Sequence[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.buffer.write(WATCHING)
    sys.stdout.buffer.flush()
    if sys.stdin.buffer.read().endswith(b"done\n"):
        return 0
    try:
        reset(*words)
    except (ClockRefused, ValueError, OSError) as error:
        print(f"halocline: the clock of {' '.join(words)} could not be reset: {error}", file=sys.stderr)
        return 1
    return 0


def reset(kind: str, name: str) -> None:
    """Reset the clock that `Clock.rescue()` named."""
    if kind == "nvml":
        from halocline.energy.device.nvml import Nvml

        Nvml(name).reset()
    elif kind == "zeus":
        from halocline.energy.device.zeus_device import ZeusGpu, open_zeus

        found = open_zeus("gpu", int(name))
        assert isinstance(found, ZeusGpu)
        found.reset()
    elif kind == "simulated":
        from halocline.energy.simulated.clock_file import ClockFile

        ClockFile(name).write(None)
    else:
        raise ValueError(f"{kind!r} is no clock: use nvml, zeus or simulated")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
