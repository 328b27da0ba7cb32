"""What it would cost: a schedule and a cost table become makespan, bubble, memory per rank, and drawings of them.

Nothing here imports torch; a measured timeline in the same events can be drawn with the same functions.
"""

from halocline.simulation.costs import Costs
from halocline.simulation.simulator import Event, Simulation, simulate

__all__ = ["Costs", "Event", "Simulation", "simulate"]
