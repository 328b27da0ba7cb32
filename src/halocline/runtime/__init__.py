"""Doing it: process groups, boundaries, stages, the executor, gradient reduction and the engine in front of them."""

from halocline.runtime.engine import Engine, StepResult
from halocline.runtime.launch import RankFailed, join, run_local
from halocline.runtime.lost import PeerLost
from halocline.runtime.world import World

__all__ = ["Engine", "PeerLost", "RankFailed", "StepResult", "World", "join", "run_local"]
