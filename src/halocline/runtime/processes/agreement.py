"""What the ranks tell each other in words: small values gathered on every rank, and errors that all raise alike.

Knows the world and JSON; nothing of training.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from halocline.runtime.processes.world import World


def gathered(world: World, value: Any) -> list[Any]:
    """What every rank passed, by rank. Every rank calls this; it returns when all have."""
    text = json.dumps(value).encode()
    if world.size == 1:
        return [json.loads(text)]
    sizes = torch.zeros(world.size, dtype=torch.int64, device=world.device)
    sizes[world.rank] = len(text)
    ends = world.sum(sizes, label="sizes of words").cumsum(0).tolist()
    # A sum gathers: everybody else's bytes are zero at this rank's place.
    words = torch.zeros(ends[-1], dtype=torch.uint8, device=world.device)
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    words[ends[world.rank] - len(text) : ends[world.rank]] = mine.to(world.device)
    whole = world.sum(words, label="words of all ranks").cpu().numpy().tobytes()
    return [json.loads(whole[start:end]) for start, end in zip([0, *ends], ends)]


def raise_alike(world: World, error: Exception | None) -> None:
    """If a rank has an error, every rank raises it. Every rank calls this."""
    for rank, story in enumerate(gathered(world, None if error is None else str(error))):
        if story is not None:
            if error is not None and rank == world.rank:
                raise error
            raise ValueError(story)
