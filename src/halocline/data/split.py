"""Which samples are trained on and which are kept for evaluation, where the data does not say so itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halocline.data import chance

TRAIN, EVALUATION = "train", "evaluation"
SPLITS = (TRAIN, EVALUATION)

(_SPLIT,) = chance.purposes("split", 1)


def chosen(samples: int, split: str, fraction: float, seed: int) -> NDArray[np.int64]:
    """The samples of a split, rising. The two splits share none and make up the whole."""
    if split not in SPLITS:
        raise ValueError(f"{split!r} is not a split: use {' or '.join(SPLITS)}")
    if not 0 <= fraction < 1:
        raise ValueError(f"an evaluation fraction of {fraction} is not in [0, 1): use e.g. 0.1")
    kept = int(samples * fraction)
    if fraction and not kept:
        kept = min(1, samples - 1)  # a small set still has something to evaluate on, and to train on
    if split == EVALUATION and not kept:
        raise ValueError(
            f"nothing is left for evaluation of {samples} samples with a fraction of {fraction}: "
            f"bring more data, raise the fraction, or evaluate on nothing (--evaluation-fraction 0)"
        )
    order = chance.permutation(samples, seed, _SPLIT)
    return np.sort(order[:kept] if split == EVALUATION else order[kept:])


def further(samples: int, fraction: float) -> int:
    """How many samples are generated for evaluation, beside `samples` to train on."""
    if not 0 <= fraction < 1:
        raise ValueError(f"an evaluation fraction of {fraction} is not in [0, 1): use e.g. 0.1")
    if samples < 1:
        raise ValueError(f"samples = {samples} is below 1: use 1 or more")
    return max(1, int(samples * fraction))
