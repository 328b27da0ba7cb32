"""The random numbers that layers draw, by whichever library: torch's, Python's and NumPy's own generators are seeded
together and left as they were together.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy
import torch


def seed_randomness(seed: int, device: torch.device) -> None:
    """Random numbers on the CPU and on `device` start from `seed`."""
    torch.random.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


@contextmanager
def kept_randomness(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """What is drawn within, on the CPU and on GPUs in `devices`, changes nothing that is drawn afterwards."""
    pythons, numpys = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(pythons)
            numpy.random.set_state(numpys)
