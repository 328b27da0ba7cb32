"""Which samples a step takes: a seeded order per epoch, the same in every process, with a position that can be saved
and restored. Knows numbers of samples, not what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance

(_ORDER,) = chance.purposes("sampler", 1)


class DealtBatch(NamedTuple):
    """The samples of one step."""

    epoch: int
    position: int
    """Of its first sample in the epoch's order."""
    samples: tuple[int, ...]


class Sampler:
    """Deals out batches, epoch after epoch. Its position counts the samples that were handed out, so it is exact
    however far ahead somebody reads, and it means the same with another batch size."""

    def __init__(
        self, samples: int, batch: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = True
    ) -> None:
        if samples < 1:
            raise ValueError(f"{samples} samples cannot make a batch of {batch}: bring at least one")
        if batch < 1:
            raise ValueError(f"a batch of {batch} holds nothing: use 1 or more")
        if drop_last and batch > samples:
            raise ValueError(
                f"a batch of {batch} cannot be filled with {samples} samples: use a batch of {samples} or less"
            )
        self.samples = samples
        self.batch = batch
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.epoch = 0
        self.position = 0
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self.samples // self.batch if self.drop_last else -(-self.samples // self.batch)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The samples in the order of an epoch."""
        if self._order is None or self._order[0] != (self.seed, epoch):
            order = (
                chance.permutation(self.samples, self.seed, _ORDER, epoch) if self.shuffle else np.arange(self.samples)
            )
            self._order = ((self.seed, epoch), order)
        return self._order[1]

    def upcoming(self) -> Iterator[DealtBatch]:
        """The batches from here on, without end. Looking ahead does not move the position."""
        epoch, position = self.epoch, self.position
        while True:
            if self._rest(position) == 0:
                epoch, position = epoch + 1, 0
            count = self._rest(position)
            taken = self.order(epoch)[position : position + count]
            yield DealtBatch(epoch, position, tuple(taken.tolist()))
            position += count

    def _rest(self, position: int) -> int:
        """Samples of the batch at a position; 0 where the epoch ends."""
        left = self.samples - position
        return 0 if self.drop_last and left < self.batch else min(left, self.batch)

    def advance(self, batch: DealtBatch) -> None:
        """Moves the position behind a batch that was handed out."""
        self._stand(batch.epoch, batch.position + len(batch.samples))

    def _stand(self, epoch: int, position: int) -> None:
        self.epoch, self.position = (epoch, position) if self._rest(position) else (epoch + 1, 0)

    def state(self) -> dict[str, int]:
        """What `load` needs to go on here."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "samples": self.samples}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken, in its order."""
        missing = {"epoch", "position", "seed", "samples"} - set(state)
        if missing:
            raise ValueError(f"the sampler's state lacks {', '.join(sorted(missing))}: it was not saved by a Sampler")
        if state["samples"] != self.samples:
            raise ValueError(
                f"the saved position is in {state['samples']} samples, the data now has {self.samples}: "
                f"bring the same data, or start from the weights alone"
            )
        if not (0 <= state["position"] <= self.samples and state["epoch"] >= 0):
            raise ValueError(f"position {state['position']} of epoch {state['epoch']} is not in {self.samples} samples")
        self.seed = int(state["seed"])
        self._stand(int(state["epoch"]), int(state["position"]))
