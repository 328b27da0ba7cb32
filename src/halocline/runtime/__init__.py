"""Doing it: process groups, boundaries, stages, the executor, gradient reduction and the engine in front of them."""

from halocline.runtime.engine import Engine, StepResult
from halocline.runtime.world import PeerLost, World

__all__ = ["Engine", "PeerLost", "StepResult", "World"]
