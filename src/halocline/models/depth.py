"""The depths a ResNet of the CIFAR style may have. Knows no torch: the table of models answers a wrong one with it."""

from __future__ import annotations

STEP = {1: 6, 2: 9}
"""Version -> what a block in each of the three groups adds to the depth."""


def blocks_of(version: int, depth: int) -> int:
    """The blocks in each of the three groups: n of a depth of 6n+2 (v1) or 9n+2 (v2)."""
    step = STEP[version]
    n, rest = divmod(depth - 2, step)
    if n < 1 or rest:
        below = max(1, n)
        near = f"{below * step + 2}" + (f" or {(below + 1) * step + 2}" if n >= 1 else "")
        raise ValueError(f"a ResNet v{version} of depth {depth} does not exist: its depth is {step}n+2; use {near}")
    return n
