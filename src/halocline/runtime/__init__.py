"""Doing it: process groups, boundaries, stages, the executor, gradient reduction and the engine in front of them."""

from halocline.runtime.engine import Engine, StepResult
from halocline.runtime.processes.launch import RankFailed, join, run_local
from halocline.runtime.processes.lost import PeerLost
from halocline.runtime.processes.world import World

__all__ = ["Engine", "PeerLost", "RankFailed", "StepResult", "World", "join", "run_local"]
