"""The random numbers that layers draw, by whichever library: torch's, Python's and NumPy's own generators are seeded
together and left as they were together.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
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
def kept_randomness(device: torch.device) -> Iterator[None]:
    """What is drawn within, on the CPU and on `device`, changes nothing that is drawn afterwards."""
    pythons, numpys = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(pythons)
            numpy.random.set_state(numpys)
