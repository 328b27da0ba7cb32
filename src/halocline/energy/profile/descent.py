"""A descent: one stage's way down the frequencies, from the highest, until energy no longer falls."""

from __future__ import annotations

from collections.abc import Sequence


class Descent:
    """Which frequency a stage tries next.

    What must fall is the energy an instruction takes beyond that of waiting as long, since a slower instruction mostly
    replaces waiting; at a blocking power of 0 it is the energy itself.
    """

    def __init__(self, available: Sequence[int], *, lowest: int = 0, stride: int = 1, patience: int = 2) -> None:
        """`available`, highest first; of these every `stride`-th that is at least `lowest`, the highest in any case."""
        chosen = list(available[::stride])
        self._ladder = [chosen[0], *(frequency for frequency in chosen[1:] if frequency >= lowest)]
        self._patience = patience
        self._at = 0
        self._best: float | None = None
        self._worse = 0

    @property
    def done(self) -> bool:
        return self._at >= len(self._ladder) or self._worse >= self._patience

    @property
    def frequency(self) -> int:
        """What to try now; the highest again when done, so that a stage that is done slows nobody."""
        return self._ladder[0] if self.done else self._ladder[self._at]

    def saw(self, cost: float) -> None:
        """What the frequency tried now costs: joules beyond waiting, of one microbatch."""
        if self.done:
            return
        self._at += 1
        if self._best is None or cost < self._best:
            self._best, self._worse = cost, 0
        else:
            self._worse += 1
